"""Exceptions at a chosen line of narrowcast, as a handler of a signal may raise them anywhere."""

import sys
from pathlib import Path

import narrowcast as nc

PACKAGE = str(Path(nc.__file__).parent)
# They leave what C has switched: there a handler runs behind the call alone, a trace before it too.
SWITCHES = ("tensor/dispatch.py", "tensor/wrapper.py")


class Interrupt(BaseException):
    """What the handler raises."""


def interrupted_at(line, function, is_outside=lambda frame: False):
    """Calls a function and raises at the line-th line of narrowcast's that it runs. Whether it came
    so far. `is_outside`: of a frame; its lines do not count.
    """
    left = line

    def trace(frame, event, _):
        nonlocal left
        file = frame.f_code.co_filename
        if left < 0 or not file.startswith(PACKAGE) or file.endswith(SWITCHES):
            return None
        if is_outside(frame):
            return None
        if event == "line":
            left -= 1
            if left < 0:
                raise Interrupt
        return trace

    sys.settrace(trace)
    try:
        function()
    except Interrupt:
        return True
    finally:
        sys.settrace(None)
    return False
