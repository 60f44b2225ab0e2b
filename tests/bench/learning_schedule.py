"""How far a run of learning.py has come, by steps or by the time that it has trained."""

import math
import time

import torch
import torch.distributed as dist

import processes

WARMUP = 0.05  # of a run of steps
WARMUP_STEPS = 100  # of a timed run: the same in every mode, however long its steps take
FIRST_RATE = 0.01  # of the highest learning rate, at least: a rate of 0 would teach nothing
LAST_RATE = 0.1  # of it: where the cosine ends
AGREED_EVERY = 4  # steps of a timed run
EVALUATIONS = 20  # of a timed run


def learning_rate(done: float, highest: float, warm: float | None = None) -> float:
    """A linear warm-up, then half a cosine. `done`: the share of the run that is behind; `warm`:
    that of the warm-up, if it is not WARMUP of the run.
    """
    warm = done / WARMUP if warm is None else warm
    turn = math.pi * min(1.0, max(0.0, done - WARMUP) / (1 - WARMUP))
    cosine = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(turn)) / 2
    return highest * max(FIRST_RATE, min(1.0, warm)) * cosine


class Clock:
    """The seconds that a run has trained, without those of evaluations."""

    def __init__(self, device: str):
        self.device, self.begin, self.stopped = device, 0.0, 0.0

    @property
    def seconds(self) -> float:
        """Until now, by the host, which may be some steps ahead of the device."""
        return time.perf_counter() - self.begin

    def start(self):
        """Goes on from where it was stopped."""
        self.begin = time.perf_counter() - self.stopped

    def stop(self) -> float:
        """Once the device is through; the seconds until then."""
        processes.wait(self.device)
        self.stopped = self.seconds
        return self.stopped


class BySteps:
    """A run of a number of steps, evaluated after every so many and at the end."""

    def __init__(self, steps: int, every: int):
        self.steps, self.every = steps, every

    def shares(self, clock):
        """For each step the share of the run that is behind when it ends; None, where the held-out
        text is to be evaluated.
        """
        for number in range(1, self.steps + 1):
            yield number / self.steps
            if number % self.every == 0 or number == self.steps:
                yield None

    def __str__(self):
        return f"{self.steps} steps"


class ByTime:
    """A run of some minutes, evaluated at equal shares of them and at the end.

    The share is that of rank 0's clock. It is sent from host to host, so no device waits for it,
    and all ranks take the same rates and end with the same step.
    """

    def __init__(self, minutes: float, world: int):
        self.minutes = minutes
        # A group of its own: with NCCL's the host would wait for the device.
        self.hosts = dist.new_group(backend="gloo") if world > 1 else None

    def shares(self, clock):
        """As those of BySteps; steps between two agreements have the share of the first."""
        share, evaluated = 0.0, 0
        while share < 1:
            for _ in range(AGREED_EVERY):
                yield share
            share = self._agreed(clock.seconds / (60 * self.minutes))
            if int(share * EVALUATIONS) > evaluated:
                evaluated = int(share * EVALUATIONS)
                yield None

    def _agreed(self, share: float) -> float:
        if self.hosts is None:
            return share
        sent = torch.tensor(share, dtype=torch.float64)
        dist.broadcast(sent, 0, group=self.hosts)
        return sent.item()

    def __str__(self):
        return f"{self.minutes:g} minutes"
