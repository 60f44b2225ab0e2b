"""bfloat16 and float16 parameters beside quantized ones: what is written to them is what FusedAdam
goes on with, as torch's AdamW does.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import set_model_state_dict
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import same
from narrowcast.tensor import dtensors

FORMAT = nc.formats()[0]


def build(dtype=torch.bfloat16, device="cpu", width=128):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, width), nn.LayerNorm(width))
    return nc.convert(model.to(device, dtype), FORMAT)


def step(model, optimizer):
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()


def loaded(model, value):
    state = {name: torch.full_like(old, value) for name, old in model.state_dict().items()}
    model.load_state_dict(state)


def exchanged(model, value):
    model[0].bias.data = torch.full_like(model[0].bias, value)


WRITES = {
    "load": loaded,
    "fill": lambda model, value: nn.init.constant_(model[0].bias, value),
    "clamp": lambda model, value: model[0].bias.clamp_(value, value),
    "data": exchanged,
    "into data": lambda model, value: model[0].bias.data.fill_(value),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", WRITES)
def test_what_is_written_stays(name, dtype, device):
    """Parameters of whole tiles of a GPU, and of a rest."""
    width = 4096 + 128
    model = build(dtype, device, width)
    optimizer = nc.FusedAdam(model.parameters(), lr=2**-10, weight_decay=0)
    bias, rest = model[0].bias, model[1].bias
    for number, value in enumerate((0.25, -0.5)):
        step(model, optimizer)
        untouched = optimizer.state[rest]["master"].clone()
        with torch.no_grad():
            WRITES[name](model, value)
        saved = optimizer.state_dict()["state"]
        assert number == 0 or same(saved[1]["master"].cpu(), torch.full((width,), value))
        if name != "load":
            assert same(optimizer.state[rest]["master"], untouched)
        step(model, optimizer)
        moved = optimizer.state[bias]["master"] - value
        assert moved.abs().max() < 2**-9
        assert same(bias, optimizer.state[bias]["master"].to(dtype))


def test_small_steps_add_up():
    """No step of its own is taken for somebody's write: masters have what bfloat16 has not."""
    model = build()
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-5, weight_decay=0)
    scale = model[1].weight
    for _ in range(200):
        step(model, optimizer)
    moved = 1 - optimizer.state[scale]["master"]
    torch.testing.assert_close(moved, torch.full((128,), 200e-5), rtol=2e-3, atol=0)


def fill_the_local_tensor(state):
    dtensors.local_of(state["1.weight"]).fill_(0.25)


def load_in_place(state, folder):
    value = dtensors.like(state["1.weight"], torch.full_like(state["1.weight"].to_local(), 0.25))
    dcp.save({"1.weight": value}, checkpoint_id=folder)
    dcp.load({"1.weight": state["1.weight"]}, checkpoint_id=folder)


def written_through_a_state_dict(mesh, write, *where):
    """Nobody calls load_state_dict."""
    model = fully_shard(build(), mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=2**-10, weight_decay=0)
    step(model, optimizer)
    globals()[write](model.state_dict(), *where)
    step(model, optimizer)
    master = dtensors.local_of(optimizer.state[model[1].weight]["master"])
    assert (master - 0.25).abs().max() < 2**-9


@pytest.mark.parametrize("world", [1, 2])
def test_writes_to_what_a_state_dict_holds(world, tmp_path):
    ranks.run(world, "cpu", written_through_a_state_dict, "fill_the_local_tensor")
    ranks.run(world, "cpu", written_through_a_state_dict, "load_in_place", str(tmp_path))


@ranks.on(2, "cpu")
def test_shards(mesh):
    model = fully_shard(build(), mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=2**-10, weight_decay=0)
    step(model, optimizer)
    state = {name: torch.full_like(old, 0.25) for name, old in model.state_dict().items()}
    set_model_state_dict(model, state)
    step(model, optimizer)
    for parameter in (model[0].bias, model[1].weight):
        master = dtensors.local_of(optimizer.state[parameter]["master"])
        assert (master - 0.25).abs().max() < 2**-9
        assert same(parameter.to_local(), master.to(torch.bfloat16))


def test_scripted_modules_stay_as_they_are():
    model = nn.Sequential(nn.Linear(64, 64), torch.jit.script(nn.LayerNorm(64)))
    assert set(nc.convert(model, FORMAT).state_dict()) >= {"0.weight", "1.weight"}
