"""Delayed scaling: the scale of a step's cast follows from the amaxes of earlier steps."""

from collections import deque

import numpy as np

from reference.quantize import amax_of, quantize
from reference.scales import block_scales

WINDOW = 1024


class Delayed:
    """One tensor's history. `present` is the multiplier of encoding behind the bytes made last,
    `next` that of the cast to come; fp32, None before the first cast.
    """

    def __init__(self, fmt):
        self.fmt = fmt
        self.amaxes = deque(maxlen=WINDOW)
        self.present = self.next = None

    def _multiplier(self, amax):
        return block_scales(np.array([[amax]], np.float32), self.fmt)[1][0, 0]

    def cast(self, x, **options):
        """The bytes of the fp32 matrix x, whose amax is then remembered."""
        amax = amax_of(x)[0, 0]
        self.present = self._multiplier(amax) if self.next is None else self.next
        q = quantize(x, self.fmt, tensor_multiplier=self.present, **options)
        self.amaxes.append(amax)
        largest = max(self.amaxes)
        if 0 < largest < np.inf:
            self.next = self._multiplier(largest)
        else:
            self.next = self.present
        return q

    def again(self, x, **options):
        """The present bytes, as a loaded state makes them: nothing is remembered."""
        return quantize(x, self.fmt, tensor_multiplier=self.present, **options)
