"""What a gather has packed later ones send again, unless something was written; and the first
gather of a forward after a write packs all groups.
"""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from narrowcast.fsdp import group, torch_names

WIDTH = 512
# Those that travel with fewer scales than are stored, and carry the same in both passes.
PACKED = [
    name
    for name in nc.formats()
    if nc.format(name).gather == "rowwise"
    and nc.format(name).wire_bits_per_element < nc.format(name).bits_per_element
]
TESTED_FORMATS = PACKED


def layers(mesh, format):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)))
    nc.convert(model, format).to(mesh.device_type)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    model(torch.ones(4, WIDTH, device=mesh.device_type)).sum().backward()
    return model


def send_buffer(layer):
    """uint8: what the layer's group has packed."""
    plan = group._plans[torch_names.managed(layer.weight)[0]]
    assert plan._send_buffer.is_kept
    memory = plan._send_buffer._storage
    return torch.empty(0, dtype=torch.uint8, device=memory.device).set_(memory)


def value_of(layer):
    """As a gather brings it that packs anew."""
    layer.unshard()
    value = layer.weight.dequantize()
    layer.reshard()
    return value


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def gradient_after(model, change, mesh):
    """Of the input of the first layer, if something happens before its backward."""
    x = torch.ones(4, WIDTH, device=mesh.device_type, requires_grad=True)
    output = model[0](x)
    # FSDP2's gathers are on streams of their own, which wait for no writes within a step.
    wait(mesh.device_type)
    with torch.no_grad():
        change(model[0])
    wait(mesh.device_type)
    output.sum().backward()
    return x.grad


def expected(model, mesh):
    return torch.ones(4, WIDTH, device=mesh.device_type) @ value_of(model[0])


def nothing(layer):
    pass


def write(layer, factor=2):
    with torch.no_grad():
        layer.weight.to_local().mul_(factor)


def give_the_first_ranks_shard(layer):
    dist.broadcast(layer.weight.to_local(), 0)


def lose_what_was_packed(layer):
    send_buffer(layer).zero_()


@pytest.mark.parametrize("name", ["nothing", "write", "give_the_first_ranks_shard"])
@ranks.on(2)
def test_a_backward_is_of_its_forward(mesh, format, name):
    """Bytes of a value that was written to are those of the next forward."""
    model = layers(mesh, format)
    change = globals()[name]
    before = expected(model, mesh)
    assert torch.equal(gradient_after(model, change, mesh), before)
    assert torch.equal(expected(model, mesh), before) == (change is nothing)


@ranks.on(2)
def test_a_backward_packs_nothing_again(mesh, format):
    model = layers(mesh, format)
    before = expected(model, mesh)
    assert not torch.equal(gradient_after(model, lose_what_was_packed, mesh), before)
    write(model[0])
    assert torch.equal(gradient_after(model, nothing, mesh), expected(model, mesh))


@ranks.on(2)
def test_the_first_gather_packs_all_groups(mesh, format):
    """The second layer's group is packed before the first one's forward."""
    model = layers(mesh, format)
    x = torch.ones(4, WIDTH, device=mesh.device_type)

    def lose(*_):
        wait(mesh.device_type)
        lose_what_was_packed(model[1])
        wait(mesh.device_type)

    nc.FusedAdam(model.parameters(), lr=1e-2).step()
    hook = model[0].register_forward_hook(lose)
    wrong = model(x)
    hook.remove()
    write(model[1], 1)
    assert not torch.equal(model(x), wrong)


@ranks.on(2)
def test_what_was_packed_ahead_is_of_its_forward(mesh, format):
    """A forward whose first gather packs all groups ends before the second layer's gather."""
    model, x = layers(mesh, format), torch.ones(4, WIDTH, device=mesh.device_type)
    nc.FusedAdam(model.parameters(), lr=1e-2).step()
    hook = model[0].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        model(x)
    hook.remove()
    wait(mesh.device_type)
    write(model[1])
    wait(mesh.device_type)
    expected = nc.quantize(model[1].weight.full_tensor(), format).dequantize()
    assert all(torch.equal(value_of(model[1]), expected) for _ in range(2))
