"""What a round is about, drawn from its seed: the same in all processes."""

import random
from dataclasses import dataclass

import numpy as np

import narrowcast as nc

_MOST_ROWS = 256


@dataclass(frozen=True)
class Setup:
    """`worlds`: numbers of ranks that the model is trained on in the round, the first one first;
    `width`, `hidden`: of the model; `signals`: ranks that get signals all the time.
    """

    format: str
    worlds: tuple[int, ...]
    width: int
    hidden: int
    device: str
    is_bf16: bool
    reshard: bool
    recompute: bool
    bf16_state: bool
    options: dict
    signals: tuple[int, ...]
    scale: float


def draw(seed: int, number: int, ranks: int, most_ranks: int, device: str) -> Setup:
    """Formats take turns, of those that have small weights for so many ranks. `ranks`: that begin;
    `most_ranks`: that load what others have saved.
    """
    rng = random.Random(f"setup {seed} {number}")
    formats = [one for one in map(nc.format, nc.formats()) if _rows(one, (ranks,))]
    if not formats:
        raise ValueError(f"no format has a small weight that {ranks} ranks can have shards of")
    format = formats[(number + seed) % len(formats)]
    others = range(1, most_ranks + 1)
    worlds, rows = (ranks,), []
    for extra in ((rng.choice(others), rng.choice(others)), (1,), ()):
        worlds = tuple(dict.fromkeys((ranks, *extra)))
        if rows := _rows(format, worlds):
            break
    return Setup(
        format=format.name,
        worlds=worlds,
        width=_one_of(rng, rows),
        hidden=_one_of(rng, rows),
        device=device,
        is_bf16=rng.random() < 0.25,
        reshard=rng.random() < 0.7,
        recompute=rng.random() < 0.3,
        bf16_state=rng.random() < 0.4,
        options=options(rng),
        signals=tuple(rank for rank in range(4) if rng.random() < 0.4),
        scale=2.0 ** rng.randint(2, 12),
    )


def options(rng: random.Random) -> dict:
    """Of the optimizer."""
    return {
        "lr": rng.choice((1e-2, 1e-3, 0.1)),
        "betas": rng.choice(((0.9, 0.95), (0.8, 0.999))),
        "eps": rng.choice((1e-8, 1e-6)),
        "weight_decay": rng.choice((0.0, 0.1)),
        "decoupled_weight_decay": rng.random() < 0.5,
        "rounding": rng.choice(("nearest", "stochastic")),
        "seed": rng.choice((0, 7, 2**64 - 2)),
    }


def _rows(format, worlds) -> list[int]:
    """Numbers of rows, and of columns, that every number of ranks can have shards of."""
    least = max(format.row_step, 8)
    return [rows for rows in range(least, _MOST_ROWS + 1) if _fits(format, rows, worlds)]


def _fits(format, rows: int, worlds) -> bool:
    try:
        for world in worlds:
            if world > 1 and -(-rows // world) % format.shard_row_step:
                return False
            for begin, end in bounds(rows, world):
                for usage in ("rowwise", "columnwise"):
                    format.check_holds(usage, end - begin, rows)
    except ValueError:
        return False
    return True


def _one_of(rng: random.Random, rows: list[int]) -> int:
    """Small ones are quick; those that are no multiple of 8 leave shards uneven."""
    small = [one for one in rows if one <= max(64, rows[0])]
    uneven = [one for one in rows if one % 8 and one <= 2 * small[-1]]
    return rng.choice(uneven if uneven and rng.random() < 0.5 else small)


def bounds(rows: int, world: int) -> list[tuple[int, int]]:
    """The rows of each rank, as fully_shard cuts them."""
    step = -(-rows // world)
    return [(min(rank * step, rows), min((rank + 1) * step, rows)) for rank in range(world)]


def noise(shape, seed: int, size: float) -> np.ndarray:
    """float32 values that bfloat16 holds, the same in every process; a few are large."""
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(np.float32) * np.float32(size)
    values[rng.random(shape) < 0.01] *= 64
    return (values.view(np.uint32) & 0xFFFF0000).view(np.float32).reshape(shape)
