"""The ranks beside the oracle: which part of which shard is not what it should be."""

import numpy as np

from oracle import RESTORED, WINDOW, WRITTEN, Oracle, Parameter, Shard
from trainee import PARTS, digest

_SHOWN = 6


def differences(oracle: Oracle, seen: list[list[dict]]) -> tuple[list[str], int]:
    """Sentences, and how many things were compared. seen[rank][parameter]: digests."""
    found, count = [], 0
    for index, parameter in enumerate(oracle.parameters):
        for rank, shard in enumerate(parameter.shards):
            got = seen[rank][index]
            wanted = _wanted(oracle, parameter, shard, got)
            count += len(wanted)
            found += [
                f"{part} of {parameter.name} on rank {rank} is {got.get(part)}, not {value}"
                for part, value in wanted.items()
                if got.get(part) != value
            ]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return found[:_SHOWN] + more, count


def _wanted(oracle: Oracle, parameter: Parameter, shard: Shard, got: dict) -> dict:
    wanted = {"steps": shard.step, "master": digest(parameter.master[shard.rows])}
    for moment in ("exp_avg", "exp_avg_sq"):
        wanted[moment] = digest(getattr(parameter, moment)[shard.rows])
    if parameter.format is None:
        return wanted
    if shard.state != RESTORED:  # when the bytes of a saved state are made, nobody can tell
        wanted["is stale"] = shard.state == WRITTEN
    if parameter.is_delayed:
        none = np.zeros(2 + WINDOW, np.float32)
        wanted["history"] = digest(none if shard.history is None else shard.history.values())
    if not got["is stale"] and shard.end > shard.begin and shard.state != WRITTEN:
        for part in PARTS:
            value = getattr(shard.bytes, part)
            wanted[part] = None if value is None else digest(value)
    return wanted
