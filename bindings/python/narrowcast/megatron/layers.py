"""Megatron's tensor-parallel linear layers with weights in narrow formats."""

from __future__ import annotations

import torch
from megatron.core.tensor_parallel import layers

from narrowcast.conversion import convert
from narrowcast.megatron.linear import linear
from narrowcast.megatron.options import Options, chosen
from narrowcast.tensor import QuantizedTensor

# An attribute of frozen parameters that keep their masters, where an optimizer has taken others'.
ALONE = "narrowcast_keeps_master"


class _QuantizedWeight:
    """What both layers have in common. Megatron's class makes the weight, splits and initializes
    it; finish_init, which Megatron's models call last of all, converts it.
    """

    options: Options | None = None  # of the provider; see SpecProvider

    def __init__(self, *args, config, **kwargs):
        _refuse(config)
        super().__init__(*args, config=config, **kwargs)
        self.is_finished = False

    def finish_init(self, quantization_config) -> None:
        """Converts the weight as the model's recipe says, or else as the provider says.

        quantization_config  Megatron's QuantizationConfig for this layer, or None

        The parameter keeps its attributes and its value, in float32, as its master. ValueError,
        with the layer's name, for options that cannot be meant, or a format that cannot hold this
        rank's part of the weight.
        """
        name = _name(self, quantization_config)
        try:
            has_recipe = getattr(self.config, "quant_recipe", None) is not None
            options = chosen(quantization_config, self.options, has_recipe)
            if options.format is not None and self.weight is None:
                raise ValueError(
                    "it has no weight of its own (skip_weight_param_allocation), so none can be "
                    "converted. Leave it out with `narrowcast: null` in the recipe"
                )
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None
        if options.format is not None:
            convert.convert_layer(self, f"{name}.weight", options.format, options.matmul)
        self.is_finished = True

    def _forward_impl(self, input, weight, *args, **kwargs):
        """Megatron's product, of this rank's part of the weight; with a bias, that is added behind
        it, as Megatron does.
        """
        if not self.is_finished:
            raise RuntimeError(
                f"{_name(self)}: finish_init has not been called, so its weight is still plain. "
                "GPTModel and MambaModel call it for each of their modules; for a layer of a model "
                "of your own, call layer.finish_init(None) once it is made"
            )
        if not isinstance(weight, QuantizedTensor):
            return super()._forward_impl(input, weight, *args, **kwargs)
        return self._product(input, weight, *args, **kwargs)

    def _product(
        self,
        input,
        weight,
        bias,
        gradient_accumulation_fusion,
        allreduce_dgrad,
        sequence_parallel,
        tp_group=None,
        grad_output_buffer=None,
        wgrad_deferral_limit=None,
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
        """Megatron's, with plain values in the weight's place, which any other number of ranks can
        cut elsewhere: the master, float32, itself and no copy; or, where an optimizer has taken the
        masters, the decoded value in the weight's dtype. Whoever loads into it calls
        load_state_dict afterwards, as Megatron's checkpoints do.

        Megatron has layers alike under one key, which takes one dtype. So it is the weight's where
        other layers may have plain weights (a recipe), or some are frozen and keep their masters.
        """
        sharded = super().sharded_state_dict(prefix, sharded_offsets, metadata)
        has_recipe = getattr(self.config, "quant_recipe", None) is not None
        for entry in sharded.values():
            weight = entry.data
            if isinstance(weight, QuantizedTensor):
                value = weight.detach().master
                if value is None or has_recipe or getattr(weight, ALONE, False):
                    value = _in_own_dtype(weight.detach(), value)
                    value.quantized_weight = weight  # for the optimizer, which asks by parameters
                entry.data, entry.dtype = value, value.dtype
        return sharded


class ColumnParallelLinear(_QuantizedWeight, layers.ColumnParallelLinear):
    """Megatron's layer, whose weight [out, in] is cut along its rows, with a weight in a format
    from finish_init() on. NotImplementedError for fused or deferred weight gradients.
    """


class RowParallelLinear(_QuantizedWeight, layers.RowParallelLinear):
    """The same of the layer whose weight is cut along its columns."""


def _in_own_dtype(weight: QuantizedTensor, master) -> torch.Tensor:
    """The value, as a tensor of its own."""
    return weight.dequantize(weight.dtype) if master is None else master.to(weight.dtype, copy=True)


def _name(layer, quantization_config=None) -> str:
    """For messages: its path in the model, which Megatron tells with a recipe alone."""
    if quantization_config is not None:
        return quantization_config.match_input.module_path
    rows, columns = layer.output_size, layer.input_size
    return f"{type(layer).__name__} of {columns} to {rows} features"


def _refuse(config) -> None:
    """NotImplementedError for what these layers do not do."""
    if config.gradient_accumulation_fusion:
        raise NotImplementedError(
            "narrowcast's layers do not add weight gradients to main_grad within the product: set "
            "gradient_accumulation_fusion=False (--no-gradient-accumulation-fusion)"
        )
    if config.defer_embedding_wgrad_compute:
        raise NotImplementedError(
            "narrowcast's layers do not put off weight gradients: set "
            "defer_embedding_wgrad_compute=False"
        )
