"""Flat shards, as the distributed optimizers of ZeRO have them: each rank owns a run of elements of
each weight, which begins and ends anywhere, casts or updates it, and gathers those of others.
"""

from narrowcast.flat.columnwise import post_all_gather_processing
from narrowcast.flat.fusing import fuse, unfuse
from narrowcast.flat.gather import Gather
from narrowcast.flat.master_weights import forget, quantize_master_weights

__all__ = [
    "Gather",
    "forget",
    "fuse",
    "post_all_gather_processing",
    "quantize_master_weights",
    "unfuse",
]
