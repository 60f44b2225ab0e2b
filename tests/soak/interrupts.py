"""Signals: handlers that raise within a step, and others that interrupt whatever runs."""

import signal

import torch

from interrupting import Interrupt, interrupted_at

# A rank that is interrupted there is outside of what the others hear of, or within a collective of
# another kind, and they would wait for it, as in any collective program: no line of these files is
# chosen where a step is collective, nor what this function calls, with which ranks agree.
OUTSIDE = ("optimizer/adam.py", "optimizer/observation.py")
AGREEING = "_agree"


def at_line(line: int, function, is_collective: bool) -> None:
    """Calls a function and raises at the line-th line of narrowcast's that it runs, if it runs so
    many; those where a collective function cannot be interrupted do not count.
    """
    interrupted_at(line, function, *([_is_outside] if is_collective else []))


def _is_outside(frame) -> bool:
    outside = frame.f_code.co_filename.endswith(OUTSIDE)
    while frame is not None and not outside:
        frame, outside = frame.f_back, frame.f_code.co_name == AGREEING
    return outside


def by_timer(seconds: float, function) -> None:
    """Calls a function, and a real signal comes after some time, within it or behind it."""

    def handle(*_):
        raise Interrupt

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        function()
        while True:
            pass
    except Interrupt:
        torch.set_grad_enabled(True)  # it may have come while torch's no_grad() was setting this
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def keep_coming(are_on: bool) -> None:
    """Signals whose handler does nothing, some hundred a second of work."""
    signal.signal(signal.SIGPROF, lambda *_: None)
    interval = 0.004 if are_on else 0
    signal.setitimer(signal.ITIMER_PROF, interval, interval)


class Network:
    """In the place of the module `casting`, for the reductions of steps alone: they fail while
    `is_broken`.
    """

    def __init__(self, casting):
        self._casting, self.is_broken = casting, False

    def __getattr__(self, name):
        return getattr(self._casting, name)

    def reducer(self, *arguments):
        begin = self._casting.reducer(*arguments)

        def reduce():
            if self.is_broken:
                raise ConnectionError("no network")
            return begin()

        return reduce
