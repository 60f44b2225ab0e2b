"""An example of each row of the operator table."""

import copy
import io
import pickle

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol
from torch import nn

import narrowcast as nc
from narrowcast.operators import table


def saved(q):
    file = io.BytesIO()
    torch.save(q, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def unflattened(q):
    names, context = q.__tensor_flatten__()
    inner = {name: getattr(q, name) for name in names}
    return nc.QuantizedTensor.__tensor_unflatten__(inner, context, q.shape, q.stride())


def filled(q, fill):
    """What an operation in place leaves, on a copy."""
    other = q.clone()
    fill(other)
    return other


def copy_by_lists(t):
    """To zero and back, beside a plain tensor."""
    before, plain = t.clone(), torch.ones(3)
    torch._foreach_zero_([t, plain])
    assert not t.any()
    assert not plain.any()
    torch._foreach_copy_([plain, t], [torch.ones(3), before])
    assert plain.all()


def averaged(q):
    """The middle between a weight with a master and zero."""
    if not isinstance(q, nc.QuantizedTensor):
        return q / 2
    weights = [nc.convert(_linear(q.dequantize()), q.format).weight.detach() for _ in range(2)]
    weights[0].zero_()
    return weights[0].lerp_(weights[1], 0.5).master


def merged(q):
    """The master after `w += x`, of a weight that had none."""
    sum = q.clone()
    sum += torch.full(q.shape, 1e-4)
    return sum.master if isinstance(sum, nc.QuantizedTensor) else sum


def assigned(q):
    other = torch.zeros_like(q)
    if isinstance(q, nc.QuantizedTensor):
        other = nc.quantize(other, q.format)
    other.data = q.clone()
    return other


def of_its_own_dtype(q):
    """A bf16 tensor asked for in bf16."""
    if not isinstance(q, nc.QuantizedTensor):
        return q
    narrow = q.to(torch.bfloat16)
    assert narrow.bfloat16() is narrow
    return narrow.bfloat16()


def _linear(value):
    layer = nn.Linear(*value.shape[::-1], bias=False)
    layer.weight = nn.Parameter(value)
    return layer


def received(q):
    """By a plain tensor."""
    plain = torch.zeros(q.shape)
    dist.all_gather_into_tensor(plain, q)
    return plain


def on_meta(q):
    meta = q.to("meta")
    return torch.empty_like(meta, device="cpu").copy_(q)


# An operation of each row as a function of q, a tensor of 3 x 2 units, and the unit. The expected
# value is that of the same function of q.dequantize(), where no other is given here.
EXAMPLES = {
    table.ALIAS: lambda q, u: q.detach(),
    table.CUT: lambda q, u: q[u:, :u],
    table.SHAPE: lambda q, u: q.view(3, u, 2 * u).flatten(0, 1).unsqueeze(0),
    table.TRANSPOSE: lambda q, u: q.t(),
    table.TRANSPOSE_EACH: lambda q, u: q.view(3, u, 2 * u).mT,
    table.PRODUCT: lambda q, u: torch.mm(torch.ones(3, 3 * u), q),
    table.NO_BOX: lambda q, u: q.expand(2, 3 * u, 2 * u),
    table.JOIN: lambda q, u: torch.cat([q[:u], q[2 * u :]]),
    table.REARRANGE: lambda q, u: q.flip(0),
    table.NEW_ZEROS: lambda q, u: q.new_zeros(u, u),
    table.NEW_EMPTY: lambda q, u: torch.empty_like(q).copy_(q),
    table.PLAIN_LIKE: lambda q, u: torch.zeros_like(q),
    table.CLONE: lambda q, u: copy.deepcopy(q.clone()),
    table.TO: lambda q, u: q.to("cpu", torch.float32, copy=True),
    table.SAME_DTYPE: lambda q, u: of_its_own_dtype(q),
    table.PIN: lambda q, u: q.pin_memory() if torch.cuda.is_available() else q.clone(),
    table.COPY: lambda q, u: torch.empty_like(q).copy_(q),
    table.COPY_VALUE: lambda q, u: torch.empty_like(q).copy_(torch.ones_like(q)),
    table.LISTS: lambda q, u: filled(q, copy_by_lists),
    table.WRITE_PART: lambda q, u: filled(q, lambda t: t[:u].zero_()),
    table.FILL: lambda q, u: filled(q, lambda t: t.fill_(1.0)),
    table.INITIALIZE: lambda q, u: nn.init.constant_(q.clone(), 1.0),
    table.META: lambda q, u: on_meta(q) if isinstance(q, nc.QuantizedTensor) else q,
    table.AVERAGE: lambda q, u: averaged(q),
    table.MERGE: lambda q, u: merged(q),
    table.DATA: lambda q, u: assigned(q),
    table.ARITHMETIC: lambda q, u: torch._foreach_lerp_([q.clone()], [torch.ones_like(q)], 0.5),
    table.SET: lambda q, u: q.clone().set_(torch.ones(3)),
    table.BROADCAST: lambda q, u: filled(q, lambda t: dist.broadcast(t, 0)),
    table.SEND: lambda q, u: received(q),
    table.RECEIVE: lambda q, u: dist.all_reduce(q),
    table.FULL: lambda q, u: funcol.all_gather_tensor(q, 0, dist.group.WORLD),
    table.STORAGE: lambda q, u: q.untyped_storage() and q,
    table.SHARED: lambda q, u: torch.tensor(q.clone().share_memory_().is_shared()),
    table.NO_MEMORY: lambda q, u: torch.tensor(q.tolist()),
    table.IS_PINNED: lambda q, u: torch.tensor(q.is_pinned()),
    table.RECORD_STREAM: lambda q, u: q,  # operators/test_exact_operations.py, where a GPU is
    table.EQUAL: lambda q, u: torch.tensor(torch.equal(q, q.clone()) and not torch.equal(q, q[:u])),
    table.PICKLE: lambda q, u: pickle.loads(pickle.dumps(saved(q))),
    table.FLATTEN: lambda q, u: unflattened(q) if isinstance(q, nc.QuantizedTensor) else q,
    table.TRANSFORM: lambda q, u: torch.vmap(lambda row: row @ q)(torch.ones(3, 3 * u)),
    table.EXPORT: lambda q, u: q,  # tests/python/operators/test_matmul.py
    table.COMPILE: lambda q, u: q,  # tests/python/compile/test_compile.py
}
