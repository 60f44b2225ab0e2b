"""A round: a model is made, things happen to it, and after each the ranks are compared with one
process that saw the same.
"""

import copy
import random
import tempfile
from collections import Counter

import numpy as np

import actions
import setups
from actions import Action, State
from beginning import oracle_of
from expected import differences
from oracle import Oracle
from trainee import digest
from twin import Twin

ACTIONS = 24  # of a round


class MismatchError(Exception):
    """Ranks are not what one process is."""


class Round:
    """`worlds(size)`: so many ranks. What happened is in `done`."""

    def __init__(self, setup, seed: int, number: int, worlds):
        self.setup, self._seed, self._worlds = setup, f"{seed} {number}", worlds
        self.done: list[Action] = []
        self.counts: Counter = Counter()
        self._twin = Twin(setup)
        self.oracle = oracle_of(setup)
        count = len(self.oracle.parameters)
        frozen = next(n for n, p in enumerate(self.oracle.parameters) if p.is_frozen)
        self.state = State(setup, setup.worlds[0], count, frozen)
        self._saved: tuple[str, Oracle] | None = None

    def run(self) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self._opened = set()
            self._folder = folder
            self.world = self._open(self.setup.worlds[0])
            for index in range(ACTIONS):
                rng = random.Random(f"{self._seed} {index}")
                action = actions.draw(rng, self.state)
                self.done.append(action)
                self._act(action, index)
                self.counts.update([action.kind, *action.traits])
            for size in self._opened:
                self._worlds(size).ask("end")

    def _open(self, size: int):
        world = self._worlds(size)
        if size not in self._opened:
            self._opened.add(size)
            world.begin(self.setup, self._folder)
        return world

    def _act(self, action: Action, index: int) -> None:
        facts = dict(action.facts)
        if action.kind == "save":
            facts["name"] = str(index)
        if action.kind == "load":
            facts["name"] = self._saved[0]
            facts["scale"] = {"scale": self.oracle.scale, "_growth_tracker": self.oracle.good}
            self.world = self._open(action.facts["world"])
        answers = self.world.ask(action.kind, facts)
        came = [answer["came"] for answer in answers]
        seen = [answer["seen"] for answer in answers]
        seen = getattr(self, f"_after_{action.kind}")(action.facts, came, seen) or seen
        self._compare(seen)

    def _compare(self, seen: list) -> None:
        found, count = differences(self.oracle, seen)
        self.counts["comparisons"] += count
        if found:
            raise MismatchError("; ".join(found))

    def _expect(self, what: str, got, wanted) -> None:
        self.counts["comparisons"] += 1
        if got != wanted:
            raise MismatchError(f"{what}: {got}, not {wanted}")

    # ---- what actions mean ----

    def _after_step(self, facts: dict, came: list[dict], seen: list) -> None:
        gradients = self._gradients(facts, came)
        if facts.get("scaler") is not None:
            self.counts["optimizer steps"] += 1
            shards = [one for parts in gradients for one in parts if one is not None]
            bad = not all(np.isfinite(one).all() for one in shards)
            self.oracle.update_scale(bad)
            if bad:
                return
        broken = facts.get("broken", False)
        for rank, one in enumerate(came):
            wanted = "ConnectionError: no network" if broken else None
            self._expect(f"what rank {rank} raised", one["error"], wanted)
        self.oracle.step(gradients, broken)
        self.state.has_tables = True
        self.counts["optimizer steps"] += 1

    def _gradients(self, facts: dict, came: list[dict]) -> list[list]:
        """Of each parameter and rank, as one process has them; the ranks have the same."""
        if facts["source"] == "backward":
            self.oracle.agree()
            whole = self._backward(facts, came)
        else:
            whole = [
                None
                if p.is_frozen
                else setups.noise(p.value.shape, facts["seed"] + n, facts["size"])
                for n, p in enumerate(self.oracle.parameters)
            ]
        self._spoil(whole, facts)
        scale = np.float32(self.oracle.scale if facts.get("scaler") else 1)
        missing, gradients = facts.get("missing", []), []
        for index, (parameter, one) in enumerate(zip(self.oracle.parameters, whole, strict=True)):
            parts = []
            for rank, shard in enumerate(parameter.shards):
                absent = one is None or index in missing
                part = None if absent else one[shard.rows]
                parts.append(part)
                wanted = None if absent else digest(part * scale)
                if "bad" not in facts:
                    name = f"gradient of {parameter.name} on rank {rank}"
                    self._expect(name, came[rank]["gradients"][index], wanted)
            gradients.append(parts)
        return gradients

    def _spoil(self, whole: list, facts: dict) -> None:
        if "bad" in facts:
            index, value, where = facts["bad"]
            whole[index] = whole[index].copy()
            whole[index][int(where * len(whole[index]))] = float(value)

    def _backward(self, facts: dict, came: list[dict]) -> list:
        loss = self._twin.loss(self.oracle, facts["seed"])
        for rank, one in enumerate(came):
            self._expect(f"loss on rank {rank}", one["loss"], digest(loss))
        return self._twin.gradients(loss)

    def _after_forward(self, facts: dict, came: list[dict], seen: list) -> None:
        self.oracle.agree()
        loss = digest(self._twin.loss(self.oracle, facts["seed"]))
        for rank, one in enumerate(came):
            self._expect(f"loss on rank {rank}", one["loss"], loss)

    def _after_unshard(self, facts: dict, came: list[dict], seen: list) -> None:
        self.oracle.agree()
        for parameter in self.oracle.parameters:
            if parameter.format is None:
                continue
            value = digest(parameter.decoded("rowwise"))
            for rank, one in enumerate(came):
                name = f"gathered {parameter.name} on rank {rank}"
                self._expect(name, one["values"][parameter.name], value)

    def _after_write(self, facts: dict, came: list[dict], seen: list) -> None:
        weights = [p for p in self.oracle.parameters if p.format is not None]
        parameter = weights[facts["weight"]]
        whole = setups.noise(parameter.value.shape, facts["seed"], facts["size"])
        for shard in parameter.shards:
            if shard.end > shard.begin:
                parameter.write(shard, whole[shard.rows])

    def _after_options(self, facts: dict, came: list[dict], seen: list) -> None:
        self.oracle.options[facts["group"]].update(facts["options"])

    def _after_resharding(self, facts: dict, came: list[dict], seen: list) -> None:
        pass

    def _after_save(self, facts: dict, came: list[dict], seen: list) -> None:
        self._saved = str(len(self.done) - 1), copy.deepcopy(self.oracle)
        self.state.saved = facts["way"]

    def _after_load(self, facts: dict, came: list[dict], seen: list):
        """A checkpoint keeps one number of steps for all shards."""
        scale, good = self.oracle.scale, self.oracle.good
        shared = facts["way"] == "checkpoint"
        self.oracle = self._saved[1].loaded(facts["world"], shared, seen)
        self.oracle.scale, self.oracle.good = scale, good
        self.state.world = facts["world"]
        self.state.has_tables &= not facts["fresh"]
        if not shared:
            return None
        answers = self.world.ask("forward", {"seed": 1})
        self._after_forward({"seed": 1}, [answer["came"] for answer in answers], [])
        return [answer["seen"] for answer in answers]
