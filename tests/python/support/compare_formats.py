"""Loads plugins and compares what they make with the reference, byte for byte.

Usage: python compare_formats.py PLUGINS SPEC...; prints each difference, and ends with 1 if there
is one. A program of its own, so that a test's formats are not those of the tests after it.
"""

import sys

import numpy as np
import torch
from torch import nn

import narrowcast as nc
import reference
import values
from weights import quantized

BYTES = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
BUFFERS = (*BYTES, "tensor_amax")
# Ragged against every block and tile; some hold one usage alone of a packed format.
SHAPES = ((1, 1), (36, 52), (130, 260), (257, 132), (4, 1200), (300, 4), (0, 8))
STEPPED = ((36, 52), (300, 4))  # whole bytes in both usages
KINDS = ("random", "points", "thresholds_1x16", "underflowing", "random_bits")
SPECIAL = ("nans_beside_infinities", "zeros", "subnormal", "largest")
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def same(ours, truth):
    if ours is None or truth is None:
        return ours is truth
    ours = ours.cpu().numpy()
    as_bytes = ours.view(np.uint8), np.ascontiguousarray(truth).view(np.uint8)
    return ours.shape == truth.shape and np.array_equal(*as_bytes)


def differences(fmt, x, device):
    """What differs for one matrix: the buffers, the decoded values, and columnwise as derived."""
    wanted = {
        usage: x.shape[0 if getattr(fmt, usage).transposed else 1] % fmt.group == 0
        for usage in ("rowwise", "columnwise")
    }
    if not any(wanted.values()):
        return
    truth = reference.quantize(x, fmt, **wanted)
    q = nc.quantize(torch.from_numpy(x).to(device), fmt.name, **wanted)
    yield from (name for name in BUFFERS if not same(getattr(q, name), getattr(truth, name)))
    for usage in (usage for usage, is_there in wanted.items() if is_there):
        decoded = q.dequantize(usage=usage).cpu().numpy()
        if not reference.same_bits(decoded, reference.dequantize(truth, fmt, x.shape, usage)):
            yield f"{usage} decoded"
    if fmt.derived and all(wanted.values()):
        expected = reference.derive_columnwise(truth, fmt, x.shape)
        if not all(map(same, (q.columnwise_data, q.columnwise_scale_inv), expected)):
            yield "columnwise derived"


def differences_of_steps(fmt, x, device):
    """What differs after a step of the optimizer, which rounds stochastically."""
    layer = nn.Linear(*x.shape[::-1], bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(x))
    weight = nc.convert(layer.to(device), fmt.name).weight
    optimizer = nc.FusedAdam([weight], lr=1e-2, rounding="stochastic", seed=3)
    delayed = reference.Delayed(fmt) if fmt.amax == "delayed" else None
    if delayed:
        delayed.cast(x)
    for t in (1, 2, 3):
        weight.grad = torch.from_numpy(x * np.float32(t)).to(device)
        optimizer.step()
        value = weight.value.cpu().numpy()
        options = {"rounding": "stochastic", "seed": 3, "step": t}
        truth = delayed.cast(value, **options) if delayed else None
        truth = truth or reference.quantize(value, fmt, **options)
        for name in BUFFERS:
            if not same(getattr(quantized(weight), name), getattr(truth, name)):
                yield f"{name} after step {t}"


def main(plugins, *specs):
    nc.load_plugin(plugins)
    faults = 0
    for fmt in map(reference.load_format, specs):
        rng = np.random.default_rng(len(fmt.name))
        for i, shape in enumerate(SHAPES):
            for kind in (*KINDS, SPECIAL[i % len(SPECIAL)]) if 0 not in shape else ("zeros",):
                x = (values.FINITE | values.SPECIAL)[kind](shape, rng)
                for device in DEVICES:
                    found = [*differences(fmt, x, device)]
                    if kind == "random" and shape in STEPPED:
                        found += differences_of_steps(fmt, x, device)
                    faults += len(found)
                    for what in found:
                        print(f"{fmt.name} {shape} {kind} {device}: {what} differs")
    print(f"{len(specs)} formats, {faults} differences")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
