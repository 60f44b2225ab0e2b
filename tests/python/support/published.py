"""An independent reader of published files: numbers by their definitions, in numpy."""

import json

import numpy as np
import torch
from safetensors.torch import load_file

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=np.float32)
EIGHTHS = np.arange(8, dtype=np.float32) / 8
E2M3 = np.concatenate([EIGHTHS, 1 + EIGHTHS, 2 + 2 * EIGHTHS, 4 + 4 * EIGHTHS])


def read(folder):
    """All tensors of a folder, and its quantization_config."""
    tensors = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    config = json.loads((folder / "config.json").read_text())
    return tensors, config["quantization_config"]


def codes(tensor, bits=4):
    """The values of codes: e4m3 by torch, others by tables. e2m1 has the even column in the low
    nibble, e2m3 four columns in three bytes, the first one lowest.
    """
    if tensor.dtype == torch.float8_e4m3fn:
        return tensor.float().numpy()
    packed = tensor.view(torch.uint8).numpy().reshape(*tensor.shape[:-1], -1)
    if bits == 6:
        places = np.unpackbits(packed, axis=-1, bitorder="little").reshape(
            *packed.shape[:-1], -1, 6
        )
        magnitudes = E2M3[places[..., :5] @ (1 << np.arange(5))]
        return np.where(places[..., 5], -magnitudes, magnitudes)
    both = np.stack([packed & 15, packed >> 4], -1).reshape(*packed.shape[:-1], -1)
    return np.where(both & 8, -E2M1[both & 7], E2M1[both & 7])


def scales(tensor):
    """The values of scales: uint8 and e8m0 are exponents."""
    if tensor.dtype in (torch.uint8, torch.float8_e8m0fnu):
        exponents = tensor.view(torch.uint8).numpy().astype(np.int32)
        return np.ldexp(np.float32(1), exponents - 127)
    return tensor.float().numpy()


def decoded(tensors, stem, config):
    """The float32 value of a weight, whichever layout it is in."""
    there = {
        name[len(stem) :].lstrip("._"): t for name, t in tensors.items() if name.startswith(stem)
    }
    if "blocks" in there:
        blocks = codes(there["blocks"].flatten(-2))
        return spread(blocks, scales(there["scales"]))
    bits = 6 if "mxfp6" in str(config) else 4
    value = codes(there.get("weight_packed", there.get("weight")), bits)
    scale = next(
        there[one] for one in ("weight_scale_inv", "weight_scale", "scale") if one in there
    )
    scale = scales(scale)
    if "weight_scale_2" in there:
        scale = scale * there["weight_scale_2"].numpy()
    if "weight_global_scale" in there:
        scale = scale / there["weight_global_scale"].numpy()
    return spread(value, scale)


def spread(value, scale):
    if scale.size == 1:
        return value * scale.reshape(())
    down, across = (
        -(-size // count) for size, count in zip(value.shape[-2:], scale.shape[-2:], strict=True)
    )
    every = scale.repeat(block(down), -2).repeat(block(across), -1)
    return value * every[..., : value.shape[-2], : value.shape[-1]]


def block(size):
    """Blocks are powers of two: of an edge, the next one."""
    return 1 << (size - 1).bit_length()
