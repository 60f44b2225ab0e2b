"""Shard(1): weights that fully_shard cuts into columns. Weights, state and losses are those of one
process.
"""

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from disagreements import assert_named
from models import BUFFERS, SHARDINGS, assert_same, build, build_plain, loss_of, same, shard, train
from weights import quantized

TESTED_FORMATS = SHARDINGS


def by_columns(parameter):
    """Every other matrix: groups have both kinds of shards."""
    return Shard(1) if parameter.dim() == 2 and parameter.shape[0] >= parameter.shape[1] else None


def local_part(whole, parameter, mesh):
    dim = parameter.placements[-1].dim
    parts = whole.chunk(mesh.size(), dim)
    return parts[mesh.get_local_rank()]


BY_PASS = next(name for name in TESTED_FORMATS if nc.format(name).gather == "by pass")
# Ranks, a format, what is resharded (the last over a smaller mesh), whether it is converted first.
CASES = [(2, name, True, True) for name in TESTED_FORMATS]
CASES += [(2, TESTED_FORMATS[0], False, False), (4, BY_PASS, 2, True)]


@pytest.mark.parametrize(("world", "name", "reshard", "convert_first"), CASES)
@ranks.on("world")
def test_cut_into_columns_is_whole(mesh, name, reshard, convert_first):
    device = mesh.device_type
    whole = build(name, device)
    model = build(name, device) if convert_first else build_plain(name, device)
    shard(model, mesh, shard_placement_fn=by_columns, reshard_after_forward=reshard)
    if not convert_first:
        nc.convert(model, name)
    optimizer, whole_optimizer = (nc.FusedAdam(m.parameters(), lr=1e-2) for m in (model, whole))
    losses = train(model, optimizer, 3, device)
    assert losses == train(whole, whole_optimizer, 3, device)
    assert {p.placements[0].dim for p in model.parameters()} == {0, 1}
    for (name, p), w in zip(model.named_parameters(), whole.parameters(), strict=True):
        for key in ("exp_avg", "exp_avg_sq"):
            moment, expected = optimizer.state[p][key].to_local(), whole_optimizer.state[w][key]
            assert same(moment, local_part(expected, p, mesh)), (name, key)
        if isinstance(w, nc.MasterWeight):
            assert same(p.to_local().value, local_part(w.value, p, mesh)), name
            names = ["rowwise_data", "rowwise_scale_inv", "tensor_amax"]
            assert_same(p.to_local(), local_part(quantized(w), p, mesh), names, name)
    full = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    for name, value in get_model_state_dict(whole).items():
        assert mesh.get_local_rank() > 0 or same(full[name], value), name
    model.unshard()
    head = model.head.weight
    brought = [name for name in (*BUFFERS, "tensor_amax") if getattr(head, name) is not None]
    assert "rowwise_data" in brought
    assert_same(head, whole.head.weight, brought)


@pytest.mark.parametrize("offloaded", [False, True])
@ranks.on(2, "cpu")
def test_plain_again(mesh, offloaded, format="mxfp8_e4m3"):
    """And converted again: nothing is left of how the quantized shards were gathered."""
    model, plain = build(format), build_plain(format)
    options = {"offload_policy": CPUOffloadPolicy(pin_memory=False)} if offloaded else {}
    shard(model, mesh, shard_placement_fn=by_columns, **options)
    losses = [loss_of(model, 0)]
    nc.to_plain(model)
    assert same(loss_of(model, 0), loss_of(plain, 0))
    model.reshard()
    losses.append(loss_of(nc.convert(model, format), 0))
    assert same(*losses)


def refused(mesh, format, shape, dim, after):
    layer = nn.Module()
    layer.weight = nn.Parameter(torch.zeros(shape))
    if after:
        fully_shard(layer, mesh=mesh, shard_placement_fn=lambda _: Shard(dim))
    nc.convert(layer, format, filter=None, parameters="weight")
    fully_shard(layer, mesh=mesh, shard_placement_fn=lambda _: Shard(dim))
    layer.unshard()  # the first gather finds what it has


@pytest.mark.parametrize("after", [False, True])
def test_columns_that_a_format_cannot_cut(after):
    format = max(nc.formats(), key=lambda name: nc.format(name).column_step)
    step = nc.format(format).column_step
    rows = nc.format(format).row_step
    columns = "weight", format, f"multiple of {step}", f"{2 * step} columns"
    for shape, kind, words in (
        ((step, step), "ValueError", columns),
        ((2, rows, step), "ValueError", (f"{-(-rows // 2)} rows", f"Use {2 * rows} rows")),
        ((1, 2, step, step), "NotImplementedError", ("not along dimension 1",)),
    ):
        assert_named(ranks.errors(2, "cpu", refused, format, shape, 1, after), *words, kind=kind)
