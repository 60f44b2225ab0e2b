"""Fuzzes the loading of QuantizedTensors: the parts of well-formed ones are changed at random, and
no input may crash, take more than a second, or fail with words that name no weight; what is taken
is what was given, and can be used.

    python tests/fuzz/fuzz_parts.py [--seconds N] [--inputs N] [--seed N] [--only NUMBER]

Inputs run in a child process, which tells this one where it is; so a crash is one input's, and the
next child goes on behind it. --only runs the input of that number in this process.
"""

import argparse
import contextlib
import mmap
import os
import signal
import struct
import sys
import time
import traceback
import warnings

import torch

import parts_target
from parts import Mutator

MOST_SECONDS = 1
HANG = 20  # seconds in which no input ends
MOST_FAILURES = 10


class Progress:
    """What both processes see: the number of the input that runs, how many were taken, and how many
    have failed.
    """

    _FIELDS = struct.Struct("QQQ")

    def __init__(self):
        self._memory = mmap.mmap(-1, self._FIELDS.size)

    def get(self) -> tuple[int, int, int]:
        return self._FIELDS.unpack(self._memory[:])

    def add(self, numbers: int, taken: int, failures: int) -> None:
        added = (numbers, taken, failures)
        self._memory[:] = self._FIELDS.pack(
            *(a + b for a, b in zip(self.get(), added, strict=True))
        )


def run_one(mutator: Mutator, number: int) -> tuple[bool, str | None]:
    """Whether an input is taken, and what is wrong if it fails."""
    rng, arguments, changes = mutator.input(number)
    start, taken = time.process_time(), False
    try:
        taken = parts_target.run(rng, arguments)
        problem = None
    except Exception:
        problem = traceback.format_exc()
    if problem is None and time.process_time() - start > MOST_SECONDS:
        problem = "takes more than a second"
    return taken, problem and f"{problem}\nchanged: {'; '.join(changes)}"


def run_inputs(mutator: Mutator, options, progress: Progress, end: float) -> None:
    """In the child."""
    torch.set_num_threads(1)
    while (number := progress.get()[0]) < options.inputs and time.monotonic() < end:
        taken, problem = run_one(mutator, number)
        if problem is not None:
            print(f"FAILED: input {number} of seed {options.seed}: {problem}", flush=True)
        progress.add(1, taken, problem is not None)
        if progress.get()[2] >= MOST_FAILURES:
            return


def wait_for(child: int, report, progress: Progress) -> str | None:
    """Until the child ends, or is ended because it hangs. What has happened, if it did not end as
    it should.
    """
    last, since = progress.get()[0], time.monotonic()
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            break
        time.sleep(0.02)
        report()
        if progress.get()[0] != last:
            last, since = progress.get()[0], time.monotonic()
        if time.monotonic() - since > HANG:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return "hangs"
    if os.WIFSIGNALED(status):
        return f"ends by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"ends with status {os.WEXITSTATUS(status)}" if os.WEXITSTATUS(status) else None


def run(options) -> int:
    """The exit status."""
    mutator, progress = Mutator(options.seed), Progress()
    start, said = time.monotonic(), [time.monotonic()]
    end = start + options.seconds

    def report(always=False):
        if always or time.monotonic() - said[0] > 10:
            said[0] = time.monotonic()
            (inputs, taken, failures), passed = progress.get(), said[0] - start
            print(
                f"{passed:6.0f} s: {inputs} inputs, {inputs / max(passed, 1e-9):.0f} a second; "
                f"{taken} taken; {failures} failures",
                flush=True,
            )

    while True:
        number, _, failures = progress.get()
        if number >= options.inputs or time.monotonic() >= end or failures >= MOST_FAILURES:
            break
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            with contextlib.suppress(KeyboardInterrupt):
                run_inputs(mutator, options, progress, end)
            sys.stdout.flush()
            os._exit(0)
        problem = wait_for(child, report, progress)
        if problem is not None:
            number = progress.get()[0]
            print(f"FAILED: input {number} of seed {options.seed} {problem}", flush=True)
            progress.add(1, 0, 1)
    report(always=True)
    return 1 if progress.get()[2] else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--inputs", type=int, default=2**63)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, metavar="NUMBER")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    if options.only is None:
        return run(options)
    mutator = Mutator(options.seed)
    print("changed:", *mutator.input(options.only)[2], sep="\n  ")
    taken, problem = run_one(mutator, options.only)
    print(problem or ("taken" if taken else "refused"))
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
