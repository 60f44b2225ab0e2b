"""Published bytes that are loaded into weights which are their own masters: they need not be those
of a cast, and stay until the value is written to.
"""

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import bytes_of
from models import same
from weights import quantized

FORMAT = "mxfp8_e4m3"


def _model():
    torch.manual_seed(0)
    return nc.convert(nn.Sequential(nn.Linear(64, 64, bias=False)), FORMAT)


def _publish(folder):
    """A block of zeros under a scale that a cast of zeros would not choose."""
    nc.export(_model(), folder, "mxfp8")
    tensors = load_file(folder / "model.safetensors")
    (scales,) = (one for name, one in tensors.items() if "scale" in name)
    (codes,) = (one for name, one in tensors.items() if "scale" not in name)
    codes.view(torch.uint8)[0, :32] = 0
    scales.view(torch.uint8)[0, 0] = 120
    save_file(tensors, folder / "model.safetensors")


def _scale(model):
    return bytes_of(model[0].weight).buffer(1).view(torch.uint8)[0, 0].item()


def test_they_stay_until_a_write(tmp_path):
    _publish(tmp_path / "published")
    model, x = _model(), torch.ones(2, 64)
    nc.load_published(model, tmp_path / "published")
    weight = model[0].weight
    assert same(weight.value, quantized(weight).dequantize())
    assert (weight.value[0, :32] == 0).all()
    compiled = torch.compile(model, backend="aot_eager")
    for forward in (model, compiled, model):
        assert same(forward(x).detach(), x @ weight.value.t())
        assert _scale(model) == 120
    nc.export(model, tmp_path / "again", "mxfp8")
    files = [load_file(tmp_path / one / "model.safetensors") for one in ("published", "again")]
    assert all(same(one, files[1][name]) for name, one in files[0].items())
    with torch.no_grad():
        weight[1].zero_()
    nc.export(model, tmp_path / "written", "mxfp8")  # casts what is stale
    assert _scale(model) != 120
    assert (load_file(tmp_path / "written" / "model.safetensors")["0.weight"].float()[1] == 0).all()


def _sharded(mesh, folder):
    """Into shards that nothing has gathered yet, and into weights that are cut afterwards."""
    for loads_first in (False, True):
        model = _model()
        if loads_first:
            nc.load_published(model, folder)
        fully_shard(model, mesh=mesh)
        if not loads_first:
            nc.load_published(model, folder)
        model(torch.ones(2, 64))
        model.reshard()
        local = model[0].weight.to_local()
        assert same(local.value, quantized(local).dequantize())
        if mesh.get_local_rank() == 0:
            assert _scale(model) == 120


def test_shards(tmp_path):
    _publish(tmp_path / "published")
    ranks.run(2, "cpu", _sharded, tmp_path / "published")
