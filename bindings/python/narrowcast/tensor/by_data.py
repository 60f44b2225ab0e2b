"""How nn.Module puts a converted tensor in a parameter's place: by `.data`, as with plain ones.
With that the parameter keeps its hooks (DistributedDataParallel's, Megatron's) and may have weak
references. Tensors that can be taken apart it swaps instead, so until it has been assigned the
converted one cannot.
"""

import functools

import torch


def is_given(parameter: torch.Tensor, converted: torch.Tensor) -> bool:
    """Whether it does so now. Then the converted tensor cannot be taken apart."""
    others = torch.__future__  # its other ways
    if (
        others.get_swap_module_params_on_conversion()
        or others.get_overwrite_module_params_on_conversion()
        or parameter.is_meta
        or converted.is_meta  # for which torch makes a parameter anew
    ):
        return False
    _become(converted, _undivided(type(converted)))
    return True


def note_taken(converted: torch.Tensor) -> None:
    """It can be taken apart again."""
    if kind := getattr(converted, "divided_kind", None):
        _become(converted, kind)


def _become(tensor: torch.Tensor, kind: type) -> None:
    tensor.__class__ = kind


@functools.cache
def _undivided(kind: type) -> type:
    """The same class, without what takes its tensors apart."""

    def flatten(tensor):
        raise AttributeError

    own = {"__slots__": (), "__tensor_flatten__": property(flatten), "divided_kind": kind}
    return type(kind.__name__, (kind,), own)
