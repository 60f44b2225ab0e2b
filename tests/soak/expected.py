"""The ranks beside the oracle: which part of which shard is not what it should be."""

from oracle import Oracle, Parameter, Shard
from trainee import PARTS, digest

_SHOWN = 6


def differences(oracle: Oracle, seen: list[list[dict]]) -> tuple[list[str], int]:
    """Sentences, and how many things were compared. seen[rank][parameter]: digests."""
    found, count = [], 0
    for index, parameter in enumerate(oracle.parameters):
        for rank, shard in enumerate(parameter.shards):
            got = seen[rank][index]
            wanted = _wanted(parameter, shard)
            count += len(wanted)
            found += [
                f"{part} of {parameter.name} on rank {rank} is {got.get(part)}, not {value}"
                for part, value in wanted.items()
                if got.get(part) != value
            ]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return found[:_SHOWN] + more, count


def _wanted(parameter: Parameter, shard: Shard) -> dict:
    wanted = {"steps": shard.step, "value": digest(parameter.value[shard.rows])}
    for moment in ("exp_avg", "exp_avg_sq"):
        wanted[moment] = digest(getattr(parameter, moment)[shard.rows])
    if parameter.format is None:
        return wanted
    wanted["is stale"] = shard.is_written
    if shard.is_written:
        return wanted
    if parameter.is_delayed:
        wanted["history"] = digest(shard.history.values())
    if shard.end > shard.begin:
        for part in PARTS:
            value = getattr(shard.bytes, part)
            wanted[part] = None if value is None else digest(value)
    return wanted
