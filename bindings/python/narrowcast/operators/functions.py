"""torch functions on QuantizedTensors that must be seen above autograd; questions about them."""

import torch

from narrowcast.operators.arithmetic import note_reads
from narrowcast.operators.common import run_on_values
from narrowcast.tensor import QuantizedTensor, by_data
from narrowcast.tensor.dispatch import as_torch_does, handles, implements

aten = torch.ops.aten


@handles(torch.Tensor.float, torch.Tensor.bfloat16, torch.Tensor.half, torch.Tensor.double)
def _to_plain(func, args, kwargs):
    """The value; but a bfloat16 or float16 weight that is asked for in its own dtype, as torchtitan
    asks experts before a product, is as it is, and the backward decodes it anew.
    """
    tensor, *rest = args
    if _OWN.get(func) == tensor.dtype:
        return tensor
    if torch.is_grad_enabled():
        note_reads(tensor)
    return func(tensor.dequantize(torch.float32), *rest, **kwargs)


_OWN = {torch.Tensor.bfloat16: torch.bfloat16, torch.Tensor.half: torch.float16}


@handles(torch.Tensor.share_memory_)
def _share_memory(func, args, kwargs):
    for tensor in args[0]._store.tensors:
        tensor.share_memory_()
    return args[0]


@handles(torch._has_compatible_shallow_copy_type)
def _replace(func, args, kwargs):
    """nn.Module asks this before it puts a converted tensor in a parameter's place."""
    tensor, converted = args
    if isinstance(tensor, QuantizedTensor) and not isinstance(converted, QuantizedTensor):
        raise TypeError(
            f"{tensor.describe()}: module.float(), .half(), .bfloat16() and .double() would put a "
            "plain tensor in the place of a quantized weight. Use module.to(dtype), which changes "
            "the weight's logical dtype (float32, bfloat16 or float16) and keeps its bytes; for "
            "another dtype nc.to_plain(model) first"
        )
    if _are_interchangeable(tensor, converted) and by_data.is_given(tensor, converted):
        return True
    return as_torch_does(func, args, kwargs)


@handles(torch.Tensor.data.__set__)
def _assign_data(func, args, kwargs):
    """Torch gives the wrapper the value's dtype, and here its bytes come too."""
    tensor, value = args
    if not isinstance(tensor, QuantizedTensor):
        return as_torch_does(func, args, kwargs)
    tensor._store.check_written()
    if not _are_interchangeable(tensor, value):
        raise NotImplementedError(
            f"{tensor.describe()}: assigning to .data replaces the bytes, and takes a whole weight "
            "of the same format, shape and device. Use weight.copy_(value) under torch.no_grad(); "
            "before a library does so "
            "(torch.nn.utils.prune.remove; peft's merges of DoRA, IA3 and others, and "
            "safe_merge=True), nc.to_plain(model), and nc.convert again"
        )
    by_data.note_taken(value)
    if tensor is not value:
        as_torch_does(func, args, kwargs)
        tensor.set_view(value._view)
    return None


def _are_interchangeable(*pair: torch.Tensor) -> bool:
    """Whether both are whole weights of one format, shape and device, in the same usages."""
    if not all(isinstance(one, QuantizedTensor) and one._view.is_whole for one in pair):
        return False
    facts = [(one.format, one.shape, one.device, one._store.bytes.usages) for one in pair]
    return facts[0] == facts[1]


# ---- questions ----


@implements(aten.is_pinned.default)
def _is_pinned(func, args, kwargs):
    return all(buffer.is_pinned() for buffer in args[0]._store.tensors)


@implements(aten.record_stream.default)
def _record_stream(func, args, kwargs):
    tensor, stream = args
    for buffer in tensor._store.tensors:
        buffer.record_stream(stream)


@implements(aten.equal.default)
def _equal(func, args, kwargs):
    """Of decoded values, of a usage that is there."""
    return run_on_values(func, args, kwargs, lambda one: one.decode(one.dtype, one._view.usages[0]))
