"""The layouts in which open models are published, as a table: what a weight's bytes must be to fit
one, and under which names and dtypes readers look for them. docs/publishing.md says who reads each.

A format has a layout if its rowwise bytes are what a scheme of that layout holds; nothing here
names a format.
"""

from __future__ import annotations

from typing import NamedTuple


class Scheme(NamedTuple):
    """How a layout stores weights of one kind.

    element, scale  of the format, as nc.format() has them
    block           elements with one scale in the file: (rows, columns), "tensor", or "square" for
                    the format's own square block. A block of the format may hold several of these
    algorithm       what configurations call it
    codes           the name behind the module's, and the dtype that readers expect
    scales          the same of the scales, which multiply codes
    global_scale    the same of the scale above those, float32; None if there is none
    is_reciprocal   the file has 1 / global_scale
    one             the shape of a scale of the whole tensor
    """

    element: str
    scale: str
    block: tuple[int, int] | str
    algorithm: str
    codes: tuple[str, str]
    scales: tuple[str, str]
    global_scale: str | None = None
    is_reciprocal: bool = False
    one: tuple[int, ...] = (1,)

    def holds(self, format) -> bool:
        """Whether the rowwise bytes of a format are of this kind."""
        layout, has_two_levels = format.rowwise, format.tensor_scale is not None
        kinds = format.element, layout.element_bits, format.scale, has_two_levels
        expected = self.element, self.bits, self.scale, self.global_scale is not None
        if layout.transposed or kinds != expected:
            return False
        if "tensor" in (self.block, layout.block):
            return self.block == layout.block
        rows, columns = layout.block
        if self.block == "square":
            return rows == columns
        return rows % self.block[0] == 0 and columns % self.block[1] == 0

    @property
    def bits(self) -> int:
        """Of an element."""
        return {"e2m1": 4, "e2m3": 6}.get(self.element, 8)

    def block_of(self, format) -> tuple[int, int] | str:
        """`block`, where it is the format's own the numbers of that."""
        return format.rowwise.block if self.block == "square" else self.block


# Names and dtypes in files.
_FP8 = "weight", "float8_e4m3fn"
_U8 = "weight", "uint8"
_I8 = "weight", "int8"
_PACKED = "weight_packed", "uint8"
_FP8_SCALE = "weight_scale", "float8_e4m3fn"
_U8_SCALE = "weight_scale", "uint8"
_F32_SCALE = "weight_scale", "float32"
_F32_INV = "weight_scale_inv", "float32"
_U8_INV = "weight_scale_inv", "uint8"
_E8M0 = "scale", "float8_e8m0fnu"
_GLOBAL, _SCALE_2 = "weight_global_scale", "weight_scale_2"

# In each layout the first scheme that holds a format is its scheme.
LAYOUTS: dict[str, list[Scheme]] = {
    "deepseek": [
        Scheme("e4m3", "f32", "square", "fp8", _FP8, _F32_INV),
        Scheme("e4m3", "e8m0", "square", "fp8", _FP8, _E8M0),
        Scheme("e2m1", "e8m0", (1, 32), "fp4", _I8, _E8M0),
    ],
    "mxfp8": [Scheme("e4m3", "e8m0", (1, 32), "mxfp8", _FP8, _U8_INV)],
    "compressed-tensors": [
        Scheme("e4m3", "e8m0", (1, 32), "mxfp8-quantized", _FP8, _U8_SCALE),
        Scheme("e2m3", "e8m0", (1, 32), "mxfp6-pack-quantized", _PACKED, _U8_SCALE),
        Scheme("e2m1", "e8m0", (1, 32), "mxfp4-pack-quantized", _PACKED, _U8_SCALE),
        Scheme("e2m1", "e4m3", (1, 16), "nvfp4-pack-quantized", _PACKED, _FP8_SCALE, _GLOBAL, True),
        Scheme("e4m3", "f32", "square", "float-quantized", _FP8, _F32_SCALE),
        Scheme("e4m3", "f32", "tensor", "float-quantized", _FP8, _F32_SCALE),
    ],
    "modelopt": [
        Scheme("e2m1", "e4m3", (1, 16), "W4A16_NVFP4", _U8, _FP8_SCALE, _SCALE_2, one=()),
        Scheme("e4m3", "e8m0", (1, 32), "MXFP8", _FP8, _U8_SCALE),
        Scheme("e4m3", "f32", "tensor", "FP8", _FP8, _F32_SCALE, one=()),
    ],
    "gpt-oss": [Scheme("e2m1", "e8m0", (1, 32), "mxfp4", ("blocks", "uint8"), ("scales", "uint8"))],
}

# The layout of a folder, by the quant_method of its config.json.
METHODS = {
    "fp8": "deepseek",
    "mxfp8": "mxfp8",
    "compressed-tensors": "compressed-tensors",
    "modelopt": "modelopt",
    "mxfp4": "gpt-oss",
}


def scheme_of(format, layout: str) -> Scheme | None:
    """How a layout stores weights in a format; None if it cannot."""
    return next((scheme for scheme in LAYOUTS[layout] if scheme.holds(format)), None)
