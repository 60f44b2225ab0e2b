"""What torch.compile is told: functions that it shall call and not look into, and the shapes of our
operators.
"""

import itertools

import torch
from torch._C._dynamo import eval_frame

from narrowcast import _C, registry  # _C defines the operators


def leave_alone(function) -> None:
    """Has torch.compile run a function, and all that it calls, as it is. torch.compiler.disable
    does so too, by a wrapper that would cost each call more than most of ours take.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


_PROXY = torch._C._TorchDispatchModeKey.PROXY


def check_write(what: str) -> None:
    """NotImplementedError in a trace (of torch.compile, make_fx or torch.jit): bytes are made by no
    operator, and whether they are stale is no tensor.
    """
    proxies = torch._C._get_dispatch_mode(_PROXY)
    if proxies or torch.jit.is_tracing() or torch._guards.TracingContext.try_get():
        raise NotImplementedError(
            f"{what}: a compiled function cannot write to it, because its graph would not know "
            "that the bytes are to be made anew. Write outside of it, or in a function under "
            "torch.compiler.disable"
        )


def matrix_of(format: str, usage: int, data: torch.Tensor) -> tuple[int, int]:
    """The rows and columns of a matrix from the data of a usage."""
    layout = getattr(registry.format(format), registry.USAGES[usage])
    outer, inner = data.shape[0], data.shape[1] * 8 // layout.element_bits
    return (inner, outer) if layout.transposed else (outer, inner)


# Kernels for meta tensors, which traces ask too. torch.library.register_fake would enter the same,
# and look through the files of all loaded modules for the place of each: a tenth of a second.
_META = torch.library.Library("narrowcast", "IMPL", "Meta")


def on_meta(name: str):
    """Enters a function as an operator's kernel."""

    def enter(function):
        _META.impl(name, function)
        return function

    return enter


@on_meta("dequantize")
def _dequantize(data, scale, amax, present, format, usage, dtype, operands):
    return data.new_empty(matrix_of(format, usage, data), dtype=dtype)


def buffer_shape(facts: registry.Format, buffer: int, rows, columns) -> tuple:
    """facts.buffer_shape, also of sizes that a trace has not decided upon."""
    if isinstance(rows, int) and isinstance(columns, int):
        return facts.buffer_shape(buffer, rows, columns)
    layout = facts.columnwise if buffer in registry.buffers_of("columnwise") else facts.rowwise
    if buffer not in registry.SCALES:
        outer, inner = (columns, rows) if layout.transposed else (rows, columns)
        return outer, inner * layout.element_bits // 8
    if layout.block == "tensor":
        return (1,)
    (per_rows, per_columns), pads = layout.scale_per, layout.scale_pad
    scales = -(-rows // per_rows), -(-columns // per_columns)
    if layout.scale_transposed:
        scales = scales[::-1]
    return tuple(-(-size // pad) * pad for size, pad in zip(scales, pads, strict=True))


def _cast(value, format, rowwise, columnwise):
    facts = registry.format(format)
    usages = itertools.compress(registry.USAGES, (rowwise, columnwise))
    made = [
        value.new_empty(buffer_shape(facts, buffer, *value.shape), dtype=facts.buffer_dtype(buffer))
        for usage in usages
        for buffer in registry.buffers_of(usage)
    ]
    return made + [value.new_empty(1, dtype=torch.float32)] * facts.tensor_amax


for _name in ("cast", "cast_stochastic"):
    _META.impl(_name, _cast)


@on_meta("scaled_product")
def _scaled_product(a, a_format, a_usage, a_over_rows, b, b_format, b_usage, b_over_rows, *rest):
    kept = (
        matrix_of(format, usage, operand[0])[over_rows]
        for operand, format, usage, over_rows in (
            (a, a_format, a_usage, a_over_rows),
            (b, b_format, b_usage, b_over_rows),
        )
    )
    *_, dtype = rest
    return a[0].new_empty(tuple(kept), dtype=dtype)


def _scaled_gradients(gradient, weight, format, usage, present, input, of_input, of_weight, dtype):
    made, matmul = [], registry.format(format).matmul
    if of_input:
        _, columns = matrix_of(format, usage, weight[0])
        made.append(gradient.new_empty(gradient.shape[0], columns))
    if of_weight:
        _, columns = matrix_of(matmul.input, 1, input[0])
        made.append(gradient.new_empty(gradient.shape[1], columns, dtype=dtype))
    return made


for _name in ("scaled_gradients", "scaled_gradients_stochastic"):
    _META.impl(_name, _scaled_gradients)

del _C
