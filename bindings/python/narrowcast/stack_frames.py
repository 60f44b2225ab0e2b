"""The questions that the stack of Python answers, because torch leaves no other way: these two."""

import sys
from collections.abc import Iterator
from types import FrameType


def _frames() -> Iterator[FrameType]:
    """Those of this thread, from the innermost out."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def is_dcp_state_init() -> bool:
    """Whether torch.distributed.checkpoint makes state by the present step of an optimizer: it sets
    gradients of zeros and a learning rate of 0, and calls step(), which would be counted, rounded
    and remembered in histories like any other. A schedule may begin at 0, too, and a rank may have
    gradients of zeros alone.
    """
    dcp = sys.modules.get("torch.distributed.checkpoint.state_dict")  # slow to import
    return dcp is not None and any(
        frame.f_code is dcp._init_optim_state.__code__ for frame in _frames()
    )


# By the beginnings of their modules' names.
_REPEATING = "torch.utils.checkpoint", "torch.distributed.pipelining."


def is_repeated() -> bool:
    """Whether a forward is that of a checkpoint, which computes it again, or of a pipeline, which
    keeps what a backward has gathered. A model that calls torch.utils.checkpoint itself, and the
    schedule of a pipeline, leave no other trace before the first gather.
    """
    names = (frame.f_globals.get("__name__", "") for frame in _frames())
    return any(name.startswith(_REPEATING) for name in names)
