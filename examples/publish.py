"""Trains a small model in MXFP8 on two ranks, publishes its bytes, and reads them again.

    torchrun --nproc-per-node 2 examples/publish.py [folder]

The folder is what an inference engine loads. Without a GPU it runs on the CPU.
"""

import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc

FORMAT, LAYOUT = "mxfp8_e4m3", "mxfp8"


def build(device):
    torch.manual_seed(0)
    layers = nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)
    return fully_shard(nc.convert(nn.Sequential(*layers).to(device), FORMAT))


def main():
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    model = build(device)
    optimizer = nc.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(20):
        x = torch.randn(64, 256, device=device)
        F.mse_loss(model(x), x).backward()
        optimizer.step()
        optimizer.zero_grad()

    names = [sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()]
    dist.broadcast_object_list(names)
    folder = Path(names[0])
    nc.export(model, folder, LAYOUT, plain_dtype=None, overwrite=True)  # biases as they are
    other = build(device)
    nc.load_published(other, folder)

    x = torch.randn(8, 256, device=device)
    assert torch.equal(model(x), other(x))
    if dist.get_rank() == 0:
        print(f"{folder}: {', '.join(sorted(one.name for one in folder.iterdir()))}")
        print("the model that was loaded has the same outputs")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
