"""Nothing is kept of what a tensor was once asked for, and a shard is kept once."""

import gc
import sys
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import tensors_of
from memory import freed, grown, storages
from models import GATHERS, uneven_rows
from narrowcast.tensor.store import Store
from weights import quantized

TESTED_FORMATS = GATHERS

SIZED = (dict, list, set, weakref.WeakValueDictionary, weakref.WeakKeyDictionary)
ROWS, COLUMNS = 64, 12  # units of the tensors that are cut
SMALL = 4  # tensors


def entries():
    """How many entries every container has that a module of narrowcast holds."""
    found = {}
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] != "narrowcast":
            continue
        for key, value in vars(module).items():
            if hasattr(value, "cache_info"):
                found[name, key] = value.cache_info().currsize
            elif not key.startswith("__") and isinstance(value, SIZED):
                found[name, key] = len(value)
    return found


def alive():
    """How many tensors and stores there are."""
    gc.collect()
    return sum(issubclass(type(one), (torch.Tensor, Store)) for one in gc.get_objects())


def left_by(act, count):
    """What the second half of calls leave alive. The first fills what torch keeps anyway."""
    for number in range(count):
        if number == count // 2:
            before, containers = alive(), entries()
        act(number)
    left = alive() - before
    assert entries() == containers
    return left


def cut_of(number):
    """Different cuts for different numbers, in units: rows and columns."""
    first, rest = number % (ROWS - 1), number // (ROWS - 1)
    return slice(first, first + 1 + rest % 3), slice(rest // 3 % COLUMNS, None)


def cut(weight, step, number):
    down, across = step
    rows, columns = cut_of(number)
    rows = slice(rows.start * down, rows.stop * down)
    return weight[rows, columns.start * across :]


def units(format):
    f = nc.format(format)
    return max(f.row_step, f.group), max(f.column_step, f.group)


USES = {
    "decode": lambda part: part.dequantize(torch.bfloat16),
    "buffers": lambda part: (part.rowwise_data, part.columnwise_scale_inv),
    "clone": lambda part: part.clone().dequantize(),
    "linear": lambda part: F.linear(torch.ones(1, part.shape[1]), part),
    "views": lambda part: part.detach().unsqueeze(0)[0].shape,
}


@pytest.mark.parametrize("use", USES)
def test_thousands_of_slices(format, use):
    down, across = units(format)
    weight = nc.quantize(torch.randn(ROWS * down, COLUMNS * across), format)
    assert left_by(lambda n: USES[use](cut(weight, (down, across), n)), 1000) < SMALL


def test_thousands_of_writes(format):
    """Into slices, of a weight in training."""
    down, across = units(format)
    layer = nn.Linear(COLUMNS * across, ROWS * down, bias=False)
    weight = nc.convert(layer, format).weight.detach()

    def write(number):
        cut(weight, (down, across), number).fill_(number)
        if number % 100 == 0:
            quantized(weight).dequantize()

    assert left_by(write, 1000) < SMALL


WIDTH = 64


@ranks.on(3, "cpu")
def test_short_shards_are_kept_once(mesh, format):
    """A rank's own bytes: values and moments once, its shard once, and no padding beside it."""
    rows = uneven_rows(format)
    rows += -rows % nc.format(format).group
    before = storages()
    layers = nn.Sequential(*(nn.Linear(WIDTH, rows, bias=False) for _ in range(1)))
    model = nc.convert(layers, format)
    for layer in model:
        fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    optimizer = nc.FusedAdam(model.parameters())
    for _ in range(2):
        model(torch.ones(2, WIDTH)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    local = model[0].weight.to_local()
    stored = sum(one.numel() * one.element_size() for one in tensors_of(local))
    moments = 2 * 4 * local.numel()
    expected = stored + moments
    freed(before, expected)
    got = grown(before)
    assert expected <= got <= expected + 4096, (mesh.get_local_rank(), got, stored, moments)
    managed = model[0]._get_fsdp_state()._fsdp_param_group.fsdp_params[0]
    assert managed._sharded_param_data is None
