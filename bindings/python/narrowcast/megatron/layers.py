"""Megatron's tensor-parallel linear layers with weights in narrow formats."""

from __future__ import annotations

from typing import NamedTuple

import torch
from megatron.core.tensor_parallel import layers

from narrowcast.conversion import convert
from narrowcast.megatron.linear import linear
from narrowcast.tensor import QuantizedTensor

# An attribute of frozen parameters that keep their masters, where an optimizer has taken others'.
ALONE = "narrowcast_keeps_master"
KEY = "narrowcast"  # of a recipe's payload


class Options(NamedTuple):
    """format    a format's name
    matmul    of the layer: "dequantized" or "scaled", as for nc.convert
    """

    format: str
    matmul: str = "dequantized"


class _QuantizedWeight:
    """What both layers have in common. Megatron's class makes the weight, splits and initializes
    it; finish_init, which Megatron's models call last of all, converts it.
    """

    options: Options | None = None  # of the provider; see SpecProvider

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.is_finished = False

    def finish_init(self, quantization_config) -> None:
        """Converts the weight as the model's recipe says, or else as the provider says.

        quantization_config  Megatron's QuantizationConfig for this layer, or None: no matcher of
                             the recipe matches, or there is no recipe

        The parameter keeps its attributes and its value, in float32, as its master. ValueError or
        TypeError, with the layer's name, for options that cannot be meant, or a format that cannot
        hold this rank's part of the weight.
        """
        name = f"{type(self).__name__} of {self.input_size} to {self.output_size} features"
        where = ""
        if quantization_config is not None:
            name = quantization_config.match_input.module_path
            where = f': config "{quantization_config.config_key}" of the recipe'
        try:
            options = self._chosen(quantization_config)
            if options is not None:
                convert.convert_layer(self, f"{name}.weight", options.format, options.matmul)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}{where}: {error}") from None
        self.is_finished = True

    def _chosen(self, quantization_config) -> Options | None:
        """None: the weight stays plain."""
        if quantization_config is None:
            if self.options is None and getattr(self.config, "quant_recipe", None) is None:
                raise ValueError(
                    "no format is chosen: neither does the spec name one (format=...), nor has the "
                    "model a recipe (TransformerConfig.quant_recipe). Give one of the two"
                )
            return self.options
        payload = quantization_config.config
        if KEY not in payload:
            raise ValueError(
                f"it matches this layer and does not say what narrowcast shall do: add `{KEY}: "
                f"{{format: ...}}`, or `{KEY}: null` for a plain weight"
            )
        return None if payload[KEY] is None else Options(**payload[KEY])

    def _forward_impl(self, input, weight, *args, **kwargs):
        """Megatron's product, of this rank's part of the weight; with a bias, that is added behind
        it, as Megatron does.
        """
        if not self.is_finished:
            raise RuntimeError(
                f"the weight of a {type(self).__name__} is still plain. For a layer of a model of "
                "your own, call layer.finish_init(None) once it is made"
            )
        if not isinstance(weight, QuantizedTensor):
            return super()._forward_impl(input, weight, *args, **kwargs)
        return self._product(input, weight, *args, **kwargs)

    def _product(
        self, input, weight, bias, *, allreduce_dgrad, sequence_parallel, tp_group=None, **_
    ):
        output = linear(input, weight, allreduce_dgrad, sequence_parallel, tp_group)
        return output if bias is None else output + bias.to(output.dtype)

    def _apply(self, fn, recurse=True):
        """What .cuda(), .to() and Megatron's Float16Module do. For a tensor class of its own torch
        puts a new parameter in the old one's place; what Megatron wrote on that goes along. Of
        bfloat16() and half() a quantized weight takes the logical dtype.
        """
        kept = {} if self.weight is None else dict(vars(self.weight))

        def apply(tensor):
            made = fn(tensor)
            if isinstance(tensor, QuantizedTensor) and not isinstance(made, QuantizedTensor):
                return tensor.to(made.dtype)
            return made

        super()._apply(apply, recurse)
        if self.weight is not None:
            vars(self.weight).update(kept)
        return self

    def sharded_state_dict(self, prefix="", sharded_offsets=(), metadata=None):
        """Megatron's, with plain values in the weight's place: the master itself, or the decoded
        value in the weight's dtype (docs/megatron.md, "Checkpoints"). Whoever loads into it calls
        load_state_dict afterwards, as Megatron's checkpoints do.
        """
        sharded = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        has_recipe = getattr(self.config, "quant_recipe", None) is not None
        for entry in sharded.values():
            weight = entry.data
            if isinstance(weight, QuantizedTensor):
                value = weight.kept_value
                if value is None or has_recipe or getattr(weight, ALONE, False):
                    value = _in_own_dtype(weight.detach(), value)
                    value.quantized_weight = weight  # for the optimizer, which asks by parameters
                entry.data, entry.dtype = value, value.dtype
        return sharded


class ColumnParallelLinear(_QuantizedWeight, layers.ColumnParallelLinear):
    """Megatron's layer, whose weight [out, in] is cut along its rows, with a weight in a format
    from finish_init() on. Weight gradients are neither fused into main_grad nor deferred.
    """


class RowParallelLinear(_QuantizedWeight, layers.RowParallelLinear):
    """The same of the layer whose weight is cut along its columns."""


def _in_own_dtype(weight: QuantizedTensor, master) -> torch.Tensor:
    """The value, as a tensor of its own."""
    return weight.dequantize(weight.dtype) if master is None else master.to(weight.dtype, copy=True)
