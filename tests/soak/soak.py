"""Trains small models on several ranks for a long time, while gradients are missing or not finite,
signals come, ranks write, save and load, and numbers of ranks change; after every action all bytes
are compared with those of one process that saw the same.

    python tests/soak/soak.py [--seconds N] [--rounds N] [--seed N] [--ranks N] [--only NUMBER]
                              [--device cuda] [--fault NAME]

--only runs the round of that number again. --fault breaks something in the ranks (faults.py), to
see that it is found.
"""

import argparse
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from pathlib import Path

import torch

sys.path.append(str(Path(__file__).parents[1] / "python" / "support"))

import setups
from faults import FAULTS
from rounds import MismatchError, Round  # they use the reference of the tests
from world import RankError, World


class Worlds:
    """Ranks by their number, made when they are first needed."""

    def __init__(self, folder: str, fault: str | None, patience: float):
        self._arguments, self._all = (Path(folder), fault, patience), {}

    def __call__(self, size: int) -> World:
        if size not in self._all:
            self._all[size] = World(size, *self._arguments)
        return self._all[size]

    def stop(self) -> None:
        for world in self._all.values():
            world.stop()
        self._all = {}


class Soak:
    def __init__(self, options, worlds: Worlds):
        self.options, self.worlds = options, worlds
        self.counts: Counter = Counter()
        self.start = self._said = time.monotonic()

    def run(self) -> None:
        options, number = self.options, 0
        while number < options.rounds and time.monotonic() - self.start < options.seconds:
            self.one(number)
            number += 1
            if self.counts["failures"] >= options.failures:
                return
            if time.monotonic() - self._said > 10:
                self.report()

    def one(self, number: int) -> None:
        options = self.options
        most = options.most_ranks or (4 if options.device == "cpu" else options.ranks)
        setup = setups.draw(options.seed, number, options.ranks, most, options.device)
        one = Round(setup, options.seed, number, self.worlds)
        try:
            one.run()
        except (MismatchError, RankError) as error:
            self._fail(one, number, str(error))
        except Exception:
            self._fail(one, number, traceback.format_exc())
        self.counts.update(one.counts)
        self.counts["rounds"] += 1

    def _fail(self, one: Round, number: int, problem: str) -> None:
        """The ranks may wait for each other: the next round has new ones."""
        self.worlds.stop()
        self.counts["failures"] += 1
        options = self.options
        again = f"--seed {options.seed} --ranks {options.ranks} --device {options.device}"
        if options.most_ranks:
            again += f" --most-ranks {options.most_ranks}"
        happened = "\n".join(f"  {n}: {action}" for n, action in enumerate(one.done))
        where = f"round {number} of seed {options.seed}, action {len(one.done) - 1}"
        print(
            f"FAILED: {where}: {problem}\n{one.setup}\n{happened}\n"
            f"again: soak.py {again} --only {number}",
            flush=True,
        )

    def report(self) -> None:
        self._said = time.monotonic()
        counts = self.counts
        print(
            f"{self._said - self.start:6.0f} s: {counts['rounds']} rounds, "
            f"{counts['optimizer steps']} steps, {counts['comparisons']} comparisons; "
            f"{counts['failures']} failures",
            flush=True,
        )

    def report_kinds(self) -> None:
        general = ("rounds", "optimizer steps", "comparisons", "failures")
        kinds = sorted((kind, n) for kind, n in self.counts.items() if kind not in general)
        print("; ".join(f"{kind}: {n}" for kind, n in kinds))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rounds", type=int, default=2**63)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument(
        "--most-ranks", type=int, help="that load; default: 4, or as many as train on GPUs"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--only", type=int, metavar="NUMBER")
    parser.add_argument("--failures", type=int, default=10, help="so many are the end")
    parser.add_argument("--patience", type=float, default=60, help="seconds that an action has")
    parser.add_argument("--fault", choices=FAULTS, help="planted in the ranks, to be found")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        worlds = Worlds(folder, options.fault, options.patience)
        soak = Soak(options, worlds)
        try:
            soak.run() if options.only is None else soak.one(options.only)
        finally:
            worlds.stop()
    soak.report_kinds()
    soak.report()
    return 1 if soak.counts["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
