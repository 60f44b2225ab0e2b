"""torchtitan 0.3 with weights in narrow formats: a model converter, and FusedAdam in torchtitan's
container of optimizers (docs/libraries.md).
"""

from narrowcast.torchtitan.configs import Converter, Optimizers, fused_adam

__all__ = ["Converter", "Optimizers", "fused_adam"]
