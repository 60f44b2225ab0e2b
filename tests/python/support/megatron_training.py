"""Trains small GPTs of Megatron-Core on the CPU, over gloo, for the tests of narrowcast.megatron's
data parallelism and optimizer: DP ranks, TP ranks, and gradients that any process can compute.
"""

import contextlib
import sys
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import distributed, optimizer, parallel_state
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.optimizer import OptimizerConfig
from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed

import megatron_models as mm
import narrowcast as nc
from internals import store_of
from narrowcast import megatron

sys.path.append(str(Path(__file__).parents[3] / "examples"))
from megatron_on_cpu import on_cpu

# Rows of 96 elements, and shards of a multiple of 64: cuts divide rows and blocks.
MODEL = {"hidden_size": 96, "dtype": torch.bfloat16}
PARTS = 4  # of each gradient, over data-parallel ranks
ADAM = {"lr": 2.0**-6, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}


class Run:
    """A model in DDP and its optimizer on this rank. `format` None: Megatron's layers, DDP and
    optimizer.
    """

    def __init__(self, format, ddp=None, adam=None, layers=None, seed=0, frozen=(), **options):
        model_parallel_cuda_manual_seed(1)
        spec = get_gpt_layer_local_spec(**(layers or {}))
        if format is not None:
            spec = megatron.get_gpt_layer_spec(format, **(layers or {}))
        self.format = format
        self.model = mm.gpt(spec, seed, **{**MODEL, **options})
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(not any(word in name for word in frozen))
        self.first = self.values()
        ours = megatron if format is not None else distributed
        config = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True, **(ddp or {})}
        self.ddp = ours.DistributedDataParallel(
            self.model.config, DistributedDataParallelConfig(**config), self.model
        )
        self.optimizer = (megatron if format is not None else optimizer).get_megatron_optimizer(
            adam_config(
                overlap_param_gather=config.get("overlap_param_gather", False), **adam or {}
            ),
            [self.ddp],
        )

    def values(self):
        """float32 copies of this tensor-parallel rank's parameters, by name."""
        named = self.model.named_parameters()
        return {
            name: p.get_high_precision_init_val().to(p.device)
            if quantized(p)
            else p.float().detach().clone()
            for name, p in named
        }

    @property
    def parts(self):
        return self.optimizer.chained_optimizers

    def shards(self):
        """name -> (begin, master, moments) of what this rank owns."""
        names = {p: name for name, p in self.model.named_parameters()}
        owned = {}
        for part in self.parts:
            for parameter, (group, place) in part.model_param_group_index_map.items():
                main = part.optimizer.param_groups[group]["params"][place]
                begin = part._get_model_param_range_map(parameter)["param"].start
                state = part.optimizer.state.get(main, {})
                moments = [state[key] for key in ("exp_avg", "exp_avg_sq") if key in state]
                owned[names[parameter]] = begin, main.detach(), moments
        return owned

    def masters(self):
        """Collective: name -> (master, exp_avg, exp_avg_sq), whole on this tensor-parallel rank."""
        group = parallel_state.get_data_parallel_group()
        every = [None] * group.size()
        dist.all_gather_object(every, self.shards(), group=group)
        shapes = {name: p.shape for name, p in self.model.named_parameters()}
        wholes = {}
        for owned in every:
            for name, (begin, main, moments) in owned.items():
                whole = wholes.setdefault(
                    name, [torch.full(shapes[name], torch.nan) for _ in "123"]
                )
                for values, part in zip(whole, [main, *moments], strict=False):
                    values.view(-1)[begin : begin + len(part)] = part
        return wholes

    def feed(self, step):
        """Sets all gradients and takes a step with them."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        for name, parameter in self.model.named_parameters():
            if parameter.requires_grad:
                rank = _group_of(parameter).rank()
                parameter.main_grad.copy_(gradient(name, parameter, step, rank))
        self.ddp.finish_grad_sync()
        return self.optimizer.step()

    def train(self):
        """A forward and a backward of this rank's tokens, always the same, and a step; the loss."""
        self.ddp.zero_grad_buffer()
        self.optimizer.zero_grad()
        rank = parallel_state.get_data_parallel_rank()
        loss = mm.loss_of(self.ddp, seed=rank).mean()
        self.optimizer.scale_loss(loss).sum().backward()
        distributed.finalize_model_grads([self.ddp])
        self.optimizer.step()
        return loss.item()


class Reference:
    """One process that has whole masters: nc.FusedAdam over float32, with the mean gradients."""

    def __init__(self, run):
        self.parameters = dict(run.model.named_parameters())
        self.values = {n: v for n, v in run.first.items() if self.parameters[n].requires_grad}
        self.adam = nc.FusedAdam(self.values.values(), **ADAM)

    def feed(self, step, scale=1.0):
        ranks = parallel_state.get_data_parallel_world_size()
        for name, value in self.values.items():
            parameter = self.parameters[name]
            every = range(_group_of(parameter).size())
            value.grad = (
                sum(gradient(name, parameter, step, rank) for rank in every) / ranks * scale
            )
        self.adam.step()


def adam_config(**options):
    defaults = {"optimizer": "adam", "lr": ADAM["lr"], "weight_decay": ADAM["weight_decay"]}
    defaults |= {"adam_beta1": 0.9, "adam_beta2": 0.95, "adam_eps": ADAM["eps"], "clip_grad": 0.0}
    if not options.get("fp16"):
        defaults |= {"bf16": True, "params_dtype": torch.bfloat16}
    return OptimizerConfig(**{**defaults, "use_distributed_optimizer": True, **options})


def _group_of(parameter):
    if getattr(parameter, "allreduce", True):
        return parallel_state.get_data_parallel_group()
    return parallel_state.get_expert_data_parallel_group()


def gradient(name, parameter, step, rank):
    """Of a rank of the parameter's data-parallel group: float32, small integers by powers of 2, so
    that sums are exact. Tensor-parallel ranks have parts of one gradient, and its mean over
    ranks is that of PARTS draws for any number of them.
    """
    ranks, dim = parallel_state.get_tensor_model_parallel_world_size(), None
    if getattr(parameter, "tensor_model_parallel", False):
        dim = parameter.partition_dim
    shape = list(parameter.shape)
    if dim is not None:
        shape[dim] *= ranks
    size = _group_of(parameter).size()
    whole = sum(_drawn(shape, name, step, part) for part in range(rank, PARTS, size)) * size / PARTS
    if dim is None:
        return whole
    return whole.chunk(ranks, dim)[parallel_state.get_tensor_model_parallel_rank()]


def _drawn(shape, *key):
    generator = torch.Generator().manual_seed(zlib.crc32(str(key).encode()))
    return torch.randint(-8, 9, shape, generator=generator).float() * 2.0**-7


def quantized(parameter):
    return isinstance(parameter, nc.QuantizedTensor)


def bytes_of(weight):
    """Copies of all buffers, and what spans the tensor."""
    nc.post_all_gather_processing([weight])
    store = store_of(weight)
    every = [*store.bytes.buffers, store.bytes.amax, store.bytes.history]
    return [None if one is None else one.clone() for one in every]


def all_bytes(model):
    return {name: bytes_of(weight) for name, weight in mm.quantized(model).items()}


def same_bytes(some, others):
    """Whether two lists of buffers are equal, bit for bit."""
    return all(
        (a is None and b is None)
        or torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
        for a, b in zip(some, others, strict=True)
    )


def assert_bytes_are_casts(model, masters):
    """Every rank's weights have the bytes of a cast of the whole masters."""
    for name, weight in mm.quantized(model).items():
        expected = nc.quantize(masters[name].view(weight.shape), weight.format.name)
        assert same_bytes(bytes_of(weight), bytes_of(expected)), name


@contextlib.contextmanager
def megatron_on_cpu(tensor=1, **options):
    """Process groups over the default one, and Megatron on the CPU."""
    parallel_state.initialize_model_parallel(tensor, **options)
    try:
        with on_cpu():
            yield
    finally:
        parallel_state.destroy_model_parallel()
