"""torchtitan with weights in narrow formats: a model converter, and FusedAdam in torchtitan's
container of optimizers (docs/libraries.md). torchtitan 0.2 is told by its job's configuration and a
train spec, 0.3 by configurations of the model and of the optimizers.
"""

import importlib.util

if importlib.util.find_spec("torchtitan.protocols.model_converter") is not None:
    from narrowcast.torchtitan.train_specs import Converter, build_optimizers, register

    __all__ = ["Converter", "build_optimizers", "register"]
else:
    from narrowcast.torchtitan.configs import Converter, Optimizers, fused_adam

    __all__ = ["Converter", "Optimizers", "fused_adam"]
