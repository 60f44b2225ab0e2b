"""Times of several works, all in turn, so that a machine's drift falls on each of them alike."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence

import torch

from narrowcast.benchmark import report

_UNTIMED = 2  # rounds, in which kernels are loaded and tables made


@dataclasses.dataclass(frozen=True)
class Times:
    """Medians in seconds: of the work, and of the host until it has handed the work over. With the
    work's lower and upper quartile.
    """

    seconds: float
    host: float
    quartiles: tuple[float, float]


def in_turn(works: Sequence[Callable], rounds: int, device: str) -> list[Times]:
    samples = [[] for _ in works]
    progress = report.Progress()
    for number in range(_UNTIMED + rounds):
        progress.tell(f"round {max(0, number - _UNTIMED)} of {rounds}")
        for work, times in zip(works, samples, strict=True):
            sample = _seconds(work, device)
            if number >= _UNTIMED:
                times.append(sample)
    return [_times(*zip(*times, strict=True)) for times in samples]


def _times(seconds, host) -> Times:
    several = seconds if len(seconds) > 1 else seconds * 2
    lower, median, upper = statistics.quantiles(several, n=4, method="inclusive")
    return Times(median, statistics.median(host), (lower, upper))


def _seconds(work: Callable, device: str) -> tuple[float, float]:
    """Of the work, by the device, and of the host."""
    if device == "cpu":
        begin = time.perf_counter()
        work()
        return (time.perf_counter() - begin,) * 2
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    before = time.perf_counter()
    work()
    host = time.perf_counter() - before
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3, host
