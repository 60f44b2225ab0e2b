"""The operator table: which operations there are, and what each format does with them.

Handlers are entered by row (narrowcast.tensor.dispatch.implements), and `narrowcast operators`
prints the rows; so what is documented is what runs. An operation is exact on the bytes, an
identity, a view that is only read, or an error with its reason. What is in no row is arithmetic
(narrowcast.operators.arithmetic): out of place it makes a plain tensor, in place it is an error.
"""

import dataclasses
from collections.abc import Callable
from functools import partial

import torch

from narrowcast.registry import Format, Outcome


@dataclasses.dataclass(frozen=True)
class Row:
    """`title`: the operations by the names of their callers; `rule`: a format's outcome;
    `operators`: what torch makes of them.
    """

    title: str
    rule: Callable[[Format], Outcome]
    operators: tuple


ROWS: list[Row] = []


def _row(title: str, rule: Callable[[Format], Outcome], operators: str) -> Row:
    """`operators`: names in torch.ops, in aten and of the default overload where none is named."""
    ROWS.append(Row(title, rule, tuple(map(_operator, operators.split()))))
    return ROWS[-1]


def _operator(name: str):
    name, _, overload = name.partition(".")
    namespace, _, packet = name.rpartition("::")
    return getattr(getattr(getattr(torch.ops, namespace or "aten"), packet), overload or "default")


def _by_format(title: str, rule: str, operators: str = "") -> Row:
    """The outcome is that which each format brings (narrowcast.registry.Rules)."""
    return _row(title, lambda format: getattr(format.rules, rule), operators)


def _always(kind: str, title: str, text: str, operators: str = "") -> Row:
    """The outcome is that of every format."""
    outcome = Outcome(kind, text)
    return _row(title, lambda format: outcome, operators)


_exact, _identity, _error = (partial(_always, kind) for kind in ("exact", "identity", "error"))

# ---- views ----

ALIAS = _identity("detach, alias", "the same bytes", "detach alias lift_fresh")
CUT = _by_format(
    "slice, narrow, split, chunk, select, unbind, as_strided",
    "cut",
    "slice.Tensor split.Tensor split_with_sizes select.int unbind.int as_strided",
)
SHAPE = _exact(
    "view, reshape, flatten, unflatten, squeeze, unsqueeze",
    "of leading dimensions; the last one stays, and view(-1) is a flat view",
    "view _unsafe_view _reshape_alias squeeze squeeze.dim squeeze.dims unsqueeze",
)


def _transpose(format: Format) -> Outcome:
    rule = format.rules.transpose
    return Outcome("read", rule.text) if rule.kind == "error" else rule


TRANSPOSE = _row("t, transpose, permute, T, mT", _transpose, "t transpose.int permute")
TRANSPOSE_EACH = _always(
    "read",
    "transpose, mT of the last two of three dimensions",
    "the bytes are those of one matrix, of which this transposes parts",
)
NO_BOX = _error(
    "expand, diagonal, unfold, view of another dtype",
    "the result is no box of rows and columns; to the tensor's own shape: itself",
    "expand diagonal unfold view.dtype",
)

# ---- products ----

PRODUCT = _exact(
    "F.linear, F.grouped_mm, matmul, mm, bmm, addmm, baddbmm, mv",
    "a plain tensor, of the decoded values that the pass reads; the backward decodes anew",
    "mm bmm mv addmm baddbmm linear matmul _grouped_mm",
)

# ---- new tensors and copies ----

JOIN = _by_format("cat, stack", "join", "cat stack")
REARRANGE = _error(
    "repeat, flip, rot90, roll, index_select, w[list], gather, take, masked_select",
    "rows or columns in another order, or again, would be other blocks",
    "repeat flip rot90 roll index_select index.Tensor gather take masked_select",
)
NEW_ZEROS = _by_format("new_zeros", "make", "new_zeros")
NEW_EMPTY = _by_format("new_empty, empty_like, to_empty", "make", "new_empty empty_like")
PLAIN_LIKE = _exact(
    "zeros_like, ones_like, full_like, rand_like, randn_like",
    "a plain tensor: gradients and moments are made like this",
    "zeros_like ones_like full_like rand_like randn_like",
)
CLONE = _exact(
    "clone, contiguous, copy.deepcopy", "bytes, scales and master in memory of their own", "clone"
)
TO = _exact(
    "to, cpu, cuda (device, float32, bfloat16, float16)",
    "the bytes on the device; the logical dtype changes no byte",
    "_to_copy",
)
PIN = _exact("pin_memory", "the bytes in pinned memory", "_pin_memory")
SAME_DTYPE = _identity(
    "bfloat16(), half() of a weight of that dtype", "as it is; float(), double() and others decode"
)
COPY = _exact(
    "copy_ from the same format",
    "bytes and master; each usage of the target must be in the source or follow",
    "copy_",
)
COPY_VALUE = _exact(
    "copy_ from another format or a plain tensor",
    "the bytes of nc.quantize(value); with a master, that is set to the value",
)
LISTS = _exact(
    "torch._foreach_copy_, torch._foreach_zero_",
    "copy_ and zero_, tensor by tensor",
    "_foreach_copy_ _foreach_zero_",
)
WRITE_PART = _by_format("copy_, fill_, zero_ of values into a cut", "write_part")

# ---- writing ----

FILL = _exact(
    "fill_, zero_, uniform_, normal_",
    "in place: the master, if there is one, and the bytes of the value",
    "fill_.Scalar fill_.Tensor zero_ uniform_ normal_",
)
INITIALIZE = _exact(
    "nn.init functions", "the high-precision value, with a plain tensor's random numbers; one cast"
)
META = _exact(
    "meta device: fully_shard, to_empty, nn.init", "shapes alone on meta, then as any weight"
)
AVERAGE = _exact(
    "torch.optim.swa_utils.AveragedModel; lerp_, torch._foreach_lerp_ of weights with masters",
    "of the masters: an average moves by less than a format tells apart",
    "lerp_.Scalar lerp_.Tensor _foreach_lerp_.List _foreach_lerp_.Scalar _foreach_lerp_.ScalarList",
)
MERGE = _exact(
    "w += x, w -= x of a tensor of w's shape, as peft merges",
    "of the master, which a weight without one gets: no part of x is lost in rounding",
    "add_.Tensor sub_.Tensor",
)
DATA = _exact(
    "w.data = q of w's format and shape", "w has q's bytes, master and logical dtype from then on"
)
ARITHMETIC = _error(
    "other arithmetic in place: add_ of a number, with alpha or of another shape, mul_, clamp_, "
    "lerp_ without masters, ..., torch._foreach_add_, _mul_, ...",
    "in place: the bytes of a block depend on all its values; optimizers: nc.FusedAdam",
)
SET = _error(
    "set_, resize_",
    "the bytes lie in several buffers, which no one storage holds",
    "set_.source_Storage set_.source_Storage_storage_offset set_.source_Tensor set_ resize_",
)

# ---- other ranks ----

BROADCAST = _exact(
    "dist.broadcast, dist.scatter; distribute_tensor and ZeroRedundancyOptimizer, by these",
    "buffers and master travel, if all ranks have them alike; else an error on every rank",
    "c10d::broadcast_ c10d::scatter_",
)
SEND = _exact(
    "dist.send, gather, all_gather, all_to_all, reduce_scatter of a weight into plain tensors",
    "the values that arithmetic reads travel",
)
RECEIVE = _error(
    "dist.recv, reduce, all_reduce, gather, all_to_all, reduce_scatter, all_gather_into_tensor "
    "into a weight",
    "codes and scales lie in several buffers; a plain tensor can receive, and copy_ sets the value",
)
FULL = _exact(
    "full_tensor() of a shard",
    "a plain tensor: the masters, or the decoded values where none is kept",
    "_c10d_functional::all_gather_into_tensor constant_pad_nd",
)

# ---- questions ----

STORAGE = _identity(
    "untyped_storage, data_ptr",
    "the storage of the first buffer, which FSDP2 compares; its address of a parameter, else 0",
)
SHARED = _exact(
    "share_memory_, is_shared",
    "of every buffer and the master; a write through the weight then makes the bytes at once",
)
NO_MEMORY = _error(
    "numpy, tolist, DLPack, apply_, map_", "no memory holds the values, only their codes"
)
IS_PINNED = _exact("is_pinned", "whether all buffers are", "is_pinned")
RECORD_STREAM = _exact("record_stream", "of every buffer; none is made anew", "record_stream")
EQUAL = _exact(
    "equal, also to a plain tensor", "equal bytes; if they differ, equal decoded values", "equal"
)

# ---- protocols ----

PICKLE = _exact(
    "pickle, torch.save, torch.load(weights_only=True)",
    "bytes, scales (float32 ones as such) and master",
)
FLATTEN = _exact(
    "__tensor_flatten__, __tensor_unflatten__", "the buffers, what spans the tensor, and the master"
)
TRANSFORM = _exact(
    "torch.vmap, torch.func.grad, jvp, linearize, functional_call, ..., and forward-mode "
    "differentiation",
    "of products with decoded values; derivatives are those of the forward's values",
)
EXPORT = _exact(
    "torch.export, make_fx, torch.jit.trace",
    "as it is; run_decompositions of weights that require no gradient, which it takes apart",
)
COMPILE = _exact(
    "torch.compile of a model",
    "one graph: its inputs are the buffers, which products decode",
)
