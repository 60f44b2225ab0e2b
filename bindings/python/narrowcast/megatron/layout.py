"""Which elements of which weight each data-parallel rank owns, by Megatron's layout of buckets."""

from __future__ import annotations

from collections.abc import Sequence


def owned(
    places: Sequence[tuple[int, int]], elements: int, ranks: int
) -> list[list[tuple[int, int]]]:
    """ranges[rank][weight] = (begin, end), in elements of the flattened weight; (0, 0) where the
    rank owns nothing of it. Rank r owns the elements [r * S, (r + 1) * S) of the bucket.

    places    of each weight, [begin, end) in the bucket
    elements  of the bucket, a multiple of `ranks`: S = elements / ranks
    """
    if elements % ranks != 0:
        raise ValueError(f"{elements} elements of a bucket are not shared by {ranks} ranks")
    size = elements // ranks
    return [
        [_within(begin, end, rank * size, (rank + 1) * size) for begin, end in places]
        for rank in range(ranks)
    ]


def _within(begin: int, end: int, first: int, last: int) -> tuple[int, int]:
    """Of the weight at [begin, end), the elements that [first, last) holds."""
    own = max(begin, first) - begin, min(end, last) - begin
    return own if own[0] < own[1] else (0, 0)
