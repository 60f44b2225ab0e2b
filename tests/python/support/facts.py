"""The formats as the table of docs/numerics.md lists them; spec files must agree."""

from reference.formats import format_from


def _mx(element, columnwise):
    """An e8m0 format of 1x32 and 32x1 blocks."""
    return {
        "element": element,
        "scale": "e8m0",
        "rowwise": {"block": [1, 32], "scale_pad": [128, 4]},
        "columnwise": columnwise,
    }


_STRAIGHT = {"block": [32, 1], "scale_pad": [4, 128]}
_EXCHANGED = {"block": [32, 1], "scale_pad": [128, 4], "transposed": True}


def _fp8(element, **rest):
    columnwise = {"block": "tensor", "transposed": True}
    return {
        "element": element,
        "scale": "f32",
        "rule": "exact",
        "rowwise": {"block": "tensor"},
        "columnwise": columnwise,
        **rest,
    }


def _nvfp4(rowwise, columnwise):
    return {
        "element": "e2m1",
        "scale": "e4m3",
        "tensor_scale": "f32",
        "rule": "nearest_even",
        "rowwise": {"scale_pad": [128, 4], **rowwise},
        "columnwise": {"scale_pad": [128, 4], "transposed": True, **columnwise},
    }


_TABLE = {
    "fp8_e4m3": _fp8("e4m3"),
    "fp8_e5m2": _fp8("e5m2"),
    "fp8_e4m3_delayed": _fp8("e4m3", amax="delayed"),
    "fp8_block128": {
        "element": "e4m3",
        "scale": "f32",
        "rule": "rceil",
        "rowwise": {"block": [128, 128], "scale_pad": [1, 4]},
        "columnwise": {"block": [128, 128], "scale_pad": [1, 4], "transposed": True},
    },
    "fp8_block128_f32": {
        "element": "e4m3",
        "scale": "f32",
        "rule": "quotient",
        "rowwise": {"block": [128, 128], "scale_pad": [1, 4]},
        "columnwise": {"block": [128, 128], "scale_pad": [1, 4], "transposed": True},
    },
    "fp8_block1x128": {
        "element": "e4m3",
        "scale": "f32",
        "rule": "rceil",
        "rowwise": {"block": [1, 128], "scale_pad": [1, 4], "scale_transposed": True},
        "columnwise": {
            "block": [128, 1],
            "scale_pad": [1, 4],
            "transposed": True,
            "scale_transposed": False,
        },
    },
    "fp8_block1x128_128x128": {
        "element": "e4m3",
        "scale": "f32",
        "rule": "rceil",
        "rowwise": {"block": [1, 128], "scale_pad": [1, 4], "scale_transposed": True},
        "columnwise": {"block": [128, 128], "scale_pad": [1, 4], "transposed": True},
    },
    "mxfp8_e4m3": {**_mx("e4m3", _STRAIGHT), "rule": "rceil"},
    "mxfp8_e5m2": {**_mx("e5m2", _STRAIGHT), "rule": "rceil"},
    "mxfp8_2d": {
        "element": "e4m3",
        "scale": "e8m0",
        "rule": "rceil",
        "rowwise": {"block": [32, 32], "scale_per": [1, 32], "scale_pad": [128, 4]},
        "columnwise": {"block": [32, 32], "scale_per": [32, 1], "scale_pad": [4, 128]},
    },
    "nvfp4": _nvfp4(
        {"block": [16, 16], "scale_per": [1, 16]}, {"block": [16, 16], "scale_per": [16, 1]}
    ),
    "nvfp4_1d": _nvfp4({"block": [1, 16]}, {"block": [16, 1]}),
    "mxfp4": {**_mx("e2m1", _EXCHANGED), "rule": "even"},
    "mxfp6_e2m3": {**_mx("e2m3", _EXCHANGED), "rule": "rceil"},
    "mxfp6_e3m2": {**_mx("e3m2", _EXCHANGED), "rule": "rceil"},
    "mxint8": {**_mx("int8", _STRAIGHT), "rule": "floor"},
    "int8_block32": {
        "element": "int8",
        "scale": "f32",
        "rule": "exact",
        "rowwise": {"block": [32, 32]},
        "columnwise": {"block": [32, 32], "transposed": True},
    },
}


def spec(name):
    """The facts of one format in the shape of a spec file's tables."""
    row = _TABLE[name]
    facts = {
        "format": name,
        "element": {"type": row["element"]},
        "scale": {"type": row["scale"]},
        "rowwise": row["rowwise"],
        "columnwise": row["columnwise"],
        "quantize": {"scale": row["rule"], "amax": row.get("amax", "current")},
    }
    if "tensor_scale" in row:
        facts["tensor_scale"] = {"type": row["tensor_scale"]}
    return facts


NAMES = tuple(_TABLE)
FORMATS = {name: format_from(spec(name)) for name in NAMES}
