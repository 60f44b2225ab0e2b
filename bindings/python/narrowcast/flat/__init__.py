"""Flat shards, as the distributed optimizers of ZeRO have them: each rank owns a run of elements of
each weight, which begins and ends anywhere, casts or updates it, and gathers those of others.

A weight of three rows and four columns, two ranks, at each moment. `#` is this rank's own, `.` of
an older value, `=` new wherever it came from; S the scale of a block, here a row:

                   rank 0              rank 1
    handed in      #######_____        _______#####      float32 masters (shards.py); all ranks
                   [0, 7)              [7, 12)           learn all ranges, once
       |  quantize_master_weights (master_weights.py), or a step that was fused (fusing.py): one
       |  launch; the amax of the second row, which the cut divides, is reduced (exchange.py), and
       v  that of the tensor where a scale spans it; then what waited for the amaxes is cast
    cast           ####  S             ....  .           the weight's bytes, on each rank; both have
                   ###.  S             ...#  S           the scale of the row that they share
                   ....  .             ####  S
       v  Gather (gather.py): a launch packs a rank's own bytes, one all-gather, a launch unpacks
    gathered       ====  S             ====  S           columnwise bytes that follow from rowwise
                   ====  S             ====  S           ones are absent
                   ====  S             ====  S
       v  post_all_gather_processing, or the first reader: one launch
    whole          rowwise and columnwise bytes are those of a cast of the whole master

FSDP2's shards that share blocks are such shards as well: fsdp/stale.py casts them as such.
"""

from narrowcast.flat.fusing import fuse, unfuse
from narrowcast.flat.gather import Gather, post_all_gather_processing
from narrowcast.flat.master_weights import forget, quantize_master_weights

__all__ = [
    "Gather",
    "forget",
    "fuse",
    "post_all_gather_processing",
    "quantize_master_weights",
    "unfuse",
]
