"""Flat shards under FusedAdam, on ranks, beside the whole weights in one process, for tests."""

import torch

import flats
import narrowcast as nc
from models import same
from narrowcast import flat
from weights import quantized

NEAREST, STOCHASTIC = {"lr": 0.05}, {"lr": 0.05, "rounding": "stochastic", "seed": 2**64 - 1}


def gradient_of(shape, step, seed):
    generator = torch.Generator().manual_seed(1000 * step + seed)
    return torch.randn(shape, generator=generator)


class Whole:
    """The weights in one process, each a layer's, under FusedAdam."""

    def __init__(self, values, name, options):
        self.layers = [torch.nn.Linear(*value.shape[::-1], bias=False) for value in values]
        for layer, value in zip(self.layers, values, strict=True):
            layer.weight.data.copy_(value)
        nc.convert(torch.nn.Sequential(*self.layers), name)
        self.weights = [layer.weight for layer in self.layers]
        self.optimizer = nc.FusedAdam(self.weights, **options)

    def step(self, gradients):
        for weight, gradient in zip(self.weights, gradients, strict=True):
            weight.grad = gradient
        self.optimizer.step()


class Flat:
    """A rank's shards of them. `cuts`: where ranks begin, and the end, of each weight. Without a
    mesh: of one process, on the CPU.
    """

    def __init__(self, mesh, values, name, cuts, options):
        device, self.rank, group = "cpu", 0, None
        if mesh is not None:
            device, self.rank, group = mesh.device_type, mesh.get_local_rank(), mesh.get_group()
        self.cuts = cuts
        self.weights = [flats.poisoned(value, name, device) for value in values]
        pairs = [
            flats.shards(value.to(device), of_weight, self.rank)
            for value, of_weight in zip(values, cuts, strict=True)
        ]
        self.masters = [one if one is None else torch.nn.Parameter(one) for one, _ in pairs]
        own = [one for one in self.masters if one is not None]
        self.optimizer = nc.FusedAdam([{"params": own}], **options)
        starts = [start for _, start in pairs]
        flat.fuse(self.optimizer, self.weights, self.masters, starts, group)

    def step(self, gradients):
        for master, gradient, cuts in zip(self.masters, gradients, self.cuts, strict=True):
            if master is not None:
                own = None if gradient is None else flats.shards(gradient, cuts, self.rank)[0]
                master.grad = None if own is None else own.to(master.device)
        self.optimizer.step()

    def fault(self, whole):
        """Empty, or what is not as in the whole."""
        for place, (weight, expected) in enumerate(zip(self.weights, whole.weights, strict=True)):
            bytes = quantized(expected)
            if not flats.is_written_rightly(weight, to_device(bytes, weight.device)):
                return f"weight {place} has other bytes"
            if weight.history is not None and not same(weight.history.cpu(), bytes.history):
                return f"weight {place} has another history"
            if self.masters[place] is None:
                continue
            state, of_whole = (
                one.optimizer.state[key]
                for one, key in ((self, self.masters[place]), (whole, expected))
            )
            begin, end = self.cuts[place][self.rank : self.rank + 2]
            if not same_numbers(self.masters[place], expected.value.view(-1)[begin:end]):
                return f"weight {place} has another master"
            for moment in ("exp_avg", "exp_avg_sq"):
                if not same_numbers(state[moment], of_whole[moment].view(-1)[begin:end]):
                    return f"weight {place} has another {moment}"
            assert state["step"] == of_whole["step"]
        return ""


def same_numbers(some, others):
    """Of float32, bit for bit; but the bits of a NaN are the machine's."""
    on_cpu = (one.detach().cpu() for one in (some, others))
    return same(*(torch.where(one.isnan(), torch.nan, one) for one in on_cpu))


def to_device(weight, device):
    return weight.detach().to(device)
