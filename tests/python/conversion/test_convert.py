"""nc.convert: which weights it takes, what they keep, and what it refuses."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import config_of, tensors_of
from models import DEVICES, GATHERS, STORAGES, assert_quantized, local_values, same
from narrowcast.tensor import dtensors

TESTED_FORMATS = GATHERS


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(32, 64), nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 32))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", STORAGES)
def test_weights_of_linear_layers(name, device, dtype):
    model = mlp().to(device, dtype)
    before = [p.detach().clone() for p in model.parameters()]
    assert nc.convert(model, name) is model
    for (which, p), old in zip(model.named_parameters(), before, strict=True):
        assert isinstance(p, nn.Parameter)
        assert p.requires_grad
        assert (p.shape, p.dtype, p.device) == (old.shape, dtype, old.device)
        if which in ("1.weight", "3.weight"):
            assert isinstance(p, nc.MasterWeight)
            assert_quantized(p.detach(), old, which)
            assert p.value.dtype == torch.float32
            assert torch.equal(p.value, old.float())
            assert config_of(p).name == which
        else:
            assert not isinstance(p, nc.MasterWeight)
            assert torch.equal(p, old)


def test_filter(format):
    seen = []
    model = mlp()
    nc.convert(model, format, filter=lambda name, m: seen.append((name, m)) or name in ("0", "3"))
    assert ("", model) in seen
    assert ("1", model[1]) in seen
    kinds = {name: type(p) for name, p in model.named_parameters()}
    assert kinds["0.weight"] is kinds["3.weight"] is nc.MasterWeight
    assert kinds["1.weight"] is nn.Parameter
    assert model(torch.tensor([3])).shape == (1, 32)


def test_one_module_keeps_its_attributes(format):
    layer = nn.Linear(64, 64)
    layer.weight.mark = "kept"
    nc.convert(layer, format)
    assert isinstance(layer.weight, nc.MasterWeight)
    assert layer.weight.mark == "kept"


def test_ties_within_the_filter(format):
    model = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64), nn.Linear(64, 64)])
    model[2].weight = model[0].weight
    nc.convert(model, format)
    assert model[0].weight is model[2].weight
    assert len(list(model.parameters())) == 5


def test_shared_modules(format):
    layer = nn.Linear(64, 64)
    model = nc.convert(nn.Sequential(layer, nn.ReLU(), layer), format)
    assert isinstance(model[0].weight, nc.MasterWeight)
    assert model[0].weight is model[2].weight


def assert_unchanged(model, error, words, *arguments, **options):
    kinds = [type(p) for p in model.parameters()]
    with pytest.raises(error, match=words):
        nc.convert(model, *arguments, **options)
    assert [type(p) for p in model.parameters()] == kinds


def test_ties_across_the_filter(format):
    """A filter of one's own may not divide a shared weight."""
    model = mlp()
    model[3] = nn.Linear(64, 32)
    model[3].weight = model[0].weight
    words = r"3\.weight is the same parameter as 0\.weight"
    assert_unchanged(model, ValueError, words, format, filter=lambda _, m: isinstance(m, nn.Linear))
    assert_unchanged(model, ValueError, words, format, filter="3")
    model[1].other = model[1].weight
    assert_unchanged(model, ValueError, r"1\.weight is the same parameter as 1\.other", format,
                     filter=lambda name, _: name == "1")  # fmt: skip


def test_tied_heads(format):
    """The default leaves out what an nn.Linear shares with another module."""
    model = mlp()
    model[3] = nn.Linear(64, 32)
    model[3].weight = model[0].weight
    nc.convert(model, format)
    assert type(model[1].weight) is nc.MasterWeight
    assert type(model[3].weight) is nn.Parameter
    assert model[3].weight is model[0].weight
    head = nn.ModuleList([nn.Embedding(32, 64), nn.Linear(64, 32)])
    head[1].weight = head[0].weight
    assert_unchanged(head, ValueError, "no module of the model whose weight is its alone", format)


def test_nothing_to_convert(format):
    assert_unchanged(nn.ReLU(), ValueError, "chooses no module", format)


def test_wrong_arguments(format):
    assert_unchanged(mlp(), ValueError, "did you mean nvfp4", "nvfp5")
    assert_unchanged(mlp().double(), TypeError, r"1\.weight is torch.float64", format)


def test_shapes_that_a_format_cannot_hold():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 33))
    words = r"1\.weight.*cannot hold a 33x64"
    assert_unchanged(model, ValueError, words, "nvfp4", filter="*")
    assert_unchanged(model[1:], ValueError, words, "nvfp4")
    assert_unchanged(model, ValueError, words, "nvfp4", parameters="1.weight")


def test_the_default_leaves_out_what_a_format_cannot_hold():
    """Gates of one row, routers of three experts."""
    gates = [nn.Linear(64, rows) for rows in (1, 3, 1, 1)]
    model = nn.Sequential(nn.Linear(64, 64), *gates)
    nc.convert(model, "nvfp4")
    assert [isinstance(layer.weight, nc.MasterWeight) for layer in model] == [True] + [False] * 4
    assert nc.fits(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)), "nvfp4", 2)


def test_two_formats_in_one_model():
    model = mlp()
    nc.convert(model, "nvfp4", filter=lambda name, _: name == "1")
    nc.convert(model, "mxfp8_e4m3", filter=lambda name, _: name == "3")
    assert [model[i].weight.format.name for i in (1, 3)] == ["nvfp4", "mxfp8_e4m3"]
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    model(torch.arange(8)).square().mean().backward()
    optimizer.step()
    for i in (1, 3):
        assert_quantized(model[i].weight.detach(), model[i].weight.value)


def test_meta_device(format):
    """Nothing is allocated until to_empty; then the initialisation makes the bytes."""
    with torch.device("meta"):
        model = mlp()
    nc.convert(model, format)
    assert all(t.is_meta for t in tensors_of(model[1].weight))
    assert model[1](torch.empty(8, 64, device="meta")).is_meta
    model.to_empty(device="cpu")
    assert isinstance(model[1].weight, nc.MasterWeight)
    torch.manual_seed(1)
    for layer in (model[1], model[3]):
        layer.reset_parameters()
    plain = mlp()
    torch.manual_seed(1)
    for layer in (plain[1], plain[3]):
        layer.reset_parameters()
    for i in (1, 3):
        assert_quantized(model[i].weight.detach(), plain[i].weight.detach())
        assert torch.equal(model[i].weight.value, plain[i].weight)


# ---- shards, while they are trained ----


def trained(mesh, steps=3):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 96), nn.LayerNorm(96))
    fully_shard(model.to(mesh.device_type), mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=0.01)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model, optimizer):
    for number, parameter in enumerate(model.parameters()):
        local = dtensors.local_of(parameter.detach())
        gradient = torch.full(local.shape, 0.3 + number, dtype=parameter.dtype, device=local.device)
        parameter.grad = dtensors.like(parameter, gradient)
    optimizer.step()
    optimizer.zero_grad()


@ranks.on(2)
def test_shards_are_converted_while_training(mesh, format):
    model, optimizer = trained(mesh)
    before = local_values(model)
    nc.convert(model, format)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)  # with what it has
    after = local_values(model)
    assert all(same(one, other) for one, other in zip(before, after, strict=True))
    assert isinstance(model[0].weight.to_local(), nc.MasterWeight)
    # A user's write between conversion and step is the new value.
    model, optimizer = trained(mesh)
    nc.convert(model, format)
    with torch.no_grad():
        model[0].weight.fill_(0.25)
    for group in optimizer.param_groups:
        group["lr"] = 0.0
    step(model, optimizer)
    assert bool((local_values(model)[0] == 0.25).all())
