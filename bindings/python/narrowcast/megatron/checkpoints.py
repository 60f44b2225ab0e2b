"""What Megatron's distributed optimizer saves and loads, where some weights are quantized."""

from __future__ import annotations

import copy
import itertools
from unittest import mock

import torch
from megatron.core.dist_checkpointing.dict_utils import nested_values

from narrowcast.megatron import borrowed


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
        """
        with borrowed.for_optimizer():
            super().load_state_dict(state_dict)
        if not self.is_stub_optimizer:  # Megatron has put one tensor into the state of all
            for state in self.optimizer.state.values():
                state["step"] = state["step"].clone()
        # Of this type Megatron loads by load_parameter_state_from_dp_zero.
        if state_dict.get("param_state_sharding_type") not in (None, "dp_zero_gather_scatter"):
            self._remake_model()

    def load_parameter_state_from_dp_zero(self, state_dict, **options):
        with borrowed.for_optimizer():
            super().load_parameter_state_from_dp_zero(state_dict, **options)
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
        return super().sharded_state_dict(named, is_loading, sharding_type, metadata)

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
