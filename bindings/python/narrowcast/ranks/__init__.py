"""What ranks exchange, which is little: every rank runs the same program
(docs/decisions/0022-every-rank-runs-the-same-program.md).

    same       compares facts once, when they are first relied upon: a digest in one reduction, and
               the lines themselves if it differs
    Reduction  one all_reduce of int32 words by maxima, which no host waits for
    debug      compares, at every step and forward, what ranks must have alike; off by default

Knows torch.distributed and _C, neither FSDP2 nor formats.
"""

from narrowcast.ranks.debugging import debug
from narrowcast.ranks.facts import (
    DisagreementError,
    Fact,
    gather_objects,
    largest,
    same,
)
from narrowcast.ranks.reduction import Reduction

__all__ = [
    "DisagreementError",
    "Fact",
    "Reduction",
    "debug",
    "gather_objects",
    "largest",
    "same",
]
