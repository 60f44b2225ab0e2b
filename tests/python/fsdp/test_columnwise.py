"""A columnwise that is a rearrangement is made for whoever asks, and for nobody else: a gathered
weight has room for rowwise alone, and its backward gives the same bits.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import bytes_of
from models import assert_same, one_of_each, same, uneven_rows

TESTED_FORMATS = [
    name
    for name in one_of_each(lambda f: (f.rowwise.block, f.rowwise.scale_pad, f.columnwise_derived))
    if nc.format(name).columnwise_derived
]
COLUMNWISE = ("columnwise_data", "columnwise_scale_inv")


def make(mesh, format, uneven=False, **options):
    torch.manual_seed(0)
    rows = uneven_rows(format) if uneven else 512
    rows += -rows % nc.format(format).group
    layer = nn.Linear(256, rows, bias=False)
    value = layer.weight.detach().clone()
    nc.convert(layer, format, **options).to(mesh.device_type)
    fully_shard(layer, mesh=mesh, reshard_after_forward=True)
    return layer, nc.quantize(value.to(mesh.device_type), format)


def rowwise_bytes(format, rows, columns):
    """Those of each rank; a scale of the whole tensor is there already."""
    f = nc.format(format)
    gathered = [b for b in (0, 1) if not f.is_spanning(b)]
    shapes = [(f.buffer_shape(b, rows, columns), f.buffer_dtype(b)) for b in gathered]
    return sum(math.prod(shape) * dtype.itemsize for shape, dtype in shapes)


def storages(tensors):
    """Bytes of the different storages."""
    found = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in tensors}
    return sum(found.values())


@pytest.mark.parametrize("recompute", [False, True])
@ranks.on(2)
def test_room_for_rowwise_alone(mesh, format, recompute):
    """What FSDP2 allocates for the weight: at most a payload and what is put in order from it."""
    layer, whole = make(mesh, format, recompute=recompute)
    layer.unshard()
    (parameter,) = layer._get_fsdp_state()._fsdp_param_group.fsdp_params
    slots = [*parameter.all_gather_outputs, *parameter._unsharded_inner_tensors]
    need = rowwise_bytes(format, *whole.shape)
    assert need <= storages(slots) <= 1.25 * need + 4096
    gathered = bytes_of(layer.weight)
    assert gathered.usages == ("rowwise",)
    assert gathered.buffers[2:] == (None, None)


@pytest.mark.parametrize(("world", "uneven"), [(2, False), (3, True)])
@ranks.on("world")
def test_on_demand(mesh, format, uneven):
    """Columnwise, on demand: that of the whole weight, and nothing is left behind."""
    layer, whole = make(mesh, format, uneven)
    layer.unshard()
    weight = layer.weight.detach()
    for name in COLUMNWISE:
        assert same(getattr(weight, name), getattr(whole, name)), name
    for dtype in (torch.float32, torch.bfloat16):
        value = weight.dequantize(dtype, usage="columnwise")
        assert same(value, whole.dequantize(dtype, usage="columnwise"))
        assert same(value, whole.dequantize(dtype))
    assert bytes_of(weight).usages == ("rowwise",)
    step = nc.format(format).row_step
    part = weight[step:]
    assert_same(part, whole[step:].clone(), COLUMNWISE)
    layer.reshard()
    with pytest.raises(ValueError, match="freed"):
        weight.columnwise_data  # noqa: B018


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@ranks.on(2)
def test_backward(mesh, format, dtype):
    """Of a gathered weight, and of a whole one that has columnwise bytes alone."""
    layer, whole = make(mesh, format)
    generator = torch.Generator().manual_seed(mesh.get_local_rank())
    x = torch.randn(6, 256, generator=generator).to(mesh.device_type, dtype).requires_grad_()
    output = layer(x)
    gradient = torch.randn(output.shape, generator=generator).to(output)
    output.backward(gradient)
    own = x.detach().clone().requires_grad_()
    value = whole.dequantize()
    columnwise = nc.quantize(value, format, rowwise=False)
    if nc.format(format).amax != "delayed":
        assert same(columnwise.dequantize(usage="columnwise"), value)
    F.linear(own, nn.Parameter(columnwise)).backward(gradient)
    assert same(x.grad, own.grad)
    assert same(x.grad, gradient @ whole.dequantize(dtype, usage="columnwise"))
