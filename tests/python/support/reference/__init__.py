"""An independent truth for the tests: what every byte is, in numpy, straight from the definitions.

Nothing here is taken from narrowcast or from torch. Codes are found in tables of values, scales
follow docs/numerics.md line by line, and layouts come from the facts of a spec file. Slow where
that keeps it plain, but fit for matrices of a few million elements.
"""

from reference.adam import adam, bias_constants, fma
from reference.delayed import Delayed
from reference.floats import round_to_bf16, same_bits
from reference.formats import Format, Usage, load_format
from reference.lion import lion
from reference.numbers import ELEMENTS, Element, decode_e8m0
from reference.philox import philox, random_words
from reference.quantize import Quantized, amax_of, dequantize, derive_columnwise, quantize
from reference.reduce import cast_part, part_of, reduce_scatter
from reference.scales import block_scales, tensor_factors
from reference.sgd import sgd
from reference.split import draw, join, split
from reference.state import StateFormat, load_state_format

__all__ = [
    "ELEMENTS",
    "Delayed",
    "Element",
    "Format",
    "Quantized",
    "StateFormat",
    "Usage",
    "adam",
    "amax_of",
    "bias_constants",
    "block_scales",
    "cast_part",
    "decode_e8m0",
    "dequantize",
    "derive_columnwise",
    "draw",
    "fma",
    "join",
    "lion",
    "load_format",
    "load_state_format",
    "part_of",
    "philox",
    "quantize",
    "random_words",
    "reduce_scatter",
    "round_to_bf16",
    "same_bits",
    "sgd",
    "split",
    "tensor_factors",
]
