"""Training under fully_shard: sharded is whole, byte for byte."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import narrowcast as nc
import ranks
import scaled
from models import (
    GATHERS,
    SHARDINGS,
    assert_equal_state,
    build,
    build_plain,
    loss_of,
    same,
    shard,
    train,
    uneven_rows,
    unit,
)

TESTED_FORMATS = SHARDINGS


def train_both(mesh, format, options, rounding, matmul="dequantized"):
    """The sharded model and the whole one see the same batches, so they must stay equal."""
    device = mesh.device_type
    state_dtype = nc.state_formats()[0] if rounding == "stochastic" else torch.float32
    whole = build(format, device, matmul=matmul)
    model = shard(build(format, device, matmul=matmul), mesh, **options)
    how = {"lr": 1e-2, "rounding": rounding, "seed": 5, "state_dtype": state_dtype}
    optimizer, whole_optimizer = (nc.FusedAdam(m.parameters(), **how) for m in (model, whole))
    with torch.no_grad():  # the first training forward may gather what this one has kept
        loss_of(model, 0, device)
    outcomes = []
    for one, its_optimizer in ((model, optimizer), (whole, whole_optimizer)):
        torch.manual_seed(3)  # of scaled products' gradients that are rounded stochastically
        outcomes.append(train(one, its_optimizer, 4, device))
    assert outcomes[0] == outcomes[1]
    assert len(set(outcomes[0])) == 4
    assert_equal_state(model, optimizer, whole, whole_optimizer, mesh)


@pytest.mark.parametrize(("world", "reshard"), [(1, True), (2, True), (2, False), (4, True)])
def test_sharded_is_whole(format, device, world, reshard):
    if unit(format) * world > build_plain(format).width:
        pytest.skip("the model has too few rows")
    rounding = "nearest" if reshard else "stochastic"
    ranks.run(world, device, train_both, format, {"reshard_after_forward": reshard}, rounding)


@pytest.mark.parametrize("name", scaled.KINDS)
@pytest.mark.parametrize(("world", "reshard"), [(1, True), (2, True), (2, False)])
def test_scaled_products(name, device, world, reshard):
    ranks.run(
        world, device, train_both, name, {"reshard_after_forward": reshard}, "nearest", "scaled"
    )


def short_shards(mesh, format):
    """Of rows that a smaller mesh, which keeps what was gathered, could not cut."""
    device, rows = mesh.device_type, max(4 * nc.format(format).row_step - 2, 7)
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(unit(format), rows, device=device))
    model = copy.deepcopy(whole)
    for one in (whole, model):
        nc.convert(one, format)
    fully_shard(model[0], mesh=mesh, reshard_after_forward=2)
    fully_shard(model, mesh=mesh)
    x = torch.randn(4, unit(format)).to(device)
    gradients = []
    for one in (whole, model):
        one(x).square().sum().backward()
        gradients.append(one[0].weight.grad)
    assert same(gradients[1].full_tensor(), gradients[0])


@pytest.mark.parametrize("name", GATHERS)
def test_resharded_to_a_smaller_mesh(name, device):
    ranks.run(4, device, train_both, name, {"reshard_after_forward": 2}, "nearest")
    ranks.run(4, device, short_shards, name)


@pytest.mark.parametrize("name", GATHERS)
@pytest.mark.parametrize(("world", "shape"), [(2, (2, 1)), (4, (2, 2))])
@ranks.on("world")
def test_hybrid_sharding(mesh, name, shape):
    grid = init_device_mesh(mesh.device_type, shape, mesh_dim_names=("replicate", "shard"))
    device = mesh.device_type
    whole, model = build(name, device), shard(build(name, device), grid)
    optimizer, whole_optimizer = (
        nc.FusedAdam(m.parameters(), lr=1e-2, rounding="stochastic") for m in (model, whole)
    )
    assert train(model, optimizer, 3, device) == train(whole, whole_optimizer, 3, device)
    assert_equal_state(model, optimizer, whole, whole_optimizer, grid["shard"])


def uneven_model(rows):
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(64, rows), nn.GELU(), nn.Linear(rows, 64, bias=False))


def train_uneven(mesh, format, rows):
    """Gradients are means over three ranks, which round; so the whole model is given them."""
    whole = nc.convert(uneven_model(rows), format, filter=lambda name, _: name == "0")
    model = nc.convert(uneven_model(rows), format, filter=lambda name, _: name == "0")
    fully_shard(model, mesh=mesh, reshard_after_forward=True)
    optimizer, whole_optimizer = (
        nc.FusedAdam(m.parameters(), lr=1e-2, rounding="stochastic") for m in (model, whole)
    )
    for step in range(3):
        x = torch.randn(8, 64, generator=torch.Generator().manual_seed(step))
        assert same(model(x), whole(x))
        F.mse_loss(model(x), x).backward()
        for p, w in zip(model.parameters(), whole.parameters(), strict=True):
            w.grad = p.grad.full_tensor()
        for one in (optimizer, whole_optimizer):
            one.step()
            one.zero_grad()
    assert_equal_state(model, optimizer, whole, whole_optimizer, mesh)
    return len(model[0].weight.to_local())


def test_uneven_shards(format):
    rows = uneven_rows(format)
    lengths = [len(part) for part in torch.empty(rows).chunk(3)]
    assert lengths[2] < lengths[0] == lengths[1]
    assert ranks.run(3, "cpu", train_uneven, format, rows) == lengths


def train_mixed(mesh, format):
    """bfloat16 compute on gathered bytes, float32 values and reduction."""
    device = mesh.device_type
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    model = shard(build(format, device), mesh, mp_policy=policy)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    losses = train(model, optimizer, 4, device)
    assert len(set(losses)) == 4
    model.unshard()
    weight = model.head.weight
    assert weight.dtype == torch.bfloat16
    x = torch.ones(2, model.width, dtype=torch.bfloat16, device=device)
    assert model.head(x).dtype == weight.dtype
    model.reshard()
    assert model.head.weight.dtype == torch.float32
    return [one.full_tensor().cpu().tolist() for one in (model.head.weight, model.norm.weight)]


@pytest.mark.parametrize("name", GATHERS)
def test_mixed_precision(name, device):
    first, second = ranks.run(2, device, train_mixed, name)
    assert first == second


@ranks.on(2, "cpu")
def test_a_dtype_that_no_value_has(mesh):
    policy = MixedPrecisionPolicy(param_dtype=torch.float64)
    model = shard(build("mxfp8_e4m3"), mesh, mp_policy=policy)
    with pytest.raises(TypeError, match=r"blocks\.0\.up\.weight.*not torch\.float64"):
        loss_of(model, 0, dtype=torch.float64)


@pytest.mark.parametrize("name", GATHERS)
@ranks.on(2)
def test_accumulation_clipping_schedule_groups(mesh, name):
    """Clipping, accumulation without communication, a schedule and two groups."""
    device = mesh.device_type
    whole, model = build(name, device), shard(build(name, device), mesh)
    results = []
    for m in (model, whole):
        decayed = [p for p in m.parameters() if p.dim() > 1]
        others = [p for p in m.parameters() if p.dim() == 1]
        groups = [{"params": decayed}, {"params": others, "weight_decay": 0.0, "lr": 5e-3}]
        optimizer = nc.FusedAdam(groups, lr=1e-2)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 0.5**t)
        for step in range(3):
            for micro in range(2):
                if m is model:
                    m.set_requires_gradient_sync(micro == 1)
                (loss_of(m, 2 * step + micro, device) / 2).backward()
            norm = nn.utils.clip_grad_norm_(m.parameters(), 1e9)
            optimizer.step()
            optimizer.zero_grad(set_to_none=step % 2 == 0)
            schedule.step()
        results.append(optimizer)
        assert torch.isfinite(norm)
    assert_equal_state(model, results[0], whole, results[1], mesh)


@ranks.on(2, "cpu")
def test_tied_weights(mesh, format):
    """Two layers with one weight, in one module that fully_shard manages."""
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 256))
        m[2].weight = m[0].weight
        models.append(nc.convert(m, format))
    model, whole = models
    fully_shard(model, mesh=mesh)
    assert model[0].weight is model[2].weight
    optimizer, whole_optimizer = (nc.FusedAdam(m.parameters(), lr=1e-2) for m in (model, whole))
    for step in range(3):
        x = torch.randn(8, 256, generator=torch.Generator().manual_seed(step))
        for m, one in ((model, optimizer), (whole, whole_optimizer)):
            F.mse_loss(m(x), x).backward()
            one.step()
            one.zero_grad()
    assert model[0].weight is model[2].weight
    assert_equal_state(model, optimizer, whole, whole_optimizer, mesh)


@ranks.on(2, "cpu")
def test_shards_of_an_odd_number_of_rows(mesh, format="nvfp4"):
    """Of scaled products: 17 rows, and the gathered weight has 34, as its output's gradient."""
    torch.manual_seed(0)
    layer = nn.Linear(64, 34, bias=False)
    whole = nc.convert(copy.deepcopy(layer), format, matmul="scaled")
    nc.convert(fully_shard(layer, mesh=mesh), format, matmul="scaled")
    x = torch.randn(6, 64, generator=torch.Generator().manual_seed(1))
    assert same(layer(x), whole(x))
