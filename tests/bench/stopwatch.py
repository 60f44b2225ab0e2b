"""Host time of calls, as medians of samples taken while the device is kept busy."""

import contextlib
import gc
import statistics
import time

import torch


class Stopwatch:
    """Times calls on the host while the device is kept busy."""

    def __init__(self, device: str, samples: int):
        self.device, self.samples = device, samples
        self.cycles = 20_000_000  # some 10 ms

    def microseconds(self, *works) -> list[float]:
        """Median microseconds of each of some functions, called in turn, each with what the one
        before has returned.
        """
        samples = []
        with _undisturbed():
            # The first calls load kernels and take memory: no device needs to be busy for so long.
            for _ in range(3):
                _seconds(works)
            while len(samples) < self.samples:
                if sample := self._sample(works):
                    samples.append(sample)
        return [1e6 * statistics.median(seconds) for seconds in zip(*samples, strict=True)]

    def _sample(self, works):
        """The seconds of each, or None if the device was idle before the host was through."""
        busy = self._occupy()
        seconds = _seconds(works)
        if busy is not None and busy.query():
            if self.cycles > 2**36:
                raise RuntimeError("the host waits for the device: its time cannot be told")
            self.cycles *= 2
            return None
        return seconds

    def _occupy(self):
        if self.device == "cpu":
            return None
        torch.cuda.synchronize()
        torch.cuda._sleep(self.cycles)
        event = torch.cuda.Event()
        event.record()
        return event


def _seconds(works) -> list[float]:
    seconds, result = [], None
    for work in works:
        begin = time.perf_counter()
        result = work(result)
        seconds.append(time.perf_counter() - begin)
    return seconds


@contextlib.contextmanager
def _undisturbed():
    """No collection of garbage, and one thread: waking others can take longer than the call."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        torch.set_num_threads(threads)
