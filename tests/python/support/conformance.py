"""The loaded formats as the reference reads their specs, and comparisons with its bytes."""

from pathlib import Path

import numpy as np
import pytest
import torch

import narrowcast as nc
import reference
import values
from weights import quantized

ROOT = Path(__file__).parents[3]
BUFFERS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
KINDS = values.FINITE | values.SPECIAL
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def specs():
    """The spec file of every loaded format that has one in the tree."""
    paths = {path.stem: path for path in sorted((ROOT / "spec").glob("*.toml"))}
    return {name: reference.load_format(paths[name]) for name in nc.formats() if name in paths}


FORMATS = specs()
FORMAT_NAMES = pytest.mark.parametrize("name", FORMATS)
# Of a matrix that ends within blocks of both moments and weights; on a GPU of many thread blocks.
COLUMNS = 1412 if len(DEVICES) > 1 else 388
ON_DEVICES = pytest.mark.parametrize("device", DEVICES)


def holds(fmt, shape, usage):
    """Whether a usage's stored rows fill whole bytes."""
    length = shape[0] if getattr(fmt, usage).transposed else shape[1]
    return length % fmt.group == 0


def usages(fmt, shape):
    return {usage: holds(fmt, shape, usage) for usage in ("rowwise", "columnwise")}


def assert_same(got, expected, where):
    """Equal bytes in every buffer; both sides have the same ones."""
    for name in (*BUFFERS, "tensor_amax"):
        ours, truth = getattr(quantized(got), name), getattr(expected, name)
        assert (ours is None) == (truth is None), f"{where}: {name}"
        if truth is None:
            continue
        ours = ours.cpu().numpy()
        assert ours.shape == truth.shape, f"{where}: {name}"
        assert ours.dtype == truth.dtype, f"{where}: {name}"
        wrong = np.argwhere(ours.view(np.uint8) != np.ascontiguousarray(truth).view(np.uint8))
        assert len(wrong) == 0, f"{where}: {name} differs first at byte {wrong[0]}"


def assert_updated(parameter, name, value, where):
    """The bytes of both usages after an optimizer's step that left this value."""
    options = {"rowwise": True, "columnwise": True}
    # test_delayed_scaling.py holds the history to the page
    if FORMATS[name].amax == "delayed":
        options["tensor_multiplier"] = quantized(parameter).history[0].item()
    assert_same(parameter.detach(), reference.quantize(value, FORMATS[name], **options), where)


def narrowed(x, dtype):
    """fp32 values rounded once to the dtype, as fp32."""
    if dtype == torch.bfloat16:
        return reference.round_to_bf16(x)
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float16).astype(np.float32) if dtype == torch.float16 else x
