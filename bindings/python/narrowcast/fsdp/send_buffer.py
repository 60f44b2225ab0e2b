"""Where a group packs what does not travel as it is stored."""

from __future__ import annotations

import torch

from narrowcast.fsdp.member import Member

_ALIGNMENT = 256  # of a weight's part
_SMALL = 1 / 16  # of what a group sends


class Outbox:
    """The payloads that are packed, of some weights: it gives each its payloads. It begins with the
    payload that weights share, which the first of them carries.
    """

    def __init__(self, members: list[Member], sharing: list[Member]):
        shared, begin = sum(member.gather.shared_bytes for member in sharing), 0
        for member in sharing:
            member.gather.share(begin, shared)
            begin += member.gather.shared_bytes
        begin = -(-shared // _ALIGNMENT) * _ALIGNMENT
        self._bytes = begin + sum(member.gather.outbox_bytes for member in members)
        device = members[0].store.bytes.device
        outbox = torch.empty(self._bytes, dtype=torch.uint8, device=device)
        for member in members:
            member.gather.use_outbox(outbox, begin)
            begin += member.gather.outbox_bytes
            carried = [outbox[:shared]] if member in sharing[:1] else []
            member.payloads = tuple(
                [*member.gather.payloads(backward), *carried] for backward in (False, True)
            )
        sent = sum(payload.nbytes for member in members for payload in member.payloads[0])
        alike = all(member.gather.carries_alike for member in members)
        self.is_empty = self._bytes == 0
        # If it is small, and all passes pack the same, its memory stays.
        self.stays = self.is_empty or (alike and self._bytes <= _SMALL * sent)
        self._storage = outbox.untyped_storage()

    def open(self) -> None:
        """A gather begins to pack."""
        if not self.stays:
            self._storage.resize_(self._bytes)

    def close(self) -> None:
        """What was packed has arrived."""
        if not self.stays:
            self._storage.resize_(0)
