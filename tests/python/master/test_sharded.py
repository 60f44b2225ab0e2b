"""Weights that are their own masters under fully_shard equal one process to the bit, in losses and
values, where plain weights do: aligned shards, shards that share blocks, ranks without rows.
"""

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import narrowcast as nc
import ranks
from by_hand import FORMATS, by_hand, converted, loss_of, same, values

TESTED_FORMATS = FORMATS
SIZES = {"aligned": (256, 512, 64), "divided": (192, 320, 48), "empty": (96, 100, 4)}
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _adamw(model):
    return torch.optim.AdamW(model.parameters(), 1e-2, foreach=True)


def _fused(model):
    options = {"betas": (0.9, 0.999), "weight_decay": 0.01}
    return nc.FusedAdam(model.parameters(), 1e-2, **options)


# Ranks, options of fully_shard, batches for a step, the optimizer.
CASES = {
    "resharded": (3, {}, 1, _adamw),
    "kept": (2, {"reshard_after_forward": False}, 1, _adamw),
    "bfloat16, accumulated": (3, {"mp_policy": BF16}, 2, _adamw),
    "offloaded": (2, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 1, _adamw),
    "FusedAdam": (3, {}, 1, _fused),
    "SGD": (2, {}, 1, lambda model: torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)),
}


def _shard(model, mesh, **options):
    for block in model[:-1]:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    for module in (model, *model[:-1]):  # the first rank alone has a loss, so sums are exact
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model


def _steps(model, optimizer, batches, dtype, width, steps=3, first=0, is_first=True):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for number in range(batches):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(number == batches - 1)
            loss = loss_of(model, 10 * step + number, dtype=dtype, width=width)
            losses.append(loss.item())
            (loss * float(is_first)).backward()
        optimizer.step()
    return losses


def _whole(model):
    """The values of all ranks' shards together."""
    model.reshard()
    whole = {name: one.detach().full_tensor() for name, one in model.named_parameters()}
    return {name: getattr(one, "value", one) for name, one in whole.items()}


def _locals(model):
    model.reshard()
    every = (one._local_tensor for one in model.parameters())
    return [one for one in every if isinstance(one, nc.MasterWeight)]


def _train_sharded(mesh, format, size, case):
    _, options, batches, optimizer_of = CASES[case]
    sizes = SIZES[size]
    how = batches, torch.bfloat16 if "mp_policy" in options else torch.float32, sizes[0]
    reference = by_hand(format, *sizes)
    expected = _steps(reference, optimizer_of(reference), *how)
    model = _shard(converted(format, *sizes), mesh, **options)
    is_first = mesh.get_local_rank() == 0
    losses = _steps(model, optimizer_of(model), *how, is_first=is_first)
    assert losses == expected
    assert same(_whole(model), values(reference))
    assert len(_locals(model)) == 5
    stale = any(one._store.is_stale for one in _locals(model))
    assert stale == (optimizer_of is not _fused)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("case", CASES)
def test_training(format, case, size):
    ranks.run(CASES[case][0], "cpu", _train_sharded, format, size, case)
