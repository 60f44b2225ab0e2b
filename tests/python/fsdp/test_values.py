"""Values in bfloat16 under fully_shard: values, residuals and bytes on any number of ranks are
those of one process, also where a cut divides blocks, and in checkpoints of other meshes. Moments
are in eight bits.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

import narrowcast as nc
import ranks
from any_cut_models import CUT_WITHIN_BLOCKS, Narrow, assert_whole, sharded
from cut_weights import cut_into_columns
from internals import is_unaligned
from memory import SMALL, grown, storages
from models import SHARDINGS, assert_equal_state, build, build_plain, loss_of, same, shard, train
from narrowcast.tensor.dtensors import local_of
from resuming import FULL, hand_over_full_state, resume, states_of
from weights import value_of

TESTED_FORMATS = SHARDINGS
BF16 = torch.bfloat16
STATE = nc.state_formats()[0]
OPTIONS = {"lr": 1e-3, "state_dtype": STATE}


def make(format, device, seed=0):
    return build(format, device, BF16, seed, value_dtype=BF16)


def adamw(*models, **options):
    return [nc.optim.AdamW(one.parameters(), **OPTIONS, **options) for one in models]


def step_both(mesh, models, optimizers, steps, first=0):
    """Gradients are small integers."""
    generator = torch.Generator().manual_seed(first)
    for _ in range(steps):
        for p, w in zip(*(one.parameters() for one in models), strict=True):
            gradient = torch.randint(-8, 9, w.shape, generator=generator).to(w.device, w.dtype)
            w.grad, p.grad = gradient, distribute_tensor(gradient, mesh, p.placements)
        for optimizer in optimizers:
            optimizer.step()


@pytest.mark.parametrize("bits", [8, 0])
@pytest.mark.parametrize("world", [2, 3])
@ranks.on("world")
def test_sharded_is_whole(mesh, format, bits):
    """Also after a write, which ends residuals. On three ranks cuts divide blocks of weights."""
    device = mesh.device_type
    models = shard(make(format, device), mesh), make(format, device)
    optimizers = adamw(*models, residual_bits=bits, seed=3)
    step_both(mesh, models, optimizers, 3)
    for one in models:
        assert value_of(one.head.weight).dtype == BF16
        with torch.no_grad():
            one.head.weight.mul_(0.75)
    step_both(mesh, models, optimizers, 2, first=7)
    if any(is_unaligned(p) for p in models[0].parameters()):
        for p, w in zip(*(one.parameters() for one in models), strict=True):
            for key, value in optimizers[1].state[w].items():
                mine = optimizers[0].state[p][key]
                mine = mine.full_tensor() if isinstance(mine, DTensor) else mine
                assert key == "history" or same(mine, value), key
    else:
        assert_equal_state(models[0], optimizers[0], models[1], optimizers[1], mesh)


@pytest.mark.parametrize("bits", [8, 0])
@pytest.mark.parametrize("name", CUT_WITHIN_BLOCKS)
@ranks.on(3)
def test_any_cut_is_whole(mesh, name, bits):
    """Shards that share blocks and bytes: what ranks tell each other are bfloat16 values."""
    device = mesh.device_type
    convert = lambda: nc.convert(Narrow(name).to(device, BF16), name, value_dtype=BF16)  # noqa: E731
    whole, model = convert(), sharded(convert(), mesh)
    assert is_unaligned(model.up.weight)
    options = {"lr": 1e-3, "residual_bits": bits, "seed": 5}
    optimizers = [nc.optim.AdamW(one.parameters(), **options) for one in (model, whole)]
    step_both(mesh, (model, whole), optimizers, 3)
    assert_whole(model, whole, *optimizers)
    if bits:
        for p, w in zip(model.parameters(), whole.parameters(), strict=True):
            if isinstance(w, nc.MasterWeight):
                residuals = optimizers[0].state[p]["residual"], optimizers[1].state[w]["residual"]
                assert same(residuals[0].full_tensor(), residuals[1])


@ranks.on(2)
def test_columns(mesh, device):
    """Cuts at multiples of a moment's block leave the blocks as they are; others are an error."""
    by_columns = lambda p: Shard(1) if p.dim() == 2 and p.shape[1] == 256 else None  # noqa: E731
    model, whole = (make(TESTED_FORMATS[0], device) for _ in range(2))
    shard(model, mesh, shard_placement_fn=by_columns)
    optimizers = adamw(model, whole)
    step_both(mesh, (model, whole), optimizers, 2)
    p, w = (one.blocks[0].down.weight for one in (model, whole))
    for key in ("residual", f"exp_avg_{STATE}", f"exp_avg_{STATE}_scale"):
        assert same(optimizers[0].state[p][key].full_tensor(), optimizers[1].state[w][key]), key
    (drawn,) = adamw(model, residual_bits=0)
    with pytest.raises(NotImplementedError, match="residual_bits=8"):
        step_both(mesh, (model, whole), [drawn], 1)
    (optimizer,) = adamw(cut_into_columns(mesh, 192, 8))
    with pytest.raises(NotImplementedError, match=r"96 columns, which divides blocks of 128"):
        optimizer.step()


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("policy", ["mixed", "offload", "kept"])
@ranks.on("world")
def test_trains(mesh, device, policy):
    options = {
        "mixed": {"mp_policy": MixedPrecisionPolicy(param_dtype=BF16, reduce_dtype=torch.float32)},
        "offload": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
        "kept": {"reshard_after_forward": False},
    }[policy]
    if policy == "offload" and device == "cuda":
        return  # needs a process group for both devices
    for name in TESTED_FORMATS:
        model = shard(make(name, device), mesh, **options)
        (optimizer,) = adamw(model)
        losses = train(
            model, optimizer, 4, device, BF16, loss_of=lambda m, _, *to: loss_of(m, 0, *to)
        )
        assert losses[-1] < losses[0]
        weight = model.head.weight
        assert weight.dtype == value_of(weight).dtype
        assert optimizer.state[weight]["residual"].to_local().count_nonzero() > 0


@ranks.on(2)
def test_converted_after(mesh, device):
    """In bfloat16 as before; float32 shards are refused."""
    for name in TESTED_FORMATS[:2]:
        before, after = make(name, device), build_plain(name, device, BF16)
        shard(before, mesh)
        nc.convert(shard(after, mesh), name, value_dtype=BF16)
        optimizers = adamw(before, after)
        losses = [
            train(one, its, 3, device, BF16)
            for one, its in zip((before, after), optimizers, strict=True)
        ]
        assert losses[0] == losses[1]
        plain = shard(build_plain(name, device), mesh)
        with pytest.raises(TypeError, match="shard of float32"):
            nc.convert(plain, name, value_dtype=BF16)


def other_mesh(mesh, folder):
    """Two ranks save what each of them then loads alone, and both go on as before."""
    device = mesh.device_type
    model = shard(make(TESTED_FORMATS[0], device), mesh)
    (optimizer,) = adamw(model)
    train(model, optimizer, 2, device, BF16)
    dcp.save(states_of(model, optimizer), checkpoint_id=folder)
    alone = init_device_mesh(device, (2, 1), mesh_dim_names=("each", "alone"))["alone"]
    other = shard(make(TESTED_FORMATS[0], device, seed=3), alone)
    (other_optimizer,) = adamw(other)
    resume(other, other_optimizer, folder, alone.get_group())
    for step in (0, 1):
        for p, w in zip(model.parameters(), other.parameters(), strict=True):
            assert same(DTensor.full_tensor(plain(p)), DTensor.full_tensor(plain(w)))
            for key, value in optimizer.state[p].items():
                theirs = other_optimizer.state[w][key]
                if isinstance(value, DTensor):
                    value, theirs = value.full_tensor(), theirs.full_tensor()
                assert same(value, theirs), (step, key)
        for one, its in ((model, optimizer), (other, other_optimizer)):
            for p in one.parameters():
                p.grad = distribute_tensor(
                    torch.ones(p.shape, dtype=p.dtype, device=device), p.device_mesh, p.placements
                )
            its.step()


def plain(p):
    return DTensor.from_local(
        value_of(p), p.device_mesh, p.placements, shape=p.shape, stride=p.stride()
    )


def test_checkpoints_of_another_mesh(device, tmp_path):
    ranks.run(2, device, other_mesh, str(tmp_path))


@ranks.on(2)
def test_full_state_dicts(mesh, device):
    model, other = (shard(make(TESTED_FORMATS[0], device), mesh) for _ in range(2))
    optimizer, other_optimizer = adamw(model, other)
    train(model, optimizer, 2, device, BF16)
    hand_over_full_state(model, optimizer, other, other_optimizer)
    for p, w in zip(model.parameters(), other.parameters(), strict=True):
        for key, value in optimizer.state[p].items():
            assert same(local_of(value), local_of(other_optimizer.state[w][key])), key
    values = get_model_state_dict(model, options=FULL)
    if mesh.get_local_rank() == 0:
        assert values["head.weight"].dtype == BF16


WIDTH, LAYERS, NAME = 1024, 3, "mxfp8_2d"


@pytest.mark.parametrize("world", [1, 2])
@ranks.on("world")
def test_memory(mesh, device):
    """A rank keeps 6.2 bytes of each of its parameters: the format's, a value in 24 bits, and
    moments in eight; and nc.summary says so.
    """
    if NAME not in nc.formats():
        return
    before = storages()
    model = nn.Sequential(
        *(nn.Linear(WIDTH, WIDTH, bias=False, device=device, dtype=BF16) for _ in range(LAYERS))
    )
    nc.convert(model, NAME, value_dtype=BF16)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    (optimizer,) = adamw(model)
    model(torch.ones(4, WIDTH, dtype=BF16, device=device)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    summary = nc.summary(model, optimizer)
    said = summary.stored + summary.masters + summary.state
    assert said <= 6.2 * LAYERS * WIDTH * WIDTH // mesh.size()
    kept = [one for p in model.parameters() for one in p.to_local()._store.tensors]
    kept += [one for state in optimizer.state.values() for one in map(local_of, state.values())]
    bytes = sum(one.untyped_storage().nbytes() for one in kept)
    assert abs(said - bytes) < 0.01 * bytes
    assert grown(before) < 1.02 * said + SMALL
