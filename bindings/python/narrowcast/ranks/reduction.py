"""The one reduction that casts of shards need: amaxes of tensors, and of blocks that several ranks
share. Magnitudes of floats order like their bits, so both are maxima of int32 words.
"""

from __future__ import annotations

from collections import deque
from functools import partial

import torch
import torch.distributed as dist

from narrowcast import _C

# The work of the last reductions, about as many as a step has. gloo's threads let go of a work some
# time after it has ended, and the last reference takes Python's lock to free its tensors, which
# aborts the process if the interpreter is exiting by then.
_recent = deque(maxlen=4)


class Reduction:
    """One all_reduce(MAX) of int32 words over the ranks of a process group, on the device: one copy
    before, no wait of the host but for the CPU's.

        reduction.begin()        # the words are those of the identity
        ...                      # kernels write this rank's into `words`, or `floats`
        reduction.reduce()       # collective

    identity  int32 [n], on the device: what a rank contributes that has nothing to say
    group     None, or of one rank: nothing is reduced
    """

    @torch.inference_mode(False)  # later calls may be outside of it
    def __init__(self, identity: torch.Tensor, group: dist.ProcessGroup | None):
        several = group is not None and dist.get_world_size(group) > 1
        self.group = group if several else None
        self.words = identity.clone()
        self.floats = self.words.view(torch.float32)
        self._identity = identity.view(torch.float32)
        self.is_collective = several and len(identity) > 0
        self._all_reduce = _all_reduce(self.words, group) if self.is_collective else None

    def begin(self) -> None:
        _C.copy_floats(self.floats, self._identity)

    def reduce(self) -> None:
        if not self.is_collective:
            return
        work = self._all_reduce()
        if not self.words.is_cuda:
            _recent.append(work)
            work.wait()


def _all_reduce(words: torch.Tensor, group: dist.ProcessGroup):
    """What begins the reduction and returns its work."""
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    # On a GPU, NCCL works on the present stream, and nothing has to wait.
    options.asyncOp = not words.is_cuda
    return partial(group.allreduce, [words], options)
