"""What a reduction has brought of who took part in it, on its way to the host."""

from __future__ import annotations

from collections.abc import Callable

import torch


class Heard:
    """The header of a reduction. On the CPU it is there at once; from a GPU it is fetched, and
    nobody waits for it before the next reduction.
    """

    def __init__(self, header: torch.Tensor):
        self._source, self._pinned = header, None
        if header.is_cuda:
            self._pinned = torch.zeros_like(header, device="cpu", pin_memory=True)
        self._event: torch.cuda.Event | None = None

    @property
    def is_at_once(self) -> bool:
        return self._pinned is None

    def fetch(self) -> None:
        """After the reduction."""
        if self._pinned is not None:
            self._pinned.copy_(self._source, non_blocking=True)
            self._event = torch.cuda.current_stream(self._source.device).record_event()

    def pretend(self, header: list[int]) -> None:
        """As if this had been reduced, and fetched."""
        self._source.copy_(torch.tensor(header, dtype=self._source.dtype, device="cpu"))
        self.fetch()

    def listen(self, hear: Callable[[], object]) -> None:
        """After the reduction: it is fetched, and heard now if it is there at once."""
        self.fetch()
        if self.is_at_once:
            hear()

    def read(self) -> list:
        """Its numbers."""
        if self._pinned is None:
            return self._source.tolist()
        if self._event is None:  # interrupted before it could be fetched
            self.fetch()
        self._event.synchronize()
        self._event = None
        return self._pinned.tolist()
