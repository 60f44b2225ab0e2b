"""Layers of experts, and the ways in which torchtitan cuts them over ranks."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed._functional_collectives import all_to_all_single_autograd
from torch.distributed.tensor import (
    DTensor,
    Partial,
    Replicate,
    Shard,
    distribute_module,
    distribute_tensor,
)
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module

import narrowcast as nc
from models import unit

COUNT, TOKENS = 4, 16  # experts; tokens of a rank, the same number for each expert


class GroupedExperts(nn.Module):
    """Weights [experts, out, in], multiplied in the order of the tokens' experts."""

    def __init__(self, width, hidden, grouped):
        super().__init__()
        self.grouped = grouped
        self.up = nn.Parameter(torch.randn(COUNT, hidden, width) / width**0.5)
        self.down = nn.Parameter(torch.randn(COUNT, width, hidden) / hidden**0.5)

    def forward(self, x):
        up, down = (w.to_local() if isinstance(w, DTensor) else w for w in (self.up, self.down))
        if self.grouped:
            ends = torch.arange(1, len(up) + 1, dtype=torch.int32) * (len(x) // len(up))
            hidden = F.grouped_mm(x, up.transpose(-2, -1), offs=ends)
            return F.grouped_mm(F.silu(hidden), down.transpose(-2, -1), offs=ends)
        parts = zip(x.chunk(len(up)), up, down, strict=True)
        return torch.cat([F.silu(one @ a.t()) @ b.t() for one, a, b in parts])


class Layer(nn.Module):
    """Each token goes to an expert by its place."""

    def __init__(self, width, grouped):
        super().__init__()
        self.gate = nn.Linear(width, width, bias=False)
        self.experts = GroupedExperts(width, 2 * width, grouped)

    def forward(self, x):
        return x + self.experts(self.gate(x))


class OverExperts(ParallelStyle):
    """Each rank has some experts, to which the tokens of all ranks go."""

    def _placements(self, name):
        return [Shard(0)]

    def _cut(self, path, module, mesh):
        for name, p in [*module.named_parameters(recurse=False)]:
            part = distribute_tensor(p, mesh, self._placements(name))
            module.register_parameter(name, nn.Parameter(part))

    def _send(self, module, inputs, mesh):
        group, count = self._group(mesh), mesh.size(0)
        here = all_to_all_single_autograd(*inputs, None, None, group)
        by_rank = here.view(count, COUNT // count, -1, here.shape[-1])
        return by_rank.transpose(0, 1).reshape(here.shape)

    def _back(self, module, outputs, mesh):
        count = mesh.size(0)
        by_expert = outputs.view(COUNT // count, count, -1, outputs.shape[-1])
        there = by_expert.transpose(0, 1).reshape(outputs.shape)
        return all_to_all_single_autograd(there, None, None, self._group(mesh))

    def _group(self, mesh):
        return mesh.get_group(0)

    def _apply(self, module, mesh):
        return distribute_module(module, mesh, self._cut, self._send, self._back)


class WithinExperts(OverExperts):
    """Each rank has some rows of each expert's up and some columns of its down."""

    def _placements(self, name):
        return [Shard(1) if name == "up" else Shard(2)]

    def _send(self, module, inputs, mesh):
        (x,) = inputs
        return DTensor.from_local(x, mesh, [Replicate()]).to_local(grad_placements=[Partial()])

    def _back(self, module, outputs, mesh):
        return DTensor.from_local(outputs, mesh, [Partial()]).full_tensor()


class Both(OverExperts):
    """Over the first dimension of a mesh, and within over the second."""

    def _placements(self, name):
        return [Shard(0), Shard(1) if name == "up" else Shard(2)]

    def _send(self, module, inputs, mesh):
        x = WithinExperts._send(self, module, inputs, mesh[mesh.mesh_dim_names[1]])
        return super()._send(module, (x,), mesh)

    def _back(self, module, outputs, mesh):
        outputs = WithinExperts._back(self, module, outputs, mesh[mesh.mesh_dim_names[1]])
        return super()._back(module, outputs, mesh)


def width_of(format):
    return 2 * unit(format)


def build_plain(format, grouped=True):
    torch.manual_seed(0)
    return Layer(width_of(format), grouped)


def build(mesh, format, style, converted_first, grouped=True, **options):
    plan = {"experts": style}
    if converted_first:
        model = nc.convert(build_plain(format, grouped), format, **options)
        return parallelize_module(model, mesh, plan)
    model = parallelize_module(build_plain(format, grouped), mesh, plan)
    return nc.convert(model, format, **options)


def batch(format, step, rank):
    generator = torch.Generator().manual_seed(97 * step + rank)
    return torch.randn(TOKENS, width_of(format), generator=generator)
