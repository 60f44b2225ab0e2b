"""Models whose weights are cut over ranks, beside the whole ones that they must equal."""

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

import narrowcast as nc
from internals import is_unaligned
from models import BUFFERS, WHOLE_STATE, assert_same, same
from narrowcast.tensor import dtensors
from weights import quantized, value_of

BY_SHARD = ("rowwise_data", "rowwise_scale_inv", "tensor_amax")


def cut_into_columns(mesh, inputs, outputs):
    """A plain layer, of which each rank has some columns, with a gradient."""
    layer = nn.Linear(inputs, outputs, bias=False, device=mesh.device_type)
    fully_shard(layer, mesh=mesh, shard_placement_fn=lambda _: Shard(1))
    layer(torch.ones(1, inputs, device=mesh.device_type)).sum().backward()
    return layer


def part_of(whole, parameter):
    """What this rank has of a whole tensor."""
    shape, offset = dtensors.box(parameter)
    for dim, (size, begin) in enumerate(zip(shape, offset, strict=True)):
        whole = whole.narrow(dim, begin, size)
    return whole


def matrices_of(whole, parameter):
    """The same of a QuantizedTensor, by matrices: some rows of each are no box of the stack."""
    shape, offset = dtensors.box(parameter)
    if len(shape) < 3:
        return [part_of(whole, parameter)]
    first, row, column = offset
    every = whole[first : first + shape[0]].unbind()
    return [one[row : row + shape[1]].narrow(1, column, shape[2]) for one in every]


def assert_part(parameter, whole, names, what):
    local = dtensors.local_of(parameter)
    if not isinstance(local, nc.QuantizedTensor):
        assert same(value_of(local), part_of(value_of(whole), parameter)), what
    if not isinstance(local, (nc.QuantizedTensor, nc.MasterWeight)) or is_unaligned(local):
        return  # plain, or with bytes that are no part of the whole's
    local, whole = quantized(local), quantized(whole)
    names = [name for name in names if getattr(local, name) is not None]
    own = local.unbind() if local.dim() == 3 else [local]
    for mine, expected in zip(own, matrices_of(whole, parameter), strict=True):
        assert_same(mine, expected, names, what)
    assert same(local.history, whole.history), what


def give_gradients(model, whole):
    """The whole model gets the same gradients: sums over ranks round."""
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        w.grad = p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad.clone()


def assert_parts(model, whole, optimizers, what):
    """Weights and moments are the parts of a whole model's. `optimizers`: of both."""
    is_sharded = any(isinstance(module, FSDPModule) for module in model.modules())
    names = BY_SHARD if is_sharded else BUFFERS
    for (name, p), w in zip(model.named_parameters(), whole.parameters(), strict=True):
        assert_part(p, w, names, f"{what} {name}")
        mine, others = (one.state[q] for one, q in zip(optimizers, (p, w), strict=True))
        for key in others.keys() - set(WHOLE_STATE):
            assert same(dtensors.local_of(mine[key]), part_of(others[key], p)), (what, name, key)
