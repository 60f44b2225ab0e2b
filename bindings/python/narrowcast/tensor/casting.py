"""Bytes from values and values from bytes, of one matrix or of many."""

from __future__ import annotations

from collections import defaultdict
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

import torch

from narrowcast import _C
from narrowcast.registry import USAGES
from narrowcast.tensor import compiling, scale_groups

if TYPE_CHECKING:
    from narrowcast.tensor.store import Store

NEWEST_AMAX = slice(2, 3)  # of a history
# Whether launches leave a matrix as it is. Maxima are of the bits as int32, of which those of -1.0
# are negative: a matrix is taken if any rank takes it.
SKIP, TAKE = -1.0, 0.0


class RngKey(NamedTuple):
    """What the random words of stochastic rounding are a function of: docs/numerics.md, "Stochastic
    rounding". `first`: the index of the matrix's first element in the whole tensor.
    """

    seed: int
    step: int
    first: int


def decode(bytes: _C.Buffers, dtype: torch.dtype, usage: str) -> torch.Tensor:
    """The value [rows, columns] of a usage that is there. On meta, and where a mode or a trace
    looks at operators, by one.
    """
    if bytes.is_plain and not _C.is_watched():
        return bytes.decode(usage, dtype)
    with compiling.without_modes() if bytes.is_plain else nullcontext():
        key = _C.graph_key(_C.Store(bytes, None))
    return torch.ops.narrowcast.dequantize(*decoding(key, bytes, dtype, usage, []))


def decoding(
    key: torch.Tensor, bytes: _C.Buffers, dtype: torch.dtype, usage: str, operands: list
) -> tuple:
    """The arguments of the operator that decodes. `operands`: of the product that it is for."""
    compiling.check_export(f"a {bytes.rows}x{bytes.columns} matrix in {bytes.format.name}")
    matrix = [bytes.rows, bytes.columns]
    return key, matrix, bytes.format.name, USAGES.index(usage), dtype, operands


def cast_value(
    bytes: _C.Buffers, value: torch.Tensor, source_bf16: bool = False, rng_key: RngKey | None = None
) -> None:
    """Makes a matrix's bytes from a value, [rows, columns]; with a key codes are stochastic."""
    if bytes.is_plain:
        one = _C.CastList([bytes], [value.resolve_neg().contiguous()])
        one.cast(one.find_amaxes(source_bf16), source_bf16, rng_key and [rng_key])


def casts_of(stores: list[Store]) -> _C.CastList:
    """The casts of matrices from their masters, as one list."""
    return _C.CastList([store.bytes for store in stores], [store.master for store in stores])


def cast_masters(stores: list[Store]) -> None:
    """Makes the bytes of matrices from their masters. They are whole tensors, or have no scale that
    spans more. One launch for each device and format, two if a scale spans the tensor, four if some
    share one. ValueError if a matrix shares a scale with one that is not there.
    """
    alike = defaultdict(list)
    for store in stores:
        if store.bytes.is_plain:
            alike[store.bytes.device, store.format].append(store)
    for same in alike.values():
        casts, peers = casts_of(same), scale_groups.peers_of(same)
        amaxes = casts.find_amaxes()
        scale_groups.share(peers, amaxes)
        casts.cast(amaxes)
    for store in stores:
        store.mark_fresh(by_nearest=True)
