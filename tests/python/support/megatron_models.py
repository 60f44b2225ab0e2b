"""Small GPTs of Megatron-Core on the CPU, over gloo, for the tests of narrowcast.megatron."""

import contextlib

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.models.backends import LocalSpecProvider
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.quantization.quant_config import RecipeConfig
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn

import narrowcast as nc
from by_hand import Given
from narrowcast import megatron

HIDDEN, HEADS, VOCABULARY, SEQUENCE, BATCH = 64, 2, 96, 8, 2
LINEARS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
MEGATRONS = {"column": ColumnParallelLinear, "row": RowParallelLinear}  # layers


class Attention(nn.Module):
    """Causal attention on any device. Megatron's own takes its memory from CUDA, and draws its
    dropout there.
    """

    def __init__(self, config, **kwargs):
        super().__init__()

    def forward(self, query, key, value, attention_mask, **kwargs):
        """query, key, value: [sequence, batch, heads, width]; [sequence, batch, heads * width]."""
        heads_first = (one.permute(1, 2, 0, 3) for one in (query, key, value))
        out = F.scaled_dot_product_attention(*heads_first, is_causal=True)
        return out.permute(2, 0, 1, 3).flatten(2)


class CpuSpecProvider(LocalSpecProvider):
    """Megatron's local backend with that attention."""

    def core_attention(self):
        return Attention


@contextlib.contextmanager
def parallel(tensor=None):
    """Megatron's process groups, over a default one: all ranks are tensor-parallel, or some."""
    parallel_state.initialize_model_parallel(tensor or dist.get_world_size())
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()


def config(**options):
    """A TransformerConfig of two layers."""
    dtype = options.pop("dtype", torch.float32)
    defaults = {
        "num_layers": 2,
        "hidden_size": HIDDEN,
        "num_attention_heads": HEADS,
        "use_cpu_initialization": True,
        "attention_dropout": 0.0,
        "hidden_dropout": 0.0,
        "params_dtype": dtype,
        "tensor_model_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
    }
    return TransformerConfig(**{**defaults, **options})


def recipe(configs, matchers):
    """A RecipeConfig. configs: payloads by name; matchers: (glob, name of a config), in order."""
    rows = {
        f"m{i}": {"type": "glob", "enabled": True, "pattern": pattern, "config": name}
        for i, (pattern, name) in enumerate(matchers)
    }
    return RecipeConfig.from_config_dict({"configs": configs, "matchers": rows})


def gpt(layer_spec, seed=0, **options):
    """A GPTModel, equal in every process for equal options. In other dtypes than float32 all of it
    is, as Megatron's Float16Module has it.
    """
    torch.manual_seed(seed)
    made = config(**options)
    model = GPTModel(made, layer_spec, vocab_size=VOCABULARY, max_sequence_length=SEQUENCE)
    return model.to(made.params_dtype)


def narrow_spec(*arguments, **options):
    return megatron.get_gpt_layer_spec(*arguments, fallback=CpuSpecProvider(), **options)


def plain_spec(**options):
    """Megatron's own layers."""
    spec = get_gpt_layer_local_spec(**options)
    spec.submodules.self_attention.submodules.core_attention = Attention
    return spec


def plain_twin(model, spec=None, **options):
    """A GPT of Megatron's own layers with a model's parameters; those of quantized ones are the
    decoded values, rowwise in the forward and columnwise in the backward.
    """
    twin = gpt(spec or plain_spec(), **options)
    modules = dict(model.named_modules())
    for path, module in twin.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            value = getattr(modules[path], name).detach()
            if isinstance(value, nc.QuantizedTensor):
                use_values(module, value)
            else:
                parameter.detach().copy_(value)
    return twin


def use_values(layer, quantized):
    """Has a layer of Megatron's own multiply by the values of a quantized weight."""
    rowwise, columnwise = (
        quantized.dequantize(quantized.dtype, usage=usage) for usage in ("rowwise", "columnwise")
    )
    layer.weight.detach().copy_(columnwise)
    megatrons = layer._forward_impl

    def forward(input, weight, **options):
        with torch.no_grad():
            value = megatrons(input, rowwise.requires_grad_(), **options)
        return Given.apply(megatrons(input, weight, **options), value)

    layer._forward_impl = forward


@contextlib.contextmanager
def memory_on_the_cpu():
    """Megatron's sequence parallelism takes memory from the current CUDA device: here the CPU."""
    current_device = torch.cuda.current_device
    torch.cuda.current_device = lambda: torch.device("cpu")
    try:
        yield
    finally:
        torch.cuda.current_device = current_device


def tokens(seed=0):
    """[batch, sequence], the same in every process."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCABULARY, (BATCH, SEQUENCE), generator=generator)


def loss_of(model, seed=0):
    """float32 [batch, sequence]: the loss of each token."""
    batch = tokens(seed)
    positions = torch.arange(SEQUENCE).expand(BATCH, SEQUENCE)
    return model(batch, positions, None, labels=batch)


def quantized(model):
    """The quantized parameters by name."""
    every = model.named_parameters()
    return {name: p for name, p in every if isinstance(p, nc.QuantizedTensor)}
