"""Models, optimizers and checkpoints of the torchtitan that is installed, on the CPU, made by its
own functions as its Trainer does, which itself needs a GPU.
"""

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

STEPS_OF_SCHEDULE = 8
_meshes = {}


class Job:
    """A model of torchtitan, sharded and initialized, and its `optimizers`, `schedulers` and
    `saved`, what torchtitan saves of model and optimizers. format: None for a plain one; `model`
    can then be converted before complete() is called. `degrees`: of parallelism, by torchtitan's
    names (tp, ep), of a model with experts if there is one of experts.
    """

    def __init__(self, format, **degrees):
        _use_cpu()
        self._parts = _Parts(format, degrees)
        self.model = self._parts.model
        for module in self.model.modules():  # gloo has no other sum than the plain one
            if hasattr(module, "set_force_sum_reduction_for_comms"):
                module.set_force_sum_reduction_for_comms(True)
        self.model.to_empty(device="cpu")
        torch.manual_seed(0)
        with torch.no_grad():
            self.model.init_weights(buffer_device=None)
        self.model.train()

    def whole(self):
        """A plain model of the same values, not sharded."""
        whole = self._parts.plain()
        with torch.no_grad():
            for mine, p in zip(whole.parameters(), self.model.parameters(), strict=True):
                mine.copy_(p.full_tensor() if isinstance(p, DTensor) else p)
        return whole

    def complete(self):
        self.optimizers = self._parts.optimizers()
        self.schedulers = self._parts.schedulers(self.optimizers)
        self.saved = {"model": self._parts.wrapper(self.model), "optimizer": self.optimizers}
        return self

    def forward(self, tokens, model=None):
        """Of the job's model, or of a whole one."""
        logits = self._parts.forward(model or self.model, tokens)
        return logits.full_tensor() if isinstance(logits, DTensor) else logits


def _use_cpu():
    """torchtitan asks for an accelerator as it is imported, and takes cuda where there is none."""
    import torchtitan.distributed.parallel_dims as parallel_dims
    import torchtitan.tools.utils as utils

    utils.device_type, utils.device_module = "cpu", torch.cpu
    parallel_dims.device_type = "cpu"


class _Parts:
    """By configurations of everything."""

    def __init__(self, format, degrees):
        from torchtitan.distributed import ParallelDims
        from torchtitan.models.common.attention import FlexAttention, ScaledDotProductAttention

        if "ep" in degrees:
            from torchtitan.models.deepseek_v3 import model_registry
            from torchtitan.models.deepseek_v3.config_registry import deepseek_v3_debugmodel as job
        else:
            from torchtitan.models.llama3 import model_registry
            from torchtitan.models.llama3.config_registry import llama3_debugmodel as job
        import narrowcast.torchtitan as glue

        def spec_of(converters):
            spec = model_registry("debugmodel", converters=converters)
            inner = [*spec.model.traverse(FlexAttention.Config)]
            for _, _, parent, name in inner:  # which has no backward on the CPU
                setattr(parent, name, ScaledDotProductAttention.Config())
            spec.model.layers = spec.model.layers[:2]
            return spec

        self._plain = spec_of([]).model
        spec = spec_of([] if format is None else [glue.Converter.Config(format=format)])
        self._config = config = job()
        config.model_spec, config.optimizer = spec, glue.fused_adam(lr=1e-2)
        config.training.seq_len = 16
        if format is None or degrees:  # as DTensors over one mesh they could not be converted
            config.parallelism.spmd_backend = "partial_dtensor"
        config.parallelism.tensor_parallel_degree = degrees.get("tp", 1)
        config.parallelism.expert_parallel_degree = degrees.get("ep", 1)
        self._take_backend()
        key = dist.group.WORLD, config.parallelism.spmd_backend
        if key not in _meshes:  # torchtitan makes its meshes once
            _meshes[key] = ParallelDims.from_config(config.parallelism, dist.get_world_size())
            _meshes[key].build_mesh()
        dims = self._dims = _meshes[key]
        spec.model.update_from_config(config=config)
        with torch.device("meta"):
            model = spec.model.build()
        model.verify_module_protocol()
        self.model = spec.parallelize_fn(
            model,
            parallel_dims=dims,
            training=config.training,
            parallelism=config.parallelism,
            compile_config=config.compile,
            ac_config=config.activation_checkpoint,
            dump_folder="",
        )

    def plain(self):
        model = self._plain.build()
        model.init_weights(buffer_device=None)
        return model

    def optimizers(self):
        optimizers = self._config.optimizer.build(model_parts=[self.model])
        if (finish := self._config.model_spec.post_optimizer_build_fn) is not None:
            finish(optimizers, [self.model], self._dims)
        return optimizers

    def schedulers(self, optimizers):
        config = self._config.lr_scheduler
        return config.build(optimizers=optimizers, training_steps=STEPS_OF_SCHEDULE)

    def wrapper(self, model):
        from torchtitan.components.checkpointer.base import ModelWrapper

        return ModelWrapper(model)

    def _take_backend(self):
        from torchtitan.distributed.utils import set_spmd_backend

        set_spmd_backend(self._config.parallelism.spmd_backend)

    def forward(self, model, tokens):
        self._take_backend()
        positions = torch.arange(tokens.shape[1]).expand(tokens.shape)
        return model(tokens, positions=positions)
