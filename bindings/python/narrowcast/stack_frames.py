"""The functions that are running, from the innermost out: for questions about a caller that no
argument answers.
"""

import sys
from collections.abc import Iterator
from types import FrameType


def frames() -> Iterator[FrameType]:
    """Those of this thread."""
    frame = sys._getframe(1)
    while frame is not None:
        yield frame
        frame = frame.f_back


def modules() -> Iterator[str]:
    """The names of the modules whose functions they are."""
    return (frame.f_globals.get("__name__", "") for frame in frames())


def is_running(name: str) -> bool:
    """Whether a function of a name is, on this thread."""
    return any(frame.f_code.co_name == name for frame in frames())


def argument_of(name: str, argument: str = "self"):
    """What the innermost running function of a name was given; None if there is none."""
    return next((one.f_locals[argument] for one in frames() if one.f_code.co_name == name), None)
