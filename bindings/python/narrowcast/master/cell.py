"""The bytes of a weight that is its own master, and what says whether they are fresh."""

from __future__ import annotations

import weakref
from contextlib import nullcontext

import torch

from narrowcast import _C
from narrowcast.registry import USAGES, Format
from narrowcast.tensor import buffers, compiling, region
from narrowcast.tensor.region import Region, matrix_shape
from narrowcast.tensor.store import Store, WeightConfig
from narrowcast.tensor.store_copies import check_cut
from narrowcast.tensor.unaligned import UnalignedShard, UnalignedStore
from narrowcast.tensor.view import View


class Cell:
    """What the MasterWeights over one memory share. Bytes are allocated for their first reader.

    whole     the value of all of it; of a shard without the rows that FSDP2 pads it with
    format    of the bytes
    readers   the cells that products have read, of those that nc.convert made together: if the
              bytes of one are made anew, so are theirs (casts.py)
    is_shard  of FSDP2
    shard     where it lies, if it is a shard that shares blocks with others, or a copy of one
    is_part   other ranks have other parts of the weight
    is_replaced
              shards of it have taken its place
    written   in a trace, whether the function that is compiled has written to it, or has made it as
              a copy; else None
    """

    def __init__(
        self,
        whole: torch.Tensor,
        format: Format,
        config: WeightConfig,
        readers: weakref.WeakSet[Cell] | None = None,
    ):
        self.whole, self.format, self._config = whole, format, config
        self.readers = weakref.WeakSet() if readers is None else readers
        self.shard: UnalignedShard | None = None
        self.is_shard = self.is_part = self.is_replaced = False
        self.written: bool | None = None
        self._store: Store | None = None
        self._whole_view: View | None = None
        self._first = 0  # the place of the first element in the store's matrix

    @property
    def config(self) -> WeightConfig:
        return self._config if self._store is None else self._store.config

    @config.setter
    def config(self, config: WeightConfig) -> None:
        self._config = config
        if self._store is not None:
            self._store.config = config

    @property
    def store(self) -> Store:
        """The record of the bytes. Without any before it, they are to be made."""
        if self._store is None:
            self._begin_store()
        return self._store

    @property
    def has_store(self) -> bool:
        """Whether there are bytes, fresh or stale."""
        return self._store is not None

    @property
    def has_exact_bytes(self) -> bool:
        """Whether there are fresh bytes that a cast of the value to nearest need not give."""
        store = self._store
        return store is not None and not (store.is_stale or store.is_nearest)

    def _begin_store(self) -> None:
        whole, shard = self.whole, self.shard
        rows, columns = matrix_shape(whole.shape)
        stored_rows = rows if shard is None else shard.stored_rows
        usages = buffers.kept_usages(self.format, USAGES) if self.is_shard else USAGES
        is_plain = type(whole) is torch.Tensor  # so a fake tensor's are fake, too
        with compiling.without_modes() if is_plain else nullcontext():
            bytes = buffers.allocate(self.format, stored_rows, columns, usages, whole.device)
        master = whole.view(rows, columns)
        # Below autograd torch gives a view a count of its own.
        _C.share_count(master, whole)
        if shard is None:
            store = Store(bytes, master, self._config)
        else:
            store = UnalignedStore(bytes, master, self._config, shard)
        store.partial = self.is_part
        if not bytes.is_plain:  # of which none are made
            store.mark_fresh()
        _C.note_change()
        self.use(View(store))

    def become_shard(
        self, value: torch.Tensor, is_part: bool, shard: UnalignedShard | None
    ) -> None:
        """From now on it is a shard of FSDP2, of this value; `shard`: where it lies, if it shares
        blocks with others.
        """
        self._config = self.config
        self.whole, self.is_shard, self.is_part, self.shard = value, True, is_part, shard
        self._begin_store()

    def use(self, view: View) -> None:
        """From now on that is what `whole` is of a store: in a trace perhaps a part."""
        self._store, self._whole_view, self._first = view.store, view, view.first

    def view(self, value: torch.Tensor) -> View:
        """What a tensor over this memory is of the store: some of its blocks, or values alone. Of
        the whole it is always the same object, by which an optimizer knows it.
        """
        store, whole = self.store, self.whole
        if value is whole or self.is_entire(value):
            return self._whole_view
        offset = value.storage_offset() - whole.storage_offset()
        place = tuple(value.shape), value.stride(), self._first + offset
        found = region.find(*place, store.rows, store.columns)
        if found is None or not self._are_blocks(*found):
            return View(store, place=place)
        return View(store, *found)

    def _are_blocks(self, part: Region, is_exchanged: bool) -> bool:
        """Whether a region has bytes of its own, which scaled products read."""
        is_traced = not self.store.bytes.is_plain
        is_refused = is_exchanged and self.format.rules.transpose.kind == "error"
        if self.is_shard or is_traced or is_refused:
            return False
        try:
            check_cut(self.store, part)
        except ValueError:
            return False
        return True

    def is_entire(self, value: torch.Tensor) -> bool:
        """Whether a tensor over this memory is all of it."""
        places = [(one.shape, one.stride(), one.storage_offset()) for one in (value, self.whole)]
        return places[0] == places[1]

    def copy_of(self, value: torch.Tensor) -> Cell:
        """The cell of a copy in other memory, whose bytes are its own."""
        copy = Cell(value, self.format, self.config, self.readers)
        copy.is_part = self.is_part
        if value.shape == self.whole.shape:
            copy.shard = self.shard
        if self.written is not None or compiling.is_recorded():
            copy.written = True
        return copy
