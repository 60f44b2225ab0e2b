"""Checkpoints of models under FSDP2: what they hold of a weight is its value, for any number of
ranks, other formats and plain models.
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    set_model_state_dict,
)
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from checkpoints import weight_of
from models import (
    GATHERS,
    assert_quantized,
    assert_same,
    build,
    build_plain,
    loss_of,
    one_of_each,
    same,
    shard,
    train,
    uneven_rows,
)

BF16 = torch.bfloat16
TESTED_FORMATS = one_of_each(lambda f: f.tensor_amax)

FULL = StateDictOptions(full_state_dict=True)


def modules_of(model):
    return (model, *model.blocks)


def assert_holds(model, expected, what):
    """Values, plain parameters and bytes, whole."""
    held = get_model_state_dict(model, options=FULL)
    for name, value in expected.items():
        assert same(held[name], value.to(held[name].dtype)), (what, name)
    for module in modules_of(model):
        module.unshard()
    for name, parameter in model.named_parameters():
        if isinstance(parameter, nc.QuantizedTensor):  # gathered
            assert held[name].dtype == torch.float32
            assert_quantized(parameter.detach(), expected[name], f"{what} {name}")
    for module in modules_of(model):
        module.reshard()


def trained(mesh, format):
    model = shard(build(format, dtype=BF16), mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2, rounding="stochastic")
    train(model, optimizer, 1, dtype=BF16)
    model.reshard()
    return model, optimizer


def into(model, folder):
    state = {"model": get_model_state_dict(model)}
    dcp.load(state, checkpoint_id=folder)
    set_model_state_dict(model, state["model"])
    return model


def save(mesh, format, folder):
    """By dcp.save and, while training goes on, dcp.async_save; also a frozen weight."""
    model, optimizer = trained(mesh, format)
    whole = {n: v.clone() for n, v in get_model_state_dict(model, options=FULL).items()}
    if mesh.get_rank() == 0:
        torch.save(whole, f"{folder}/whole")
    state = {"model": get_model_state_dict(model)}
    dcp.save(state, checkpoint_id=f"{folder}/saved")
    frozen = weight_of(format).detach()
    before, group = frozen.clone(), dist.new_group(backend="gloo")
    where = {"checkpoint_id": f"{folder}/async", "process_group": group}
    saving = dcp.async_save({**state, "frozen": frozen}, **where)
    frozen.copy_(torch.zeros(frozen.shape))
    train(model, optimizer, 1, dtype=BF16, first=1)
    saving.result()
    loaded = {"frozen": frozen}
    dcp.load(loaded, checkpoint_id=f"{folder}/async")
    assert_same(frozen, before)


def load(mesh, format, folder):
    """On any number of ranks: in the format, in another and in none, and back from there."""
    whole = torch.load(f"{folder}/whole", weights_only=True)
    plain = into(shard(build_plain(format, seed=1), mesh), f"{folder}/saved")
    for name, value in get_model_state_dict(plain, options=FULL).items():
        assert same(value, whole[name].float()), name
    dcp.save({"model": plain.state_dict()}, checkpoint_id=f"{folder}/plain")
    others = [next(one for one in GATHERS if one != format)] if mesh.size() == 1 else []
    for other in (format, *others):
        for name in ("async", "plain"):
            model = into(shard(build(other, seed=2, dtype=BF16), mesh), f"{folder}/{name}")
            assert_holds(model, whole, f"{name} in {other}")


def test_any_number_of_ranks_and_any_format(format, tmp_path):
    ranks.run(2, "cpu", save, format, str(tmp_path))
    for world in (1, 3) if nc.format(format).row_step == 1 else (1,):
        ranks.run(world, "cpu", load, format, str(tmp_path))


@ranks.on(2, "cpu")
def test_full_state_dicts_into_a_model_on_meta(mesh, format):
    """torch assigns what it distributes to a model on meta."""
    whole = {n: v.clone() for n, v in build(format, dtype=BF16, seed=3).state_dict().items()}
    for broadcast in (False, True):
        model = shard(nc.convert(build_plain(format, "meta", BF16), format), mesh)
        given = dict(whole) if mesh.get_rank() == 0 or not broadcast else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=broadcast)
        set_model_state_dict(model, given, options=options)
        assert_holds(model, whole, f"broadcast {broadcast}")
    with torch.no_grad():
        loss_of(model, 0, dtype=BF16)


@ranks.on(3, "cpu")
def test_plain_and_converted_again_under_fsdp(mesh, format):
    """Of a short shard too: what the plain model computes is what the quantized one did, if it has
    the decoded values; and the gathers are those of a new model in the end.
    """
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, uneven_rows(format), bias=False))
    fully_shard(nc.convert(model, format), mesh=mesh)
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(1))
    for values in ("master", "dequantized"):
        optimizer = nc.FusedAdam(model.parameters(), lr=0.1)
        model(x).square().mean().backward()
        optimizer.step()
        before = model(x)
        model.reshard()
        master = model[0].weight.to_local().value.clone()
        nc.to_plain(model, values=values)
        local = model[0].weight.to_local()
        assert type(local) is torch.Tensor
        assert same(local, master) == (values == "master")
        assert same(model(x), before) == (values == "dequantized")
        optimizer = torch.optim.AdamW(model.parameters())
        model(x).square().mean().backward()
        optimizer.step()
        nc.convert(model, format)
        whole = model[0].weight.full_tensor()
        model.unshard()
        assert_quantized(model[0].weight.detach(), whole)
        model.reshard()
