"""Modules that wrap a whole model: DistributedDataParallel, replicate() and FSDP1."""

import torch
import torch.nn.functional as F
from torch.distributed._composable import replicate
from torch.distributed._composable.replicate_with_fsdp import replicate as replicate_with_fsdp
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import narrowcast as nc
import ranks
from models import BUFFERS, STORAGES, assert_same, batch, build, build_plain, same
from narrowcast.tensor import dtensors
from parallel_models import message_of
from weights import quantized, value_of

EVERY = (*BUFFERS, "history")


def train(model, wrapped, optimizer, steps=3):
    losses = []
    for step in range(steps):
        x, y = batch(model, step)
        loss = F.mse_loss(wrapped(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def wrap(model, how, mesh):
    if how == "replicate":
        return replicate(model, device_mesh=mesh)
    if how == "replicate_with_fsdp":
        for block in model.blocks:
            replicate_with_fsdp(block, mesh=mesh)
        return replicate_with_fsdp(model, mesh=mesh)
    options = {"views": {"gradient_as_bucket_view": True}, "static": {"static_graph": True}}
    return DistributedDataParallel(model, **options.get(how, {}))


def assert_trains_as_whole(mesh, format, how):
    """All ranks begin with the weights of the first, and stay equal to one process."""
    syncs = how != "replicate_with_fsdp"  # it leaves that to the user, as fully_shard does
    seed = mesh.get_local_rank() if syncs else 0
    whole, model = build(format), build(format, seed=seed)
    stochastic = {"rounding": "stochastic", "seed": 3}
    wrapped = wrap(model, how, mesh)
    optimizers = [nc.FusedAdam(m.parameters(), lr=1e-2, **stochastic) for m in (model, whole)]
    losses = train(model, wrapped, optimizers[0])
    assert losses == train(whole, whole, optimizers[1]), (format, how)
    for p, w in zip(model.parameters(), whole.parameters(), strict=True):
        local = dtensors.local_of(p)
        assert same(value_of(p), value_of(w)), (format, how)
        if isinstance(local, nc.MasterWeight):
            names = [name for name in EVERY if getattr(quantized(local), name) is not None]
            assert_same(local, w, names, f"{format} {how}")
        for key, value in optimizers[1].state[w].items():
            assert same(dtensors.local_of(optimizers[0].state[p][key]), value), (format, how, key)


def replicas(mesh):
    for format in STORAGES:
        assert_trains_as_whole(mesh, format, "ddp")
    for how in ("replicate", "replicate_with_fsdp", "views", "static"):
        for format in ("mxfp8_e4m3", "fp8_e4m3_delayed"):
            assert_trains_as_whole(mesh, format, how)
    begin_with_what_is_stale(mesh)
    begin_with_frozen_bytes(mesh)
    return refusals(mesh)


def begin_with_what_is_stale(mesh):
    """The first rank's weights, whatever has been written on any rank; masters without bytes and
    bytes without masters travel too, and bfloat16 weights keep the bits of their masters.
    """
    for format in ("nvfp4", "mxfp8_e4m3"):
        expected = build(format, dtype=torch.bfloat16)
        model = build(format, dtype=torch.bfloat16, seed=mesh.get_local_rank())
        with torch.no_grad():
            for one in (expected, model):
                one.head.weight.add_(2.0**-14 + (one is model) * mesh.get_local_rank())
        value = expected.head.weight.value
        assert not same(value, value.bfloat16().float())
        DistributedDataParallel(model)
        for p, w in zip(model.parameters(), expected.parameters(), strict=True):
            assert same(value_of(p), value_of(w)), format
            if isinstance(w, nc.MasterWeight):
                assert (
                    not same(w.value, w.value.bfloat16().float()) or w is not expected.head.weight
                )
                assert_same(p, w, what=format)


def begin_with_frozen_bytes(mesh):
    """Bytes that no other rank has travel as they are."""
    for format in ("nvfp4", "fp8_e4m3_delayed"):
        expected = build(format, trainable=False)
        model = build(format, seed=mesh.get_local_rank(), trainable=False)
        model.head.bias.requires_grad_(True)  # or there would be nothing to train
        DistributedDataParallel(model)
        for p, w in zip(model.parameters(), expected.parameters(), strict=True):
            names = EVERY if isinstance(w, nc.QuantizedTensor) else ()
            assert_same(p, w, [name for name in names if getattr(w, name) is not None], format)


def refusals(mesh):
    cpu = torch.device("cpu")
    plain = build_plain("mxfp8_e4m3")
    wrapped = DistributedDataParallel(plain)
    flattened = FullyShardedDataParallel(build_plain("mxfp8_e4m3"), device_id=cpu)
    return {
        "convert after DDP": message_of(ValueError, nc.convert, wrapped, "nvfp4"),
        "convert after replicate": message_of(
            ValueError, nc.convert, replicate(build_plain("nvfp4")), "nvfp4"
        ),
        "convert after FSDP1": message_of(ValueError, nc.convert, flattened, "nvfp4"),
        "FSDP1": message_of(
            NotImplementedError, FullyShardedDataParallel, build("nvfp4"), device_id=cpu
        ),
    }


def test_replicas():
    first, second = ranks.run(2, "cpu", replicas)
    assert first == second
    assert "Call nc.convert first" in first["convert after DDP"]
    assert "Call nc.convert first" in first["convert after replicate"]
    assert "fully_shard" in first["convert after FSDP1"]
    assert "fully_shard" in first["FSDP1"] and "weight" in first["FSDP1"]
