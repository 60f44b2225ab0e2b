"""What may happen between two looks at the ranks, drawn from the seed of a round."""

import random
from dataclasses import dataclass, field
from typing import Any

import narrowcast as nc
import setups


@dataclass(frozen=True)
class Action:
    """`kind`: what happens; `facts`: how. Equal on all ranks, and printed where something fails."""

    kind: str
    facts: dict[str, Any] = field(default_factory=dict)
    traits: tuple[str, ...] = ()  # for the count at the end

    def __str__(self):
        return f"{self.kind}({', '.join(f'{k}={v!r}' for k, v in self.facts.items())})"


@dataclass
class State:
    """What the draw depends on. `has_tables`: the optimizer has taken a step."""

    setup: setups.Setup
    world: int
    count: int
    frozen: int
    has_tables: bool = False
    saved: str | None = None  # how

    @property
    def format(self):
        return nc.format(self.setup.format)

    @property
    def spans(self) -> bool:
        """Whether a step is collective."""
        return self.format.tensor_amax and self.world > 1

    @property
    def can_scale(self) -> bool:
        """On CUDA torch's scaler looks at no bfloat16 gradients."""
        return not (self.setup.is_bf16 and self.setup.device == "cuda")


KINDS = {"step": 12, "forward": 2, "unshard": 2, "write": 3, "options": 1, "resharding": 1}
KINDS |= {"save": 3, "load": 4}


def draw(rng: random.Random, state: State) -> Action:
    kind = rng.choices([*KINDS], KINDS.values())[0]
    if kind == "step":
        return _step(rng, state)
    if kind == "write":
        return _write(rng, state)
    if kind == "options":
        return Action("options", {"group": rng.randrange(2), "options": setups.options(rng)})
    if kind == "resharding" and _may_reshard(state):
        return Action("resharding", {"after_forward": rng.random() < 0.5})
    if kind == "save":
        way = "checkpoint" if rng.random() < 0.6 else "own files"
        return Action("save", {"way": way}, (f"save in {way}",))
    if kind == "load" and state.saved is not None:
        return _load(rng, state)
    if kind == "unshard":
        return Action("unshard")
    return Action("forward", {"seed": rng.getrandbits(32)})


def _may_reshard(state: State) -> bool:
    return state.setup.recompute or state.format.gather == "rowwise"


def _write(rng: random.Random, state: State) -> Action:
    """To all shards of a weight."""
    facts = {
        "weight": rng.randrange(3),
        "seed": rng.getrandbits(32),
        "size": rng.choice((0.01, 0.1, 3.0)),
    }
    return Action("write", facts)


def _load(rng: random.Random, state: State) -> Action:
    """What several ranks wrote together, any number of ranks may load."""
    facts = {"fresh": rng.random() < 0.7, "world": state.world, "way": state.saved}
    traits = [f"load from {state.saved}"]
    if state.saved == "checkpoint":
        facts["world"] = rng.choice(state.setup.worlds)
    if facts["world"] != state.world:
        facts["fresh"] = True
        traits.append(f"load on {facts['world']} of {state.world} ranks")
    return Action("load", facts, tuple(traits))


def _step(rng: random.Random, state: State) -> Action:
    # A mean over three ranks is rounded, and no single process would see the same.
    backward = state.world != 3 and rng.random() < 0.5
    facts: dict[str, Any] = {
        "source": "backward" if backward else "drawn",
        "seed": rng.getrandbits(32),
        "size": rng.choice((1e-3, 1.0, 30.0)),
    }
    traits = [f"{facts['source']} gradients"]
    disturbance = rng.choice(("none", "scaler", "broken", "none"))
    if disturbance == "scaler" and state.can_scale:
        _scale(rng, state, facts, traits)
    if rng.random() < 0.5:
        _take_away(rng, state, facts, traits)
    if disturbance == "broken" and state.spans and state.has_tables:
        facts["broken"] = True
        traits.append("reduction fails")
    return Action("step", facts, tuple(traits))


def _scale(rng: random.Random, state: State, facts: dict, traits: list) -> None:
    facts["scaler"] = rng.choice(("fused", "unscale"))
    traits.append(f"GradScaler, {facts['scaler']}")
    if rng.random() < 0.5:
        facts["bad"] = (_trained(rng, state), rng.choice(("nan", "inf", "-inf")), rng.random())
        traits.append("gradient not finite")


def _trained(rng: random.Random, state: State) -> int:
    return rng.choice([one for one in range(state.count) if one != state.frozen])


def _take_away(rng: random.Random, state: State, facts: dict, traits: list) -> None:
    """Gradients that are missing, on all ranks. The last parameter always has one."""
    bad = facts.get("bad", (None,))[0]
    missing = [
        one
        for one in range(state.count - 1)
        if one not in (state.frozen, bad) and rng.random() < 0.4
    ]
    if missing:
        facts["missing"] = missing
        traits.append("gradients missing")
