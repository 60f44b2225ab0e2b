"""A QuantizedTensor as plain tensors and facts, and back, for pickling."""

import torch

from narrowcast.tensor import buffers

# The tensors of a QuantizedTensor, by their attributes' names.
BUFFERS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
SPANNING = ("tensor_amax", "history")


def arguments_of(tensor) -> tuple:
    """The arguments of narrowcast.tensor.rebuild: format, shape, dtype, the tensors (None where
    absent), name, recompute, partial, the rows and columns that a flat view keeps, requires_grad,
    whether it is a parameter, and matmul.
    """
    view, config = tensor._view, tensor._view.store.config
    view.store.check_aligned(
        "be saved by itself. It can be left out of a sharded checkpoint "
        "(StateDictOptions(ignore_frozen_params=True)), or saved in a full one "
        "(full_state_dict=True), or be its own master (nc.convert(..., trainable=True))"
    )
    facts = view.store.format.name, tuple(tensor.shape), tensor.dtype
    partial = view.store.partial or not view.is_whole
    options = config.name, config.recompute, partial, flattened(tensor)
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    tensors = buffers.tensors_of(view.operand())
    return *facts, tensors, *options, tensor.requires_grad, is_parameter, config.matmul


def flattened(tensor) -> tuple[int, int] | None:
    """The rows and columns that a flat view keeps; None of any other tensor."""
    return tensor._view.region.shape if tensor.is_flat else None
