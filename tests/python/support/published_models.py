"""Small models to publish, and what each layout calls a global scale."""

import torch
from torch import nn

import narrowcast as nc

GLOBAL = {"modelopt": "weight_scale_2", "compressed-tensors": "weight_global_scale"}
FORMAT, LAYOUT = "mxfp8_e4m3", "mxfp8"  # of export()
SMALL = 5e-5  # GB: several files


def build(format, seed=0, device="cpu", **options):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(256, 384), nn.Linear(384, 128, bias=False), nn.LayerNorm(128), nn.Linear(128, 5)
    )
    return nc.convert(model.to(device), format, filter=["0", "1"], **options)


def export(seed, path, **options):
    nc.export(build(FORMAT, seed=seed), path, LAYOUT, **options)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.w1 = nn.Parameter(torch.randn(3, 64, 128))

    def forward(self, x):
        return x @ self.w1.transpose(-2, -1)
