"""A model whose projections share scales of the tensor, and the bytes that they must have."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
import reference
from conformance import FORMATS, assert_same
from models import one_of_each, same
from weights import quantized

SPANNING = one_of_each(
    lambda f: f.tensor_amax and (f.amax, f.gather, f.rowwise.block, f.tensor_scale)
)
SPANNING = [name for name in SPANNING if nc.format(name).tensor_amax]
ENTRIES = [("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")]
WIDTH = 64
OPTIONS = {"lr": 1e-2}
STOCHASTIC = {"lr": 1e-2, "rounding": "stochastic", "seed": 5}


class Projections(nn.Module):
    """An attention's without attention, and a gated layer's; equal in every process."""

    def __init__(self, rows=96, few=48):
        super().__init__()
        torch.manual_seed(0)
        sizes = {"q_proj": rows, "k_proj": few, "v_proj": few, "gate_proj": rows, "up_proj": rows}
        for place, (name, size) in enumerate(sizes.items()):
            setattr(self, name, nn.Linear(WIDTH, size, bias=False))
            with torch.no_grad():
                getattr(self, name).weight.mul_(1 + place)
        self.down_proj = nn.Linear(rows, WIDTH, bias=False)

    def forward(self, x):
        mixed = self.q_proj(x) + F.silu(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(mixed) * (1 + (self.k_proj(x) * self.v_proj(x)).mean())


def build(format, device="cpu", few=48):
    return nc.convert(Projections(few=few).to(device), format, share_scale=ENTRIES)


def loss_of(model, step, device="cpu"):
    generator = torch.Generator().manual_seed(step)
    return model(torch.randn(4, WIDTH, generator=generator).to(device)).square().mean()


def groups(model):
    return [[getattr(model, name).weight for name in entry] for entry in ENTRIES]


class Truth:
    """What the reference makes of a whole model's groups, with the amax of each. compare() is
    called after each cast: the history of delayed scaling is that of the weights in one matrix.
    """

    def __init__(self, model):
        name = model.q_proj.weight.format.name
        self.model, self.format = model, FORMATS[name]
        self.is_delayed = nc.format(name).is_delayed
        self.begin()

    def begin(self):
        """Histories begin anew, as after a write."""
        self.histories = [reference.Delayed(self.format) for _ in ENTRIES]

    def compare(self, what, optimizer=None, step=0, is_new=True):
        """`optimizer`, `step`: of stochastic rounding; is_new: other values than at the last."""
        positions = [*self.model.parameters()]
        seeded = optimizer is not None and optimizer.param_groups[0]["rounding"] == "stochastic"
        for group, history in zip(groups(self.model), self.histories, strict=True):
            own = [weight.value.detach().cpu().numpy() for weight in group]
            whole = np.concatenate(own)
            if self.is_delayed and is_new:
                history.cast(whole)
            for weight, value in zip(group, own, strict=True):
                options = {"tensor_amax": np.abs(whole).max()}
                if self.is_delayed:
                    options["tensor_multiplier"] = history.present
                    of_weight = quantized(weight).history
                    assert of_weight[0] == history.present, what
                    assert of_weight[1] == history.next, what
                    assert same(of_weight, quantized(group[0]).history), what
                if seeded:
                    place = next(i for i, one in enumerate(positions) if one is weight)
                    seed = optimizer.param_groups[0]["seed"] + place
                    options |= {"rounding": "stochastic", "seed": seed, "step": step}
                expected = reference.quantize(value, self.format, **options)
                assert_same(weight.detach(), expected, what)
