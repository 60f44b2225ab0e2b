"""The whole weight that an all-gather of FSDP2 has brought, in the memory that it arrived in."""

from __future__ import annotations

import warnings

from narrowcast import _C
from narrowcast.registry import USAGES
from narrowcast.tensor.store import Store, WeightConfig


class GatheredStore(Store):
    """It has no master, so it is never stale and never written to. FSDP2 frees and fills its memory
    with every gather, so `bytes` is that of the pass whose gather was the last.

    gather   the gather that brings it; None in a trace of torch.compile
    is_read  arithmetic of a forward has read it, and a warning has told so
    by_pass  the gathers of forward and backward bring different usages
    """

    __slots__ = ("by_pass", "gather", "is_read")

    def __init__(
        self,
        bytes: _C.Buffers,
        config: WeightConfig,
        gather,
        by_pass: bool,
    ):
        super().__init__(bytes, None, config)
        self.gather, self.by_pass = gather, by_pass
        self.is_read = False

    @property
    def step(self) -> tuple[int, int]:
        """As Store.step. If gathers differ by pass a view looks at both usages in turn."""
        return self.format.step(USAGES) if self.by_pass else super().step

    @property
    def usages_of_passes(self) -> tuple[str, ...]:
        return USAGES if self.by_pass else super().usages_of_passes

    def check_not_freed(self) -> None:
        if self.gather is not None and self.bytes.is_freed:
            raise ValueError(
                f"{self.describe()}: its bytes have been freed, because FSDP2 has resharded its "
                "module. Use it within the module's forward or backward, or call the module's "
                "unshard() first"
            )

    def check_written(self) -> None:
        raise ValueError(
            f"{self.describe()}: FSDP2 has gathered this weight, and its shards would not have "
            "what is written to it. Call the module's reshard(), and write to the parameter"
        )

    def note_arithmetic(self) -> None:
        if not self.is_read:
            self.is_read = True
            warnings.warn(
                f"{self.describe()}: arithmetic under autograd reads the values that its bytes "
                "decode to, because FSDP2 has gathered this weight. A penalty on weights belongs "
                "to the sharded parameters, after the module's reshard()",
                stacklevel=2,
            )

    def check_copied(self) -> None:
        if self.by_pass and self.gather is None:
            raise ValueError(
                f"{self.describe()}: a compiled function cannot use a part of it, or copy it, "
                "because its graph would keep the copy for the backward, whose gather brings other "
                "bytes. Use nc.convert(..., recompute=True), which has every gather carry both "
                "usages, or dequantize()"
            )

    def derives(self, usage: str) -> bool:
        return self._follows(usage)

    def usage_absent(self, usage: str) -> ValueError:
        there = " and ".join(self.bytes.usages)
        return ValueError(
            f"{self.describe()}: the {usage} bytes are needed, and this all-gather carried "
            f"{there} only. A matrix product reads one usage in the forward and the other in the "
            "backward; convolutions, LSTM, weight norm, penalties and backward hooks decode the "
            "forward's in a backward too. With activation checkpointing, a pipeline, an explicit "
            "unshard() or a change of resharding at run time, FSDP2 does not say what a gather is "
            "for. Use nc.convert(..., recompute=True), which has every gather carry both usages"
        )
