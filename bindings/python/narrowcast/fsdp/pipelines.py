"""Zero-bubble pipelines, which take a backward apart: the input's gradient first, the weights' when
there is time. torch looks for a stage's weights at the beginning of the first part; those that
FSDP2 gathers after that are other objects, whose gradients it would lose without a word.
"""

from __future__ import annotations

from narrowcast import stack_frames
from narrowcast.tensor.store import Store

MODULE = "torch.distributed.pipelining._backward"  # where it was imported, there may be such


def check(store: Store) -> None:
    """In a backward that gathers a weight: NotImplementedError if it is the first part of one that
    a pipeline's schedule takes apart.
    """
    if stack_frames.is_running_anywhere(MODULE, "stage_backward_input"):
        raise NotImplementedError(
            f"{store.describe()}: a zero-bubble schedule takes the backward apart, and torch would "
            "lose the gradients of weights that FSDP2 gathers in its first part. Keep them after "
            "the forward: fully_shard(..., reshard_after_forward=False) for all modules of a stage"
        )
