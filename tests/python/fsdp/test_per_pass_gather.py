"""Gathers that bring each pass the bytes that it reads, and no others, where a format's passes read
different ones; and some of a group's weights for both passes at once (recompute=True). That what
they bring is right is tested where such shards are trained.
"""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from gradients import WithGradient
from internals import payloads_of_group
from models import STORAGES

TESTED_FORMATS = [name for name in STORAGES if nc.format(name).gather == "by pass"]


BOTH = ["rowwise", "columnwise"]


def options_of(kind):
    return {
        "within blocks": {},
        "columns": {"shard_placement_fn": lambda _: Shard(1)},
        "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    }[kind]


class Layer(nn.Linear):
    """Says what it saw in each pass."""

    def forward(self, x):
        self.seen = [usages_of(self.weight)]
        return WithGradient.apply(super().forward(x), self._look)

    def _look(self, gradient):
        """In the backward, after FSDP2's gather."""
        self.seen.append(usages_of(self.weight))
        return gradient


def brought(mesh, format, kind, recompute):
    """What a layer sees in its forward and its backward, and the bytes that a rank sends."""
    step = 2 * max(nc.format(format).row_step, nc.format(format).column_step, 32)
    rows = step + 20 if kind == "within blocks" else step
    model = nn.Sequential(Layer(step, rows, bias=False), nn.Linear(rows, 4, bias=False))
    nc.convert(model, format, filter="0", recompute=recompute)
    for module in (model[0], model):  # a root's weights are kept after its forward
        fully_shard(module, mesh=mesh, reshard_after_forward=True, **options_of(kind))
    x = torch.ones(3, step, requires_grad=True)
    for _ in range(2):
        model(x).sum().backward()
    (((payload,),), _) = payloads_of_group(model[0].weight)
    return model[0].seen, payload.nbytes


def usages_of(weight):
    return [one for one in BOTH if getattr(weight, f"{one}_data") is not None]


@pytest.mark.parametrize("kind", ["within blocks", "columns", "offloaded"])
def test_each_pass_is_brought_its_own(format, kind):
    by_pass, both = (
        ranks.run(2, "cpu", brought, format, kind, recompute) for recompute in (False, True)
    )
    for (seen, sent), (seen_both, sent_both) in zip(by_pass, both, strict=True):
        assert seen == [["rowwise"], ["columnwise"]]
        assert seen_both == [BOTH, BOTH]
        assert sent <= 0.6 * sent_both


def read_in_both_passes(mesh, format, recompute):
    convolution = nn.Conv1d(2, 32, 32, bias=False)
    model = nn.Sequential(nn.Unflatten(1, (2, 32)), convolution, nn.Flatten())
    nc.convert(model, format, filter=lambda _, one: one is convolution, recompute=recompute)
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    x = torch.ones(3, 64, requires_grad=True)
    model(x).sum().backward()


def test_what_reads_the_forwards_bytes_in_a_backward_is_told_of_recompute(format):
    ((kind, message),) = ranks.errors(1, "cpu", read_in_both_passes, format, False)
    assert kind == "ValueError" and "convolutions" in message and "recompute=True" in message
    assert ranks.errors(1, "cpu", read_in_both_passes, format, True) == [None]


def model_of(format, recomputed, device):
    torch.manual_seed(0)
    width = 256
    model = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in recomputed))
    for layer, recompute in zip(model, recomputed, strict=True):
        nc.convert(layer, format, recompute=recompute)
    return model.to(device)


@pytest.mark.parametrize("recomputed", [(True, False), (False, True), (False, True, False)])
@ranks.on(2)
def test_mixed(mesh, format, recomputed):
    whole, model = (model_of(format, recomputed, mesh.device_type) for _ in range(2))
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    inputs = [torch.ones(3, 256, device=mesh.device_type, requires_grad=True) for _ in range(2)]
    for _ in range(3):  # the first gathers make room
        found = []
        for one, x in zip((whole, model), inputs, strict=True):
            y, x.grad = one(x), None
            y.sum().backward()
            found.append((y, x.grad))
        (y, grad), (of_shards, grad_of_shards) = found
        assert torch.equal(y, of_shards) and torch.equal(grad, grad_of_shards)
