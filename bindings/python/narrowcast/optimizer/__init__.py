"""FusedAdam."""

from narrowcast.optimizer.adam import FusedAdam

__all__ = ["FusedAdam"]
