"""The debug mode sees writes to a value that torch has not counted."""

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from by_hand import converted, loss_of, train, value_of

TESTED_FORMATS = ["mxfp8_e4m3", "nvfp4"]
SIZES = (64, 64, 32)
STEPS = {"fused": nc.FusedAdam, "torch": torch.optim.SGD}


@pytest.fixture(autouse=True)
def debugging():
    nc.debug()
    yield
    nc.debug(False)


@pytest.mark.parametrize("kind", STEPS)
def test_products(format, kind):
    model = converted(format, *SIZES)
    train(model, [STEPS[kind](model.parameters(), 1e-2)], 2, width=64)
    weight = model[0].up.weight
    loss_of(model, 0, width=64)
    weight.value.data.neg_()
    with pytest.raises(RuntimeError, match=r"0\.up\.weight.*Call nc\.note_write"):
        loss_of(model, 0, width=64)
    nc.note_write(weight)
    other = converted(format, *SIZES)
    other.load_state_dict(model.state_dict())
    assert loss_of(model, 0, width=64) == loss_of(other, 0, width=64)


def gathered(mesh, format):
    nc.debug()
    model = converted(format, *SIZES)
    for module in (*model, model):
        fully_shard(module, mesh=mesh)
    train(model, [nc.FusedAdam(model.parameters(), 1e-2)], 2, width=64)
    weight = model[0].up.weight
    if mesh.get_local_rank() == 0:
        value_of(weight.to_local()).data.neg_()
    model.reshard()
    with pytest.raises(RuntimeError, match=r"0\.up\.weight"):
        loss_of(model, 0, width=64)
    nc.debug(False)


def test_gathers(format, world=2):
    ranks.run(world, "cpu", gathered, format)
