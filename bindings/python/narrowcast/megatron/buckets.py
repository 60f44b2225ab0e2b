"""Megatron's buffers and buckets, for quantized weights: gradients as Megatron has them, and a
gather of the weights' own bytes, which stay where they are.
"""

from __future__ import annotations

import copy

import torch
from megatron.core.distributed.param_and_grad_buffer import (
    _ParamAndGradBucketGroup,
    _ParamAndGradBuffer,
)

from narrowcast import flat
from narrowcast.flat.gather import Gather
from narrowcast.megatron import layout
from narrowcast.tensor import QuantizedTensor


class Buffer(_ParamAndGradBuffer):
    """Megatron's; one of quantized weights has gradients alone."""

    def __init__(self, ddp_config, param_dtype, grad_dtype, params, *args, **kwargs):
        arguments = param_dtype, grad_dtype, params, *args
        if not _are_quantized(params):
            super().__init__(ddp_config, *arguments, **kwargs)
            return
        # With this option Megatron leaves the parameters' memory alone. It allocates a buffer for
        # them nevertheless, a byte an element, which is dropped at once.
        leaving = copy.copy(ddp_config)
        leaving.reuse_grad_buf_for_mxfp8_param_ag = True
        super().__init__(leaving, *arguments, **kwargs)
        self.ddp_config, self.param_data = ddp_config, None
        for bucket in self.buckets:
            bucket.param_data = None
            # bucket.param_to_index leaves out the padding between parameters.
            begins = [self.param_index_map[one][0] - bucket.offset for one in bucket.params_list]
            bucket.places = [
                (begin, begin + one.numel())
                for begin, one in zip(begins, bucket.params_list, strict=True)
            ]


class BucketGroup(_ParamAndGradBucketGroup):
    """Megatron's, whose parameters come by its own gather, and quantized weights by narrowcast's:
    one collective a bucket, of the bytes of all its weights.
    """

    def __init__(self, buckets, *arguments):
        super().__init__(buckets, *arguments)
        quantized = [bucket for bucket in buckets if _are_quantized(bucket.params_list)]
        plain = [bucket for bucket in buckets if bucket not in quantized]
        self._quantized = quantized
        self._plain = _ParamAndGradBucketGroup(plain, *arguments) if plain else None
        self._gathers: list[Gather] | None = None
        self._is_derived = True  # whether columnwise bytes are those of the bytes that came

    @property
    def gathers(self) -> list[Gather]:
        """Those of the quantized buckets, made when they are first needed, and anew when bytes have
        moved.
        """
        if self._gathers is None or not all(one.is_current() for one in self._gathers):
            group = self.intra_distributed_optimizer_instance_group
            self._gathers = [
                Gather(
                    bucket.params_list,
                    layout.owned(bucket.places, bucket.grad_data.numel(), group.size()),
                    group,
                )
                for bucket in self._quantized
            ]
        return self._gathers

    @property
    def packed_bytes(self) -> int:
        """What all ranks send together in one round of the gathers."""
        ranks = self.intra_distributed_optimizer_instance_group.size()
        return ranks * sum(gather.payload_bytes for gather in self.gathers)

    def start_param_sync(self, force_sync: bool = False):
        """Megatron's: asynchronous with overlap_param_gather, unless force_sync is given."""
        if not self._quantized:
            super().start_param_sync(force_sync)
            return
        if self.param_gather_handle is not None:
            assert force_sync, "a gather of these parameters is under way"
            self._finish()
            return
        is_async = self.ddp_config.overlap_param_gather and not force_sync
        if self._plain is not None:
            self._plain.start_param_sync(force_sync)
        for gather in self.gathers:
            gather.start(async_op=is_async)
        self.param_gather_handle = _Handle(self._plain, self.gathers)
        self.param_gather_dispatched, self._is_derived = True, False
        if not is_async:
            self._finish()

    def finish_param_sync(self, skip_next_bucket_dispatch: bool = False):
        """Megatron's: waits, and starts the next group's. Columnwise bytes are derived behind that,
        so that the next gather does not wait for them.
        """
        super().finish_param_sync(skip_next_bucket_dispatch)
        self._derive()

    def _finish(self) -> None:
        self.param_gather_handle.wait()
        self.param_gather_handle = None
        self._derive()

    def _derive(self) -> None:
        if not self._is_derived:
            weights = [one for bucket in self._quantized for one in bucket.params_list]
            flat.post_all_gather_processing(weights)
            self._is_derived = True


class _Handle:
    """What is under way: Megatron's gather and ours."""

    def __init__(self, plain: _ParamAndGradBucketGroup | None, gathers: list[Gather]):
        self.plain, self.gathers = plain, gathers

    def wait(self) -> None:
        if self.plain is not None and self.plain.param_gather_handle is not None:
            self.plain.param_gather_handle.wait()
            self.plain.param_gather_handle = None
        for gather in self.gathers:
            gather.finish()


def _are_quantized(params: list[torch.Tensor]) -> bool:
    """Buffers, and so buckets, hold the one kind or the other."""
    return isinstance(params[0], QuantizedTensor)
