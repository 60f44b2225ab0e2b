"""Models that ranks share export the files of the whole model, and load their parts of them."""

import filecmp

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import narrowcast as nc
import ranks
from models import one_of_each, same

TESTED_FORMATS = one_of_each(lambda f: (tuple(f.layouts), f.gather, f.tensor_amax, f.rowwise.block))
TESTED_FORMATS = [name for name in TESTED_FORMATS if nc.format(name).layouts]


class Layer(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width)

    def forward(self, x):
        return self.down(self.up(x).relu())


def build(format, seed=0, hidden=768, device="cpu"):
    torch.manual_seed(seed)
    layers = Layer(256, hidden), nn.LayerNorm(256), nn.Linear(256, 4)
    return nc.convert(nn.Sequential(*layers).to(device), format, filter="0.*")


def by_fsdp(mesh, model):
    fully_shard(model[0], mesh=mesh)
    return fully_shard(model, mesh=mesh)


def by_columns(mesh, model):
    return fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(p.dim() - 1))


def by_tp(mesh, model):
    plan = {"0.up": ColwiseParallel(), "0.down": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def by_both(mesh, model):
    both = init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("dp", "tp"))
    return fully_shard(by_tp(both["tp"], model), mesh=both["dp"])


def check(mesh, format, cut, hidden, path):
    """Files of the whole model on the CPU, and loads of them."""
    first, device = mesh.get_rank() == 0, mesh.device_type
    layout = nc.format(format).layouts[-1]
    whole, model = build(format, hidden=hidden), cut(mesh, build(format, 0, hidden, device))
    if first:
        tensors = dict(nc.export_tensors(whole, layout))
        expected = path / "whole"
        expected.mkdir()
        torch.save(tensors, expected / "tensors.pt")
    dist.barrier()
    expected = torch.load(path / "whole" / "tensors.pt")
    for name, tensor in nc.export_tensors(model, layout):
        assert same(tensor, expected.pop(name)), name
    assert expected == {}
    nc.export(model, path / "one", layout, plain_dtype=None)
    other = cut(mesh, build(format, 1, hidden, device))
    assert nc.load_published(other, path / "one") == []
    nc.export(other, path / "two", layout, plain_dtype=None)
    for file in (path / "one").iterdir():
        assert filecmp.cmp(file, path / "two" / file.name, shallow=False), file
    alone = build(format, seed=2, hidden=hidden)
    nc.load_published(alone, path / "one")
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in (alone, other)]
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    for one, optimizer in zip((alone, other), optimizers, strict=True):
        one(x.to(next(one.parameters()).device)).sum().backward()
        for p in one.parameters():
            p.grad.fill_(0.5)
        optimizer.step()
    stepped = dict(nc.export_tensors(alone, layout))
    for name, tensor in nc.export_tensors(other, layout):
        assert same(tensor, stepped[name]), name


# Ranks, how they cut a model, and its rows: of 720 and 704 three ranks have no whole blocks of a
# square format, of 48 the second has fewer than the first, and of 4 the third has none.
CUTS = [(3, by_fsdp, 768), (2, by_columns, 768), (2, by_tp, 768)]
CASES = [(name, *cut) for name in TESTED_FORMATS for cut in CUTS]
CASES += [(name, 3, by_fsdp, n) for name in ("fp8_block128", "mxfp8_2d") for n in (720, 704)]
CASES += [("mxfp8_2d", 2, by_fsdp, 48), ("fp8_e4m3", 3, by_fsdp, 4)]


@pytest.mark.parametrize(("name", "world", "cut", "hidden"), CASES)
def test_shards(name, world, cut, hidden, device, tmp_path):
    ranks.run(world, device, check, name, cut, hidden, tmp_path)


@pytest.mark.parametrize("spanning", ["mxfp8_2d", "nvfp4"])
def test_both(spanning, tmp_path):
    ranks.run(4, "cpu", check, spanning, by_both, 768, tmp_path)


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.randn(3, 128, 128))

    def forward(self, x):
        return x @ self.gate_up_proj.transpose(-2, -1)


def check_experts(mesh, name, layout, dimension, path):
    def build(seed=0):
        torch.manual_seed(seed)
        return nc.convert(nn.Sequential(Experts().to(mesh.device_type)), name)

    def cut(model):
        return fully_shard(model, mesh=mesh, shard_placement_fn=lambda p: Shard(dimension))

    expected = dict(nc.export_tensors(build(), layout))
    nc.export(cut(build()), path, layout)
    other = cut(build(seed=1))
    assert nc.load_published(other, path) == []
    for name, tensor in nc.export_tensors(other, layout):
        assert same(tensor, expected.pop(name)), name
    assert expected == {}


@pytest.mark.parametrize("dimension", [0, 1, 2])
@pytest.mark.parametrize(
    ("name", "layout"), [("mxfp8_2d", "deepseek"), ("mxfp4", "gpt-oss"), ("nvfp4", "modelopt")]
)
def test_experts(name, layout, dimension, device, tmp_path):
    """3 of them on 2 ranks, whole or in parts."""
    ranks.run(2, device, check_experts, name, layout, dimension, str(tmp_path / "out"))


def stage(mesh, path, is_plain):
    model = build("mxfp8_2d", hidden=256 * (1 + mesh.get_rank()))
    model = torch.nn.Linear(8, 8) if is_plain and mesh.get_rank() > 0 else model
    nc.export(model, path, "deepseek")


@pytest.mark.parametrize("is_plain", [False, True])
def test_stages_of_a_pipeline(is_plain, tmp_path):
    answers = ranks.errors(2, "cpu", stage, str(tmp_path / "out"), is_plain)
    assert {kind for kind, _ in answers} == {"DisagreementError"}
    assert "the weights that nc.export writes" in answers[0][1]
    assert list(tmp_path.iterdir()) == []
