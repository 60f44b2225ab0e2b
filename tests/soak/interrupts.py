"""Signals: handlers that raise within a step, and others that interrupt whatever runs."""

import signal

import torch

from interrupting import Interrupt, interrupted_at
from narrowcast.ranks import reduction

# Where a rank whose shard is empty runs other lines than the rest: lines there do not count, so
# that all ranks are interrupted at one place.
OUTSIDE = ("flat/stale.py", "flat/exchange.py", "tensor/casting.py")
OUTSIDE += ("tensor/store.py", "tensor/unaligned.py", "tensor/dtensors.py")


def at_line(line: int, function) -> None:
    """Calls a function and raises at the line-th line of narrowcast's that it runs, if it runs so
    many.
    """
    interrupted_at(line, function, lambda frame: frame.f_code.co_filename.endswith(OUTSIDE))


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
    """Makes the reductions of steps, which fail while `is_broken`."""

    is_broken = False

    def reduction(self, identity, group):
        """In the place of a Reduction."""
        all_reduce = reduction._all_reduce
        reduction._all_reduce = lambda *arguments: self._breakable(all_reduce(*arguments))
        try:
            return reduction.Reduction(identity, group)
        finally:
            reduction._all_reduce = all_reduce

    def _breakable(self, begin):
        def reduce():
            if self.is_broken:
                raise ConnectionError("no network")
            return begin()

        return reduce
