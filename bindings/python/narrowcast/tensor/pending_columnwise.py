"""Columnwise bytes that follow from rowwise ones, and are made when all of those have come."""

from typing import NamedTuple

from narrowcast import _C


class Late(NamedTuple):
    """What a store has in the meantime. `bytes`: both usages, the columnwise buffers those of an
    earlier value; `by_hand`: post_all_gather_processing alone makes them.
    """

    bytes: _C.Buffers
    by_hand: bool

    def made(self, owner) -> _C.Buffers:
        """The bytes with columnwise ones of the present value. ValueError where that is left to the
        caller; `owner`: the store, for messages.
        """
        if self.by_hand:
            raise ValueError(
                f"{owner.describe()} has no columnwise bytes since its shards were cast: call "
                "nc.post_all_gather_processing when all have been gathered "
                "(manual_post_all_gather_processing=True leaves that to you)"
            )
        _C.derive_columnwise([self.bytes])
        return self.bytes
