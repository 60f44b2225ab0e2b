"""The operator table: which operations there are, and by which rule each format decides them.

Handlers are entered by row (narrowcast.tensor.dispatch.implements), and `narrowcast operators`
prints the rows; so what is documented is what runs. An operation is exact on the bytes, an
identity, or an error with its reason. What is in no row is arithmetic: out of place it makes a
plain tensor of decoded values, in place it is an error.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch

from narrowcast.operators import rules
from narrowcast.operators.rules import always
from narrowcast.registry import Format, Outcome

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True)
class Row:
    """`title`: the operations by the names of their callers; `rule`: a format's outcome;
    `operators`: what torch makes of them.
    """

    title: str
    rule: Callable[[Format], Outcome]
    operators: tuple


ROWS: list[Row] = []


def _row(title: str, rule, *operators) -> Row:
    ROWS.append(Row(title, rule, operators))
    return ROWS[-1]


# ---- views ----

ALIAS = _row(
    "detach, alias",
    always("identity", "the same bytes"),
    *(aten.detach.default, aten.alias.default, aten.lift_fresh.default),
)
CUT = _row(
    "slice, narrow, split, chunk, select, unbind, as_strided",
    rules.of_format("cut"),
    *(aten.slice.Tensor, aten.split.Tensor, aten.split_with_sizes.default, aten.select.int),
    *(aten.unbind.int, aten.as_strided.default),
)
SHAPE = _row(
    "view, reshape, flatten, unflatten, squeeze, unsqueeze",
    always("exact", "of leading dimensions; the last one stays, and view(-1) is a flat view"),
    *(aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default),
    *(aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.unsqueeze.default),
)
TRANSPOSE = _row(
    "t, transpose, permute, T, mT",
    rules.of_format("transpose"),
    *(aten.t.default, aten.transpose.int, aten.permute.default),
)
NO_BOX = _row(
    "expand, diagonal, unfold, view of another dtype",
    always("error", "the result is no box of rows and columns; to the tensor's own shape: itself"),
    *(aten.expand.default, aten.diagonal.default, aten.unfold.default, aten.view.dtype),
)

# ---- new tensors and copies ----

JOIN = _row("cat, stack", rules.of_format("join"), aten.cat.default, aten.stack.default)
REARRANGE = _row(
    "repeat, flip, rot90, roll, index_select, w[list], gather, take, masked_select",
    always("error", "rows or columns in another order, or again, would be other blocks"),
    *(aten.repeat.default, aten.flip.default, aten.roll.default, aten.index_select.default),
    *(aten.index.Tensor, aten.gather.default, aten.take.default, aten.masked_select.default),
    aten.rot90.default,
)
NEW_ZEROS = _row("new_zeros", rules.of_format("make"), aten.new_zeros.default)
NEW_EMPTY = _row(
    "new_empty, empty_like, to_empty",
    rules.of_format("make"),
    *(aten.new_empty.default, aten.empty_like.default),
)
PLAIN_LIKE = _row(
    "zeros_like, ones_like, full_like, rand_like, randn_like",
    always("exact", "a plain tensor: gradients and moments are made like this"),
    *(aten.zeros_like.default, aten.ones_like.default, aten.full_like.default),
    *(aten.rand_like.default, aten.randn_like.default),
)
CLONE = _row(
    "clone, contiguous, copy.deepcopy",
    always("exact", "bytes, scales and master in memory of their own"),
    aten.clone.default,
)
TO = _row(
    "to, cpu, cuda (device, float32, bfloat16, float16)",
    always("exact", "the bytes on the device; the logical dtype changes no byte"),
    aten._to_copy.default,
)
PIN = _row("pin_memory", always("exact", "the bytes in pinned memory"), aten._pin_memory.default)
COPY = _row(
    "copy_ from the same format",
    always("exact", "bytes and master; each usage of the target must be in the source or follow"),
    aten.copy_.default,
)
COPY_VALUE = _row(
    "copy_ from another format or a plain tensor",
    always("exact", "the bytes of nc.quantize(value); with a master, that is set to the value"),
)
LISTS = _row(
    "torch._foreach_copy_, torch._foreach_zero_",
    always("exact", "copy_ and zero_, tensor by tensor"),
    *(aten._foreach_copy_.default, aten._foreach_zero_.default),
)
WRITE_PART = _row("copy_, fill_, zero_ of values into a cut", rules.of_format("write_part"))

# ---- writing ----

FILL = _row(
    "fill_, zero_, uniform_, normal_",
    always("exact", "in place: the master, if there is one, and the bytes of the value"),
    *(aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default),
    *(aten.uniform_.default, aten.normal_.default),
)
INITIALIZE = _row(
    "nn.init functions",
    always("exact", "the high-precision value, with a plain tensor's random numbers; one cast"),
)
META = _row(
    "meta device: fully_shard, to_empty, nn.init",
    always("exact", "shapes alone on meta, then as any weight"),
)
ARITHMETIC = _row(
    "add_, mul_, lerp_, clamp_, ... and torch._foreach_add_, _mul_, _lerp_, ...",
    always("error", "in place: the bytes of a block depend on all its values"),
)
SET = _row(
    "set_, resize_",
    always("error", "the bytes lie in several buffers, which no one storage holds"),
    *(aten.set_.source_Storage, aten.set_.source_Storage_storage_offset),
    *(aten.set_.source_Tensor, aten.set_.default, aten.resize_.default),
)

# ---- questions ----

STORAGE = _row(
    "untyped_storage, data_ptr",
    always("identity", "the storage of the first buffer, which FSDP2 compares; the address 0"),
)
SHARED = _row("share_memory_, is_shared", always("exact", "of every buffer"))
NO_MEMORY = _row(
    "numpy, tolist, __dlpack__, apply_, map_",
    always("error", "no memory holds the values, only their codes"),
)
IS_PINNED = _row("is_pinned", always("exact", "whether all buffers are"), aten.is_pinned.default)
RECORD_STREAM = _row(
    "record_stream",
    always("exact", "of every buffer; none is made anew"),
    aten.record_stream.default,
)
EQUAL = _row(
    "equal, of two quantized tensors",
    always("exact", "equal bytes; if they differ, equal values"),
    aten.equal.default,
)

# ---- protocols ----

PICKLE = _row(
    "pickle, torch.save, torch.load(weights_only=True)",
    always("exact", "bytes, scales (float32 ones as such) and master"),
)
FLATTEN = _row(
    "__tensor_flatten__, __tensor_unflatten__",
    always("exact", "the buffers, what spans the tensor, and the master"),
)
COMPILE = _row(
    "torch.compile of a model",
    always("exact", "one graph: its inputs are the buffers, and a product is one operator"),
)
