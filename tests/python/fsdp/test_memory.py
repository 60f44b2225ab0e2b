"""Bytes, counted: what stays after conversion and sharding, and after a forward; and nothing holds
a sharded model that is dropped, its masters or its moments.
"""

import gc
import math
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from memory import SMALL, freed, grown, storages
from models import GATHERS, build, loss_of, shard, train, uneven_rows, unit
from narrowcast.tensor import dtensors

TESTED_FORMATS = GATHERS


WIDTH, LAYERS = 512, 3


def make(mesh, format, after):
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    if not after:
        nc.convert(model, format, recompute=False)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    fully_shard(model, mesh=mesh)
    return nc.convert(model, format, recompute=False) if after else model


def shard_bytes(format, world):
    """A rank's own bytes of a weight: both usages, but not a derived columnwise."""
    f = nc.format(format)
    buffers = range(2) if f.columnwise_derived else range(4)
    shapes = [(f.buffer_shape(b, WIDTH // world, WIDTH), f.buffer_dtype(b)) for b in buffers]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("world", [1, 2])
@ranks.on("world", "cpu")
def test_only_the_sharded_value_is_kept(mesh, format, after):
    before = storages()
    model = make(mesh, format, after)
    value = 4 * WIDTH * WIDTH // mesh.size()
    expected = LAYERS * (value + shard_bytes(format, mesh.size()))
    # Bytes are made for their first reader.
    assert LAYERS * value <= grown(before) <= expected + SMALL
    assert all(isinstance(p.to_local(), nc.MasterWeight) for p in model.parameters())


@pytest.mark.parametrize("world", [1, 2])
@ranks.on("world", "cpu")
def test_gathered_bytes_are_freed(mesh, format):
    model = make(mesh, format, False)
    x = torch.randn(4, WIDTH)
    with torch.no_grad():
        model(x)  # makes the bytes
        before = storages()
        model(x)
        model(x)
    assert freed(before)
    held = []
    for layer in model:
        layer.register_forward_pre_hook(lambda *_: held.append(grown(before)))
    with torch.no_grad():
        model(x)
    gathered = shard_bytes(format, 1) / (1 if nc.format(format).columnwise_derived else 2)
    assert max(held) >= gathered  # the count does see what is gathered
    assert max(held) <= 3 * 2 * WIDTH * WIDTH  # one layer: payloads, buffers, FSDP2's own copy


def payload_sizes(mesh, format):
    """What the wire carries for a weight, in bits an element."""
    model = make(mesh, format, False)
    for layer in model:
        layer.unshard()
    (parameter,) = model[0]._get_fsdp_state()._fsdp_param_group.fsdp_params
    local = parameter._sharded_local_tensor
    payloads, _ = local.fsdp_pre_all_gather(parameter)
    return 8 * sum(payload.numel() for payload in payloads) / local.numel()


def test_bytes_on_the_wire(format):
    f = nc.format(format)
    for bits in ranks.run(2, "cpu", payload_sizes, format):
        assert bits == f.wire_bits_per_element
    assert f.wire_bits_per_element <= f.bits_per_element


@ranks.on(2)
def test_a_group_is_one_allocation(mesh, format):
    """Of all that its gathers bring, and freed as a whole."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model.to(mesh.device_type)
    full = [nc.quantize(layer.weight.detach(), format).dequantize() for layer in model]
    fully_shard(nc.convert(model, format), mesh=mesh)
    for _ in range(2):
        model.unshard()
        weights = [layer.weight for layer in model]
        memory = [weight.rowwise_data.untyped_storage() for weight in weights]
        values = [weight.dequantize() for weight in weights]
        assert len({storage.data_ptr() for storage in memory}) == 1
        assert memory[0].nbytes() >= sum(weight.rowwise_data.nbytes for weight in weights)
        model.reshard()
        assert {storage.nbytes() for storage in memory} == {0}
    assert all(map(torch.equal, values, full))


def backward(model, optimizer, device):
    loss_of(model, 0, device).backward()


def step(model, optimizer, device):
    train(model, optimizer, 2, device)


def infer(model, optimizer, device):
    # Of one rank, FSDP2 of torch 2.11 asks its own slots for versions.
    with torch.no_grad() if dist.get_world_size() == 1 else torch.inference_mode():
        return loss_of(model, 0, device)


def load(model, optimizer, device):
    train(model, optimizer, 1, device)
    model.load_state_dict({name: 2 * p for name, p in model.state_dict().items()})
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 1, device)


def unshard(model, optimizer, device):
    model.unshard()
    model.blocks[0].unshard()
    return model.blocks[0].up.weight.dequantize()


def kept(model, optimizer, device):
    """The gathered weights are alive when the model goes."""
    model.set_reshard_after_backward(False)
    loss_of(model, 0, device).backward()


def known_by_a_weight(model, optimizer, device):
    """A whole weight knows the model, as its hooks and attributes may."""
    know = model.blocks[0].up.register_forward_pre_hook(
        lambda layer, _: setattr(layer.weight, "owner", model)
    )
    train(model, optimizer, 3, device)
    know.remove()


class Short(nn.Module):
    """A weight of which the last of three ranks has fewer rows."""

    def __init__(self, format):
        super().__init__()
        self.width, rows = 3 * unit(format), uneven_rows(format)
        rows += -rows % nc.format(format).group
        self.up, self.down = nn.Linear(self.width, rows), nn.Linear(rows, self.width)
        self.blocks = [self.up]

    def forward(self, x):
        return self.down(self.up(x))


LIVES = ["backward", "step", "infer", "load", "unshard", "kept", "known_by_a_weight"]


def made(mesh, format, uneven, **options):
    device = mesh.device_type
    model = nc.convert(Short(format), format).to(device) if uneven else build(format, device)
    model = shard(model, mesh, **options)
    return model, nc.FusedAdam(model.parameters(), lr=1e-2)


def references(model, optimizer):
    """Weak ones to all that must die, by name."""
    found = {"model": weakref.ref(model), "optimizer": weakref.ref(optimizer)}
    for name, p in model.named_parameters():
        found[name] = weakref.ref(p)
        for key, value in optimizer.state[p].items():
            found[name, key] = weakref.ref(getattr(value, "_local_tensor", value))
        local = dtensors.local_of(p)  # not a copy, as to_local() makes
        if isinstance(local, nc.MasterWeight):
            found[name, "shard"] = weakref.ref(local)
            found[name, "value"] = weakref.ref(local.value)
    assert all(reference() is not None for reference in found.values())
    return found


CASES = [(2, life, False, True) for life in LIVES]
CASES += [(1, life, False, True) for life in ("step", "infer", "unshard")]
CASES += [(3, "step", True, True), (3, "load", True, True), (2, "step", False, False)]


@pytest.mark.parametrize(("world", "life", "uneven", "reshard"), CASES)
@ranks.on("world")
def test_nothing_is_left(mesh, format, life, uneven, reshard):
    model, optimizer = made(mesh, format, uneven, reshard_after_forward=reshard)
    found = references(model, optimizer)
    result = globals()[life](model, optimizer, mesh.device_type)
    del model, optimizer, result
    deadline = time.monotonic() + 5  # gloo's threads let go of tensors a moment after they are done
    while gc.collect() or time.monotonic() < deadline:
        left = [name for name, reference in found.items() if reference() is not None]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"alive: {left}")
