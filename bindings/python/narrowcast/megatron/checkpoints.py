"""What Megatron's distributed optimizer saves and loads, where some weights are quantized."""

from __future__ import annotations

import copy
import itertools
import re
from unittest import mock

import torch
from megatron.core.dist_checkpointing import ShardedObject
from megatron.core.dist_checkpointing.dict_utils import nested_values

from narrowcast.megatron import borrowed

_LAYOUT = "narrowcast_layout"  # in a saved optimizer's state, beside Megatron's entries
_SCATTERED = "dp_zero_gather_scatter"  # the sharding type that the first rank alone loads


class Checkpoints:
    """Of a DistributedOptimizer, which has _remake_model(). Keys and places are Megatron's, and the
    same whether a parameter is quantized or not. So 'fully_reshardable' checkpoints are loaded in
    other formats, in none, and by Megatron's own optimizer.
    """

    def state_dict(self):
        """Megatron's: groups, with the step, and the grad scaler. A rank that owns nothing says
        step 0.
        """
        with borrowed.for_optimizer():
            if self.is_stub_optimizer or self.optimizer.state:
                return super().state_dict()
            with mock.patch.object(self.optimizer, "state_dict", self._state_of_nothing):
                return super().state_dict()

    def _state_of_nothing(self):
        inner = type(self.optimizer).state_dict(self.optimizer)
        return {**inner, "state": {0: {"step": torch.zeros((), dtype=torch.float32)}}}

    def load_state_dict(self, state_dict):
        """Megatron's. Where it brings masters, the weights' bytes are made from them, which is
        collective.

        ValueError if the parameters lay in other buffers and buckets when a 'dp_reshardable' or
        'dp_zero_gather_scatter' state was saved, which knows them by their places alone.
        """
        if self.is_stub_optimizer:
            with borrowed.for_optimizer():
                super().load_state_dict(state_dict)
            return
        kind, own = state_dict.get("param_state_sharding_type"), dict(state_dict)
        with borrowed.for_optimizer():
            self._check_layout(state_dict.get("optimizer"))
            scattered = own.pop("param_state") if kind == _SCATTERED else None
            super().load_state_dict(own)
            for state in self.optimizer.state.values():  # Megatron gives one tensor to all
                state["step"] = state["step"].clone()
        if kind == _SCATTERED:
            self.load_parameter_state_from_dp_zero(scattered)
        elif kind is not None:
            self._remake_model()

    def _check_layout(self, saved) -> None:
        layout = saved.get(_LAYOUT) if isinstance(saved, dict) else None
        pairs = [] if layout is None else itertools.zip_longest(layout, self._layout())
        for place, (theirs, own) in enumerate(pairs):
            if theirs != own:
                raise ValueError(
                    f"parameter {place} of the optimizer's buffers was {theirs or 'none'} when "
                    f"this state was saved, and is {own or 'none'}. Load it into a model that "
                    "quantizes the same layers, or save with "
                    'distrib_optim_sharding_type="fully_reshardable"'
                )

    def _layout(self) -> list[str]:
        """A line for each parameter of a bucket, with its name without the model's wrappers."""
        names = {
            parameter: re.sub(r"^(module\.)+", "", name)
            for chunk in self.model_chunks
            for name, parameter in chunk.named_parameters()
        }
        return [
            f"{names[one]} {tuple(one.shape)} in buffer {at}, bucket {number}"
            for at, buffer in enumerate(self.buffers)
            for number, bucket in enumerate(buffer.buckets)
            for one in bucket.params_list
        ]

    def load_parameter_state_from_dp_zero(self, state_dict, *, update_legacy_format=False):
        """Megatron's: the first rank scatters the state."""
        with borrowed.for_optimizer():
            super().load_parameter_state_from_dp_zero(
                state_dict, update_legacy_format=update_legacy_format
            )
        self._remake_model()

    def _get_main_param_and_optimizer_states(self, model_param):
        """Without the step, which Megatron keeps with the groups."""
        tensors = super()._get_main_param_and_optimizer_states(model_param)
        return {name: value for name, value in tensors.items() if name != "step"}

    @torch.no_grad()
    def _set_main_param_and_optimizer_states(self, model_param, tensors):
        for name, value in self._get_main_param_and_optimizer_states(model_param).items():
            value.copy_(tensors[name])

    def sharded_state_dict(
        self, model_sharded_state_dict=None, is_loading=False, sharding_type=None, metadata=None
    ):
        """Megatron's. Sharding types: 'fully_reshardable', 'dp_reshardable' and
        'dp_zero_gather_scatter'; Megatron 0.16 itself lacks 'fully_sharded_model_space'.
        """
        named = _by_parameter(model_sharded_state_dict or {})
        sharded = super().sharded_state_dict(named, is_loading, sharding_type, metadata)
        inner = sharded.get("optimizer")
        if isinstance(inner, ShardedObject) and not self.is_stub_optimizer:
            inner.data = {**inner.data, _LAYOUT: self._layout()}
        return sharded

    def sharded_param_state_fully_reshardable(self, *args, **kwargs):
        """Megatron's, with the places of parameters in what it gathers: that has no padding between
        buckets, while param_index_map has.
        """
        maps = [buffer.param_index_map for buffer in self.buffers]
        try:
            for buffer in self.buffers:
                buffer.param_index_map = _without_padding_of_buckets(buffer)
            return super().sharded_param_state_fully_reshardable(*args, **kwargs)
        finally:
            for buffer, places in zip(self.buffers, maps, strict=True):
                buffer.param_index_map = places


def _without_padding_of_buckets(buffer) -> dict:
    """param -> (begin, end, bucket), in the elements of all buckets, one behind the other."""
    unpadded = [bucket.numel_unpadded for bucket in buffer.buckets]
    starts = [0, *itertools.accumulate(unpadded)]
    moved = [start - bucket.offset for start, bucket in zip(starts, buffer.buckets, strict=False)]
    return {
        parameter: (begin + moved[bucket], end + moved[bucket], bucket)
        for parameter, (begin, end, bucket) in buffer.param_index_map.items()
    }


def _by_parameter(sharded: dict) -> dict:
    """A model's sharded state dict, flat, in which entries have the model's parameters: the
    optimizer finds a parameter's key and place by that. Entries of our layers have a value of the
    weight instead, whose attribute the weight is: Megatron makes other entries of the same value.
    """
    entries = {}
    for place, entry in enumerate(nested_values(sharded)):
        weight = getattr(getattr(entry, "data", None), "quantized_weight", None)
        if weight is not None:
            entry = copy.copy(entry)
            entry.data = weight
        entries[place] = entry
    return entries
