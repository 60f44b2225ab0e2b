"""A model of weights in several formats and plain ones, and all that a step may change of it."""

import torch
from torch import nn

import narrowcast as nc
from internals import tensors_of
from models import same

MIXED = ["mxfp8_e4m3", "nvfp4", None]


def model_of(device="cpu", dtype=torch.float32):
    """A weight of each format, a plain one, and biases."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in MIXED)).to(device, dtype)
    for index, format in enumerate(MIXED):
        if format is not None:
            nc.convert(layers, format, filter=lambda name, _, index=index: name == str(index))
    return layers


def give_gradients(model, seed=0, dtype=None):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        gradient = torch.randn(p.shape, generator=generator)
        p.grad = gradient.to(p.device, dtype or p.dtype)


def snapshot(model, optimizer):
    """Copies of all that a step may change."""
    found = []
    for p in model.parameters():
        found += [value.clone() for value in optimizer.state.get(p, {}).values()]
        if isinstance(p, nc.MasterWeight):
            found += [tensor.clone() for tensor in tensors_of(p)]
        else:
            found.append(p.detach().clone())
    return found


def unchanged(before, model, optimizer):
    after = snapshot(model, optimizer)
    return len(before) == len(after) and all(map(same, before, after))
