"""Inputs of fuzz_parts: the parts of well-formed QuantizedTensors, changed at random. An input is a
function of a seed and its number alone.
"""

import math
import random

import torch
from torch import nn

import narrowcast as nc
from changes import CHANGES, FIELDS, TENSORS


class Mutator:
    def __init__(self, seed: int):
        self._seed, self._formats = seed, nc.formats()

    def input(self, number: int) -> tuple[random.Random, list, list[str]]:
        """The random numbers for what follows, the arguments of rebuild, and what was changed."""
        rng = random.Random(f"{self._seed} {number}")
        torch.manual_seed(rng.getrandbits(32))
        _, arguments = self._well_formed(rng).__reduce_ex__(2)
        arguments, done = list(arguments), []
        arguments[TENSORS] = [one if one is None else one.clone() for one in arguments[TENSORS]]
        for _ in range(rng.randint(0 if rng.random() < 0.1 else 1, 3)):
            change = rng.choice(CHANGES)
            if len(arguments) == len(FIELDS) and isinstance(arguments[TENSORS], list):
                done.append(f"{change.__name__[1:]}: {change(rng, arguments)}")
        return rng, arguments, done

    def _well_formed(self, rng: random.Random):
        format = rng.choice(self._formats)
        f = nc.format(format)
        step = math.lcm(f.row_step, f.column_step, f.group)
        rows, columns = (step * rng.randint(1, 1 + 64 // step) for _ in range(2))
        device = "meta" if rng.random() < 0.1 else "cpu"
        if rng.random() < 0.5:
            layer = nn.Linear(columns, rows, bias=False, device=device)
            scaled = f.matmul is not None and rng.random() < 0.3
            matmul = "scaled" if scaled else "dequantized"
            tensor = nc.convert(layer, format, matmul=matmul).weight
            tensor = tensor if rng.random() < 0.5 else tensor.detach()
        else:
            rows = rng.choice((rows, rows, rows, 0))
            value = torch.randn(rows, columns, device=device).to(
                rng.choice((torch.float32, torch.bfloat16, torch.float16))
            )
            usages = rng.choice(({}, {"rowwise": False}, {"columnwise": False}))
            tensor = nc.quantize(value, format, **usages)
        return _viewed(rng, tensor, step)


def _viewed(rng: random.Random, tensor, step: int):
    """A view of a matrix, or itself."""
    rows, columns = tensor.shape
    kind = rng.choice(("itself", "itself", "slice", "columns", "flat", "split", "transposed"))
    if kind == "slice":
        return tensor[rng.randrange(0, rows + 1, step) :]
    if kind == "columns":
        return tensor[:, rng.randrange(0, columns, step) :]
    if kind == "flat" and rows:
        return tensor.detach().view(-1)
    if kind == "split" and rows:
        return tensor.detach().view(rows // step, step, columns)
    if kind == "transposed" and tensor.format.rules.transpose.kind == "exact":
        return tensor.detach().t()
    return tensor
