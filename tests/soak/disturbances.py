"""Disturbances: signals whose handler does nothing, and reductions that fail."""

import signal

from narrowcast.ranks import reduction


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
