"""Megatron's data parallelism over quantized weights: gradients as Megatron has them, and a gather
of the weights' own bytes.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from megatron.core import distributed
from megatron.core.distributed.param_and_grad_buffer import (
    _ParamAndGradBucketGroup,
    _ParamAndGradBuffer,
)

from narrowcast import flat
from narrowcast.megatron import borrowed
from narrowcast.tensor import QuantizedTensor


class DistributedDataParallel(distributed.DistributedDataParallel):
    """Megatron's DDP, which takes the same arguments. Gradients of quantized weights are buffers as
    any; their bytes stay where they are and are gathered packed, in one collective a bucket.

    With overlap_param_gather the gathers run beside the forward, as Megatron's do. Frozen quantized
    weights stay as they are.

    NotImplementedError for options under which quantized weights cannot be kept.
    """

    def __init__(self, config, ddp_config, module, *args, **kwargs):
        borrowed.refuse(ddp_config, "use_megatron_fsdp", "reuse_grad_buf_for_mxfp8_param_ag")
        if ddp_config.num_distributed_optimizer_instances > 1:
            raise NotImplementedError("num_distributed_optimizer_instances is to be 1")
        with borrowed.for_data_parallelism(Buffer, BucketGroup):
            super().__init__(config, ddp_config, module, *args, **kwargs)

    def packed_bytes(self) -> int:
        """Bytes of quantized weights that one synchronization of the parameters brings to a rank,
        its own among them.
        """
        groups = self.bucket_groups + self.expert_parallel_bucket_groups
        return sum(group.packed_bytes for group in groups)


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
    """Megatron's, whose gather brings plain parameters, and narrowcast's quantized weights:
    one collective a bucket, of the bytes of all its weights.
    """

    def __init__(self, buckets, ddp_config, collective_group, *arguments):
        arguments = ddp_config, collective_group, *arguments
        super().__init__(buckets, *arguments)
        self._quantized = [bucket for bucket in buckets if _are_quantized(bucket.params_list)]
        plain = [bucket for bucket in buckets if bucket not in self._quantized]
        self._plain = _ParamAndGradBucketGroup(plain, *arguments) if plain else None
        ranks = collective_group.size()
        self._gathers = [
            flat.Gather(
                bucket.params_list,
                owned_ranges(bucket.places, bucket.grad_data.numel(), ranks),
                collective_group,
            )
            for bucket in self._quantized
        ]
        # What all ranks send together in one round of the gathers.
        self.packed_bytes = ranks * sum(gather.payload_bytes for gather in self._gathers)

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
        for gather in self._gathers:
            gather.start(async_op=is_async)
        self.param_gather_handle, self.param_gather_dispatched = self, True
        if not is_async:
            self._finish()

    def finish_param_sync(self, skip_next_bucket_dispatch: bool = False):
        """Megatron's: waits, and starts the next group's. Columnwise bytes are derived behind that,
        so that the next gather does not wait for them.
        """
        super().finish_param_sync(skip_next_bucket_dispatch)
        self._derive()

    def wait(self) -> None:
        """For Megatron's gather and ours."""
        if self._plain is not None and self._plain.param_gather_handle is not None:
            self._plain.param_gather_handle.wait()
            self._plain.param_gather_handle = None
        for gather in self._gathers:
            gather.finish()

    def _finish(self) -> None:
        self.param_gather_handle = None
        self.wait()
        self._derive()

    def _derive(self) -> None:
        weights = [one for bucket in self._quantized for one in bucket.params_list]
        flat.post_all_gather_processing(weights)


def _are_quantized(params: list[torch.Tensor]) -> bool:
    """Buffers, and so buckets, hold the one kind or the other."""
    return isinstance(params[0], QuantizedTensor)


def owned_ranges(
    places: Sequence[tuple[int, int]], elements: int, ranks: int
) -> list[list[tuple[int, int]]]:
    """Which elements of which weight each rank owns, by Megatron's layout of buckets, in equal
    parts: ranges[rank][weight] = (begin, end), in elements of the flattened weight; (0, 0) where
    the rank owns nothing of it. `places`: of each weight, [begin, end) in the bucket.
    """
    size = elements // ranks
    return [
        [_within(begin, end, rank * size, (rank + 1) * size) for begin, end in places]
        for rank in range(ranks)
    ]


def _within(begin: int, end: int, first: int, last: int) -> tuple[int, int]:
    """Of the weight at [begin, end), the elements that [first, last) holds."""
    own = max(begin, first) - begin, min(end, last) - begin
    return own if own[0] < own[1] else (0, 0)
