"""The element types and e8m0, as tables of values."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class Element:
    """One element type. `magnitudes[c]` is the value of the positive code c; they ascend."""

    name: str
    bits: int
    mantissa_bits: int
    magnitudes: np.ndarray  # float64, finite ones only
    nan_code: int  # what a NaN is stored as
    two_complement: bool = False

    @property
    def max(self):
        return np.float32(self.magnitudes[-1])

    @property
    def emax(self):
        return int(np.floor(np.log2(self.magnitudes[-1])))

    @cached_property
    def values(self):
        """The fp32 value of every code, in the order of the codes."""
        half = 1 << (self.bits - 1)
        if self.two_complement:
            unit = self.magnitudes[1]
            return np.array(
                [(c - 2 * half if c >= half else c) * unit for c in range(2 * half)], np.float32
            )
        positive = np.full(half, np.nan)
        positive[: len(self.magnitudes)] = self.magnitudes
        if self.name == "e5m2":
            positive[len(self.magnitudes)] = np.inf
        return np.concatenate([positive, -positive]).astype(np.float32)

    def decode(self, codes):
        return self.values[codes]

    def encode(self, y):
        """fp32 to codes: the nearest value of the list, ties to the even code, saturating."""
        magnitude = np.abs(y.astype(np.float64))
        middles = (self.magnitudes[1:] + self.magnitudes[:-1]) / 2
        below = np.searchsorted(middles, magnitude, side="left")
        above = np.searchsorted(
            middles, magnitude, side="right"
        )  # differs from `below` at a tie alone
        return self._finish(np.where(below % 2 == 0, below, above), y)

    def encode_stochastic(self, y, words):
        """fp32 to codes, up as likely as a value is far from the one below. `words`: uint32."""
        magnitude = np.abs(y.astype(np.float64))
        last = len(self.magnitudes) - 1
        inside = magnitude < self.magnitudes[-1]
        index = np.searchsorted(self.magnitudes, np.where(inside, magnitude, 0), side="right") - 1
        low, high = self.magnitudes[index], self.magnitudes[np.minimum(index + 1, last)]
        fraction = np.where(
            inside, (np.where(inside, magnitude, 0) - low) / np.where(high > low, high - low, 1), 0
        )
        up = (words >> np.uint32(8)).astype(np.float64) < fraction * 2.0**24
        return self._finish(np.where(inside, index + up, last), y)

    def _finish(self, index, y):
        sign = np.signbit(y)
        if self.two_complement:
            codes = np.where(sign, -index, index) & 0xFF
        else:
            codes = index | np.where(sign, 1 << (self.bits - 1), 0)
        return np.where(np.isnan(y), self.nan_code, codes).astype(np.uint8)


def _small_float(name, exponent_bits, mantissa_bits, bias, finite, nan_code):
    """The type of sign, exponent, mantissa whose first `finite` codes are finite."""
    magnitudes = []
    for code in range(finite):
        exponent, mantissa = code >> mantissa_bits, code & ((1 << mantissa_bits) - 1)
        leading = 0 if exponent == 0 else 1
        magnitudes.append(
            (leading + mantissa / (1 << mantissa_bits)) * 2.0 ** (max(exponent, 1) - bias)
        )
    return Element(
        name, 1 + exponent_bits + mantissa_bits, mantissa_bits, np.array(magnitudes), nan_code
    )


def _int8(unit):
    return Element("int8", 8, 6, np.arange(128) * unit, 127, two_complement=True)


_INT8 = {"f32": _int8(1.0), "e8m0": _int8(1 / 64)}

# e4m3 spends its last positive code on NaN, e5m2 its last four on infinity and NaN.
ELEMENTS = {
    "e4m3": _small_float("e4m3", 4, 3, 7, 127, 0x7F),
    "e5m2": _small_float("e5m2", 5, 2, 15, 124, 0x7F),
    "e2m1": _small_float("e2m1", 2, 1, 1, 8, 0x7),
    "e2m3": _small_float("e2m3", 2, 3, 1, 32, 0x1F),
    "e3m2": _small_float("e3m2", 3, 2, 3, 32, 0x1F),
    "int8": _INT8["f32"],
}


def element_of(name, scale_type):
    """The element type beside a scale type: the integer n is n / 64 beside an e8m0 scale."""
    return _INT8[scale_type] if name == "int8" else ELEMENTS[name]


def decode_e8m0(codes):
    """2^(e - 127); 255 is NaN."""
    table = np.append(2.0 ** (np.arange(255.0) - 127), np.nan).astype(np.float32)
    return table[codes]
