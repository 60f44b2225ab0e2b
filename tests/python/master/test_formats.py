"""Every format: linear layers, some of which share a scale, and stacks of experts equal plain
weights that are quantized by hand, in one process and under fully_shard.
"""

import itertools

import pytest
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
import reference
from by_hand import call_by_hand, same, values
from conformance import FORMATS, assert_same

TESTED_FORMATS = nc.formats()
WIDTH = 128  # whole blocks of every format, also in each half of it
GROUPS = [("q_proj.weight", "k_proj.weight"), ("out.weight",), ("stack",)]
OPTIMIZERS = {
    "AdamW": lambda model: optim.AdamW(model.parameters(), 1e-2, foreach=True),
    "FusedAdam": lambda model: nc.FusedAdam(model.parameters(), 1e-2, weight_decay=0.01),
}


class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.q_proj, self.k_proj, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.stack = nn.Parameter(torch.randn(2, 2 * WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x):
        x = self.q_proj(x) + 3 * self.k_proj(x)
        ends = torch.tensor([3, len(x)], dtype=torch.int32)
        x = F.grouped_mm(x, self.stack.transpose(-2, -1), offs=ends)
        halves = zip(x.chunk(2, 1), self.stack, strict=True)
        return self.out(sum(F.linear(F.linear(one, w), w.t()) for one, w in halves))


def _convert(model, format, **options):
    names = [name for names in GROUPS for name in names]
    options = {"parameters": names, "share_scale": [("q_proj", "k_proj")], **options}
    return nc.convert(model, format, filter=None, **options)


def _converted(format, **options):
    return _convert(Mixed(), format, **options)


def _batch(step):
    return torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(step))


def _train(call, optimizer, steps, share=1.0):
    """The losses. `share`: of this rank in the gradients."""
    losses = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = call(_batch(step)).square().mean()
        (loss * share).backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _steps(format, name):
    """The second step of FusedAdam takes a delayed scale from its history."""
    return 1 if nc.format(format).is_delayed and name == "FusedAdam" else 2


def _train_by_hand(format, name):
    model = Mixed()
    optimizer = OPTIMIZERS[name](model)
    losses = _train(
        lambda x: call_by_hand(model, format, GROUPS, x), optimizer, _steps(format, name)
    )
    return losses, values(model)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_process(format, name):
    expected = _train_by_hand(format, name)
    model = _converted(format)
    losses = _train(model, OPTIMIZERS[name](model), _steps(format, name))
    assert losses == expected[0]
    assert same(values(model), expected[1])


@ranks.on(2, "cpu")
def test_two_ranks(mesh):
    """Cuts divide the blocks of some formats. Gathers by pass, where the format has them."""
    for format, name in zip(TESTED_FORMATS, itertools.cycle(OPTIMIZERS), strict=False):
        losses, expected = _train_by_hand(format, name)
        model = _converted(format)
        for module in (model.out, model):
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
            # The first rank alone has a loss, so sums are exact.
            module.set_force_sum_reduction_for_comms(True)
            module.set_gradient_divide_factor(1.0)
        share = float(mesh.get_local_rank() == 0)
        assert _train(model, OPTIMIZERS[name](model), _steps(format, name), share) == losses
        model.reshard()
        whole = {key: one.detach().full_tensor() for key, one in model.named_parameters()}
        assert same(whole, expected), (format, name)


@pytest.mark.parametrize("scaled", [one for one in nc.formats() if nc.format(one).matmul])
def test_scaled_products(scaled):
    """Forwards and gradients of inputs are those of frozen bytes of the same values."""
    options = {"matmul": "scaled", "parameters": "*.weight"}  # those of F.linear, as it is
    model = _converted(scaled, **options)
    optimizer = OPTIMIZERS["AdamW"](model)
    for step in range(2):
        frozen = Mixed()
        frozen.load_state_dict(values(model))
        _convert(frozen, scaled, trainable=False, **options)
        inputs = [_batch(step).requires_grad_() for _ in range(2)]
        losses = [one(x).square().mean() for one, x in zip((model, frozen), inputs, strict=True)]
        for loss in losses:
            torch.manual_seed(step)  # of gradients that are rounded stochastically
            loss.backward()
        assert losses[0] == losses[1]
        assert torch.equal(*(one.grad for one in inputs))
        optimizer.step()


def test_rounding_of_fused_steps(format):
    """What is no function of the value, a key of random words or a history, is the optimizer's: its
    step alone applies it, and any other write is cast to nearest, with the present amax.
    """
    model = _converted(format, share_scale=False)
    optimizer = nc.FusedAdam(model.parameters(), 1e-2, rounding="stochastic", seed=5)
    value, scale = model.out.weight.value, {}
    if is_delayed := nc.format(format).is_delayed:
        history = reference.Delayed(FORMATS[format])
        history.cast(value.numpy())
    place = [one is model.out.weight for one in model.parameters()].index(True)
    for step in (1, 2):
        _train(model, optimizer, 1)
        key = {"rounding": "stochastic", "seed": 5 + place, "step": step}
        if is_delayed:
            history.cast(value.numpy())
            scale = {"tensor_multiplier": history.present}
        expected = reference.quantize(value.numpy(), FORMATS[format], **key, **scale)
        assert_same(_bytes(model.out.weight), expected, f"step {step}")
    with torch.no_grad():
        model.out.weight.mul_(3)
    model(_batch(0))
    expected = reference.quantize(value.numpy(), FORMATS[format])
    assert_same(_bytes(model.out.weight), expected, "written")


def _bytes(weight):
    return nc.QuantizedTensor(weight._view, weight.shape, weight.dtype)
