"""The same products where torch traces: one opaque operator of a weight's buffers, so that no graph
moves the decoding into another pass (docs/decisions/0008).
"""

import torch

from narrowcast import registry
from narrowcast._C import Bytes
from narrowcast.operators.common import bound
from narrowcast.registry import USAGES, buffers_of
from narrowcast.tensor import QuantizedTensor, buffers, compiling
from narrowcast.tensor.region import rows_of
from narrowcast.tensor.transposed import strided

_library = torch.library.Library("narrowcast", "FRAGMENT")
_library.define(
    "product_with_view(str name, Tensor?[] operands, int place, float[] factors, Tensor data, "
    "Tensor scale, Tensor? amax, Tensor? present, str format, int usage, ScalarType dtype, "
    "int[] shape, int[] stride, int first) -> Tensor"
)
_FACTORS = ("beta", "alpha")


def run(func, args, kwargs, dtype: torch.dtype | None, backward: bool) -> torch.Tensor:
    """A product of ATen as the operator; `dtype`: of its plain operands, if it has some."""
    values = bound(func, args, kwargs)
    if values.pop("out_dtype", None) is not None:
        raise NotImplementedError(
            f"{func} of a QuantizedTensor with an out_dtype, in a compiled function: leave it out, "
            "and use .to(dtype) of the product"
        )
    factors = [float(values.pop(name)) for name in _FACTORS if name in values]
    operands = [values[one.name] for one in func._schema.arguments if one.name in values]
    *others, place = (at for at, one in enumerate(operands) if isinstance(one, QuantizedTensor))
    for other in others:
        one = operands[other]
        operands[other] = one._view.read(dtype or one.dtype, backward).reshape(one.shape)
    weight, operands[place] = operands[place], None
    store = weight._store
    store.refresh()  # outside of traces, where autograd does not decompose F.linear
    usage = store.product_usage(backward)
    data, scale = map(store.bytes.buffer, buffers_of(usage))
    return torch.ops.narrowcast.product_with_view(
        *(func._schema.name, operands, place, factors, data, scale, store.bytes.amax),
        *(store.present, store.format.name, USAGES.index(usage), dtype or weight.dtype),
        *(weight.shape, weight.stride(), weight._view.first),
    )


def _product(name, operands, place, factors, value) -> torch.Tensor:
    operands = [value if at == place else one for at, one in enumerate(operands)]
    operator = getattr(torch.ops.aten, name.removeprefix("aten::"))
    return operator(*operands, **dict(zip(_FACTORS, factors, strict=False)))


def _run(
    name, operands, place, factors, data, scale, amax, present, format, usage, dtype, *view
) -> torch.Tensor:
    facts, matrix = registry.format(format), compiling.matrix_of(format, usage, data)
    stored = [None] * 4
    stored[2 * usage : 2 * usage + 2] = data, scale
    rows = rows_of(*view, facts.step([USAGES[usage]])[0], *matrix)
    part = buffers.part(Bytes(facts, *matrix, stored, amax, None), rows, [USAGES[usage]])
    value = torch.ops.narrowcast.dequantize(  # which sees whether the usage has come
        *map(part.buffer, buffers_of(USAGES[usage])), amax, present, format, usage, dtype
    )
    return _product(name, operands, place, factors, strided(value, rows, *view))


@compiling.on_meta("product_with_view")
def _shape(name, operands, place, factors, data, scale, amax, present, format, usage, dtype, *view):
    shape, stride, _ = view
    value = data.new_empty_strided(shape, stride, dtype=dtype)
    return _product(name, operands, place, factors, value)


for _device in ("CPU", "CUDA"):
    _library.impl("product_with_view", _run, _device)
