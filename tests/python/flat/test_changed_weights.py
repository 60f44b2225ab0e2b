"""Weights that were fused, or handed to a gather or a cast, and have other bytes or other memory
since, or are gone: what is told once is still true of the model, or an error says what is not.
"""

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F

import flats
import narrowcast as nc
import ranks
from internals import buffers_of, store_of
from models import GATHERS, same
from narrowcast import flat

TESTED_FORMATS = GATHERS
ROWS, COLUMNS = 64, 128


class Fused:
    """A layer whose weight FusedAdam's step makes from a flat master."""

    def __init__(self, name, device):
        self.device, self.name = device, name
        self.layer = torch.nn.Linear(COLUMNS, ROWS, bias=False)
        self.layer.weight.data.copy_(flats.value_of((ROWS, COLUMNS), special=False))
        flats.convert(self.layer.to(device), name)
        weight = self.layer.weight
        own = weight.get_high_precision_init_val().reshape(-1).clone().to(device)
        weight.clear_high_precision_init_val()
        self.master = torch.nn.Parameter(own)
        self.optimizer = nc.FusedAdam([self.master], lr=0.5)
        self.fuse()
        self.step()

    def fuse(self):
        flat.fuse(self.optimizer, [self.layer.weight], [self.master], [0])

    def step(self):
        self.master.grad = torch.ones_like(self.master)
        self.optimizer.step()

    @property
    def follows(self):
        """Whether the weight's bytes are the master's; a delayed scale is that of its history."""
        whole = self.master.detach().view(ROWS, COLUMNS)
        return same(self.layer.weight.dequantize(), cast(whole, self.layer.weight).dequantize())


def cast(value, weight):
    """The value as nc.quantize_master_weights makes it now, in a copy of the weight."""
    copy = weight.detach().clone()
    nc.quantize_master_weights([copy], [value], [0])
    return copy


def move_storages(layer):
    """As what frees memory and makes room again does: the same tensors, elsewhere."""
    kept = []
    for buffer in buffers_of(layer.weight):
        value, storage = buffer.clone(), buffer.untyped_storage()
        size = storage.nbytes()
        storage.resize_(0)
        kept.append(torch.zeros(size, dtype=torch.uint8, device=buffer.device))
        storage.resize_(size)
        buffer.copy_(value)
    return kept


CHANGES = {
    "nothing": lambda layer: None,
    "dtype": lambda layer: layer.to(torch.bfloat16),
    "data": lambda layer: setattr(layer.weight, "data", layer.weight.data.clone()),
    "load": lambda layer: layer.load_state_dict(layer.state_dict()),
    "shared memory": lambda layer: layer.share_memory(),
    "storages": move_storages,
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_step_makes_the_bytes_that_the_model_has(format, device, change):
    if nc.format(format).is_delayed:
        pytest.skip("a cast moves the history on")
    fused = Fused(format, device)
    if change == "shared memory" and device == "cuda":
        pytest.skip("memory of the CPU is shared")
    kept = CHANGES[change](fused.layer)
    for _ in range(2):
        fused.step()
        assert fused.follows
    del kept


def test_another_weight_is_fused_anew(format, device):
    fused = Fused(format, device)
    state = {name: one.clone() for name, one in fused.layer.state_dict().items()}
    fused.layer.load_state_dict(state, assign=True)
    flat.unfuse(fused.optimizer)
    before = flats.stored(fused.layer.weight)["rowwise_data"].clone()
    fused.step()
    assert same(flats.stored(fused.layer.weight)["rowwise_data"], before)
    fused.fuse()
    fused.step()
    if not nc.format(format).is_delayed:
        assert fused.follows


@ranks.on(2)
def test_gathers_of_weights_that_change(mesh, format):
    """A gather brings the bytes that a weight has when it starts."""
    rank, device, group = mesh.get_local_rank(), mesh.device_type, mesh.get_group()
    value = flats.value_of((ROWS, COLUMNS), special=False).to(device)
    weight = torch.nn.Parameter(nc.quantize(torch.ones_like(value), format), requires_grad=False)
    gather = flat.Gather([weight], [[(0, 1001)], [(1001, value.numel())]], group)
    weight.data = weight.data.clone()
    master, start = flats.shards(value, [0, 1001, value.numel()], rank)
    nc.quantize_master_weights([weight], [master], [start], group)
    before = weight._version
    gather.start()
    gather.finish()
    assert weight._version > before
    if not nc.format(format).is_delayed:
        assert same(weight.dequantize(), nc.quantize(value, format).dequantize())


def test_a_cast_of_weights_that_have_other_bytes(format, device):
    """Nobody has to forget anything; torch swaps them, for nobody has a weak reference."""
    value = flats.value_of((ROWS, COLUMNS), special=False).to(device)
    weight = torch.nn.Parameter(nc.quantize(torch.ones_like(value), format), requires_grad=False)
    nc.quantize_master_weights([weight], [value], [0])
    layer = torch.nn.Linear(COLUMNS, ROWS, bias=False)
    layer.weight = weight
    for change in ("data", "dtype", "shared memory"):
        if change != "shared memory" or device == "cpu":
            CHANGES[change](layer)
        weight = layer.weight
        expected = weight.detach().clone()
        for one in (weight, expected):
            nc.quantize_master_weights([one], [2 * value], [0])
        assert all(same(one, flats.stored(expected)[k]) for k, one in flats.stored(weight).items())
    nc.quantize_master_weights([weight.detach()], [value], [0])  # the same weight
    with pytest.raises(ValueError, match=r"narrowcast\.flat\.forget"):
        nc.quantize_master_weights([weight.detach()], [value.view(-1)[1:]], [1])


# ---- backwards of what was before, and what lives on ----


def test_a_backward_refuses_weights_of_a_later_step(device):
    """As torch's does."""
    fused = Fused("mxfp8_e4m3", device)
    x = torch.randn(32, COLUMNS, device=device, requires_grad=True)
    for write in (
        fused.step,
        lambda: nc.quantize_master_weights([fused.layer.weight], [fused.master], [0]),
    ):
        y = F.linear(x, fused.layer.weight)
        write()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()


def test_nobody_keeps_masters_or_weights(format):
    """A cast keeps neither."""
    value = flats.value_of((ROWS, COLUMNS), special=False)
    weight = nc.quantize(value, format)
    for _ in range(2):
        master = value.clone()
        known = master.untyped_storage()._weak_ref()
        nc.quantize_master_weights([weight], [master], [0])
        del master
        assert torch.UntypedStorage._expired(known)
    store = weakref.ref(store_of(weight))
    del weight
    gc.collect()
    assert store() is None
