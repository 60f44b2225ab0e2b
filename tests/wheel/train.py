"""Trains two small models for two steps, the one from random inputs, the other from fixed
gradients. Prints the losses of the one and a hash of the bytes of the other, for each format that
is named. test_wheel.py runs it where nothing but the wheel is installed.
"""

import hashlib
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc

ROWS, COLUMNS = 256, 384


def losses(format: str) -> list[float]:
    """Of two steps on one batch, under FSDP2 with one rank."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(COLUMNS, ROWS), nn.GELU(), nn.Linear(ROWS, COLUMNS))
    model = nc.convert(model, format)
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    inputs = torch.randn(64, COLUMNS)
    found = []
    for _ in range(3):
        loss = F.mse_loss(model(inputs), inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found


def hash_of(format: str) -> str:
    """Of the weight's bytes after two steps. No random number and no sum has a part in them."""
    numbers = torch.arange(ROWS * COLUMNS, dtype=torch.float64).reshape(ROWS, COLUMNS)
    layer = nn.Linear(COLUMNS, ROWS, bias=False)
    with torch.no_grad():
        layer.weight.copy_((numbers * 37 % 1009 - 504) / 512)
    nc.convert(layer, format)
    optimizer = nc.FusedAdam(layer.parameters(), lr=1e-2)
    for step in (1, 2):
        layer.weight.grad = ((numbers * (53 + step) % 997 - 498) / 4096).float()
        optimizer.step()
    weight = layer.weight
    weight = nc.QuantizedTensor(weight._view, weight.shape, weight.dtype)  # its bytes
    hashed = hashlib.sha256()
    for buffer in (weight.rowwise_data, weight.rowwise_scale_inv):
        hashed.update(buffer.contiguous().view(torch.uint8).numpy().tobytes())
    return hashed.hexdigest()


def main() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    for format in sys.argv[1:]:
        print(format, *losses(format), hash_of(format))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
