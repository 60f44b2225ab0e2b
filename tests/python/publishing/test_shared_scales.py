"""Published files of weights with one scale of the tensor."""

import pytest
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import same
from shared_scales import OPTIONS, Projections, Truth, build, groups, loss_of
from weights import quantized

LAYOUT = "compressed-tensors"
TESTED_FORMATS = ["nvfp4", "fp8_e4m3", "fp8_e4m3_delayed"]


def trained(format, folder):
    model = build(format)
    optimizer = nc.FusedAdam(model.parameters(), **OPTIONS)
    loss_of(model, 0).backward()
    optimizer.step()
    nc.export(model, folder, LAYOUT)
    return model


def loaded(mesh, format, folder):
    device = mesh.device_type
    model = fully_shard(build(format, device), mesh=mesh)
    nc.load_published(model, folder)
    found = []
    for group in groups(model):
        local = [quantized(weight.to_local()) for weight in group]
        scale = "tensor_amax" if format == "nvfp4" else "rowwise_scale_inv"
        assert all(same(getattr(one, scale), getattr(local[0], scale)) for one in local)
        assert all(same(one.history, local[0].history) for one in local)
        found.append(None if local[0].history is None else local[0].history.tolist())
    return found


@pytest.mark.ranks
def test_loaded(format, tmp_path, device):
    trained(format, tmp_path / "files")
    first, second = ranks.run(2, device, loaded, format, str(tmp_path / "files"))
    assert first == second


def test_other_scales(format, tmp_path):
    """Of a file in which they differ: the error names them, and the model is as it was."""
    apart = nc.convert(Projections(), format, share_scale=False)
    nc.export(apart, tmp_path / "files", LAYOUT)
    model = build(format)
    before = [weight.value.clone() for weight in model.parameters()]
    with pytest.raises(ValueError, match=r"up_proj\.weight_\w*scale is .* share_scale=False"):
        nc.load_published(model, tmp_path / "files")
    assert all(map(same, before, (weight.value for weight in model.parameters())))
    Truth(model).compare("after an error")
    nc.load_published(apart, tmp_path / "files")
