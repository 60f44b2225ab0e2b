"""nc.set_reduce_scatter_format: gradients that FSDP2 reduces in a format are the reference's, byte
for byte, and bytes are what travels.
"""

import contextlib
import copy
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from conformance import FORMATS
from disagreements import assert_named, odd
from models import GATHERS, one_of_each, same
from reductions import expected, gradients_of

CARRIED = [name for name in FORMATS if nc.format(name).casts_parts]
KINDS = [
    name
    for name in one_of_each(
        lambda f: (f.casts_parts, f.rowwise.element_bits, f.scale, f.rowwise.block)
    )
    if name in CARRIED
]
WIDTH = 36
TESTED_FORMATS = GATHERS


def odd_model(device):
    """Parts of odd sizes, in which blocks hold the end of one parameter and the beginning of the
    next; ranks have unequal rows.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(WIDTH, 60), nn.GELU(), nn.Sequential(nn.Linear(60, 11), nn.LayerNorm(11))
    ).to(device)


def sharded(whole, mesh, reduce_dtype=None, **options):
    """A copy, of which each child is a group."""
    model = copy.deepcopy(whole)
    policy = MixedPrecisionPolicy(reduce_dtype=reduce_dtype)
    for child in (model[0], model[2]):
        fully_shard(child, mesh=mesh, mp_policy=policy, **options)
    return fully_shard(model, mesh=mesh, mp_policy=policy, **options)


def loss_of(rank, step=0, scale=1.0, device=None):
    """A loss of a model, of this rank's batch. `device`: the model's, unless that of its weights
    in memory.
    """
    x = torch.randn(4, WIDTH, generator=torch.Generator().manual_seed(10 * step + rank))
    return lambda model: model(x.to(device or model[0].weight.device)).square().sum() * scale


def local_gradients(model):
    return [p.grad.to_local().cpu() for p in model.parameters()]


def assert_equal(model, gradients):
    for got, wanted in zip(local_gradients(model), gradients, strict=True):
        assert same(got, wanted), (got - wanted).abs().max()


def are_the_references(mesh, name, dtype):
    """To nearest and stochastically, averaged."""
    count, rank, whole = mesh.size(), mesh.get_rank(), odd_model(mesh.device_type)
    model = sharded(whole, mesh, dtype)
    options = {"divisor": count, "rank": rank, "dtype": dtype}
    for rounding in ("nearest", "stochastic"):
        nc.set_reduce_scatter_format(model, name, rounding=rounding, seed=2**64 - 1)
        for step in range(2):
            gradients = gradients_of(whole, [loss_of(r, step) for r in range(count)])
            model.zero_grad()
            loss_of(rank, step)(model).backward()
            # The root, which has no parameters, is the first FSDP module.
            seeds = {0: 2**64 - 1, 1: 0, 2: 1}
            draws = (
                (lambda place: [(seeds[place], step, r) for r in range(count)])  # noqa: B023
                if rounding == "stochastic"
                else None
            )
            wanted = expected(model, whole, gradients, FORMATS[name], draws=draws, **options)
            assert_equal(model, wanted)


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("name", KINDS)
def test_gradients_are_the_references(world, device, name):
    dtype = torch.bfloat16 if world == 3 else torch.float32
    ranks.run(world, device, are_the_references, name, dtype)


def on_one_rank(mesh, name):
    whole = odd_model(mesh.device_type)
    model = sharded(whole, mesh)
    nc.set_reduce_scatter_format(model, name)
    loss_of(0)(model).backward()
    assert_equal(model, gradients_of(whole, [loss_of(0)])[0])


def test_one_rank_rounds_nothing(device):
    ranks.run(1, device, on_one_rank, KINDS[0])


def divided(mesh, name):
    """However FSDP2 asks for it: as a factor of the sum, after it, and before it in float16."""
    count, rank, fmt = mesh.size(), mesh.get_rank(), FORMATS[name]
    whole = odd_model(mesh.device_type)
    gradients = gradients_of(whole, [loss_of(r) for r in range(count)])
    for forced in (False, True):
        model = sharded(whole, mesh)
        nc.set_reduce_scatter_format(model, name)
        for module in (model[0], model[2]):
            module.set_gradient_divide_factor(3.7)
            module.set_force_sum_reduction_for_comms(forced)
        loss_of(rank)(model).backward()
        wanted = expected(model, whole, gradients, fmt, divisor=1 if forced else 3.7, rank=rank)
        if forced:  # by FSDP2, and on a GPU torch multiplies by the reciprocal
            wanted = [one.to(mesh.device_type).div_(3.7).cpu() for one in wanted]
        assert_equal(model, wanted)
    model = sharded(whole, mesh, torch.float16)
    nc.set_reduce_scatter_format(model, name)
    loss_of(rank)(model).backward()
    halves = [[(one.half() / 2).float() for one in each] for each in gradients]
    options = {"divisor": 1, "rank": rank, "dtype": torch.float16}
    assert_equal(model, expected(model, whole, halves, fmt, **options))


def test_divided_as_fsdp2_says(device):
    ranks.run(2, device, divided, KINDS[0])


def accumulated(mesh, name):
    """Two backwards, each reduced or both at once."""
    count, rank, fmt = mesh.size(), mesh.get_rank(), FORMATS[name]
    whole = odd_model(mesh.device_type)
    every = [gradients_of(whole, [loss_of(r, step) for r in range(count)]) for step in range(2)]
    options = {"divisor": count, "rank": rank}
    for at_once in (False, True):
        model = sharded(whole, mesh)
        nc.set_reduce_scatter_format(model, name)
        model.set_requires_gradient_sync(not at_once)
        loss_of(rank, 0)(model).backward()
        model.set_requires_gradient_sync(True)
        loss_of(rank, 1)(model).backward()
        if at_once:
            both = [[*map(torch.add, *each)] for each in zip(*every, strict=True)]
            assert_equal(model, expected(model, whole, both, fmt, **options))
        else:
            one, two = (expected(model, whole, each, fmt, **options) for each in every)
            assert_equal(model, [a + b for a, b in zip(one, two, strict=True)])


def test_accumulation(device):
    ranks.run(2, device, accumulated, KINDS[0])


def hybrid(mesh, name):
    """Each row of the mesh reduces in the format; rows are averaged in the policy's dtype."""
    grid = init_device_mesh(mesh.device_type, (2, 2), mesh_dim_names=("replicate", "shard"))
    whole, rank = odd_model(mesh.device_type), grid["shard"].get_local_rank()
    model = sharded(whole, grid)
    nc.set_reduce_scatter_format(model, name, rounding="stochastic")
    loss_of(mesh.get_rank())(model).backward()
    rows = []
    for row in ([0, 1], [2, 3]):
        gradients = gradients_of(whole, [loss_of(r) for r in row])
        draws = lambda place: [(place, 0, r) for r in row]  # noqa: B023, E731
        options = {"divisor": 2, "rank": rank, "draws": draws}
        rows.append(expected(model, whole, gradients, FORMATS[name], **options))
    assert_equal(model, [(a + b) / 2 for a, b in zip(*rows, strict=True)])


def test_hybrid_sharding(device):
    ranks.run(4, device, hybrid, KINDS[0])


def cut_along_columns(mesh, name):
    count, rank, whole = mesh.size(), mesh.get_rank(), odd_model(mesh.device_type)
    model = sharded(whole, mesh, shard_placement_fn=lambda p: Shard(1 if p.dim() == 2 else 0))
    nc.set_reduce_scatter_format(model, name)
    loss_of(rank)(model).backward()
    gradients = gradients_of(whole, [loss_of(r) for r in range(count)])
    wanted = expected(model, whole, gradients, FORMATS[name], divisor=count, rank=rank)
    assert_equal(model, wanted)


def test_cut_along_columns(device):
    ranks.run(2, device, cut_along_columns, KINDS[0])


def converted(mesh, format, name):
    """Weights in one format, gradients in another; and what a step makes of it."""
    count, rank = mesh.size(), mesh.get_rank()
    whole = nc.convert(odd_model(mesh.device_type), format, filter=lambda name, _: name == "0")
    model = nc.convert(odd_model(mesh.device_type), format, filter=lambda name, _: name == "0")
    for one in (model[0], model[2], model):
        fully_shard(one, mesh=mesh)
    nc.set_reduce_scatter_format(model, name)
    loss_of(rank)(model).backward()
    gradients = gradients_of(whole, [loss_of(r) for r in range(count)])
    wanted = expected(model, whole, gradients, FORMATS[name], divisor=count, rank=rank)
    assert_equal(model, wanted)


def test_converted(device, format):
    ranks.run(2, device, converted, format, KINDS[0])


def bad_gradients(mesh, name):
    """An infinity of one rank reaches the norm on all; a later step is as if nothing had been."""
    rank, model = mesh.get_rank(), sharded(odd_model(mesh.device_type), mesh)
    nc.set_reduce_scatter_format(model, name)
    loss_of(rank)(model).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    assert torch.isfinite(norm)
    after = [one.clone() for one in local_gradients(model)]
    model.zero_grad()
    loss_of(rank, scale=torch.inf if odd(mesh) else 1.0)(model).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.1).full_tensor()
    assert not torch.isfinite(norm)
    model.zero_grad()
    loss_of(rank)(model).backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    assert_equal(model, after)


@pytest.mark.parametrize("name", KINDS)
def test_what_is_not_finite_is_seen(device, name):
    ranks.run(2, device, bad_gradients, name)


def scaled_losses(mesh, name):
    """GradScaler: a step in which one rank has an infinity is left out on all, and the next one is
    as if it had not been.
    """
    rank, whole = mesh.get_rank(), odd_model(mesh.device_type)
    weights = []
    for scales in ([1.0], [torch.inf, 1.0]):
        model = sharded(whole, mesh)
        nc.set_reduce_scatter_format(model, name)
        scaler = torch.amp.GradScaler(mesh.device_type, init_scale=8.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        for scale in scales:
            optimizer.zero_grad()
            loss = loss_of(rank, scale=scale if odd(mesh) else 1.0)(model)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        assert scaler.get_scale() == (8.0 if len(scales) == 1 else 4.0)
        weights.append([p.detach().to_local().clone() for p in model.parameters()])
    assert not any(map(same, weights[0], [p.to_local() for p in sharded(whole, mesh).parameters()]))
    assert all(map(same, *weights))


def test_scaled_losses(device):
    ranks.run(2, device, scaled_losses, KINDS[0])


def beside(mesh, name):
    """What changes when or where gradients are made, and not what they are."""
    count, rank, whole = mesh.size(), mesh.get_rank(), odd_model(mesh.device_type)
    recomputed, compiled = copy.deepcopy(whole), copy.deepcopy(whole)
    recomputed[2] = checkpoint_wrapper(recomputed[2])
    compiled[2].compile(backend="aot_eager")
    gradients = gradients_of(whole, [loss_of(r) for r in range(count)])
    wanted = expected(
        sharded(whole, mesh), whole, gradients, FORMATS[name], divisor=count, rank=rank
    )
    offloaded = sharded(whole, mesh, offload_policy=CPUOffloadPolicy(torch.cuda.is_available()))
    for model in (sharded(recomputed, mesh), sharded(compiled, mesh), offloaded):
        nc.set_reduce_scatter_format(model, name)
        loss_of(rank, device=mesh.device_type)(model).backward()
        assert_equal(model, wanted)


def test_recomputed_compiled_and_offloaded(device):
    ranks.run(2, device, beside, KINDS[0])


@contextlib.contextmanager
def noted_sends():
    """Gives a list, to which each all-to-all adds what it sends, and how many rows to each rank."""
    sends, send = [], dist.ProcessGroup.alltoall_base

    def noted(group, received, sent, received_rows, sent_rows, *options):
        sends.append((sent, sent_rows))
        return send(group, received, sent, received_rows, sent_rows, *options)

    with mock.patch.object(dist.ProcessGroup, "alltoall_base", noted):
        yield sends


def counted(mesh, name):
    """The bytes that this rank sends of the gradients of a larger layer, an element of theirs."""
    model = fully_shard(nn.Linear(128, 128 * mesh.size(), device=mesh.device_type), mesh=mesh)
    nc.set_reduce_scatter_format(model, name)
    with noted_sends() as sends, mock.patch.object(dist, "reduce_scatter_tensor") as plain:
        model(torch.ones(1, 128, device=mesh.device_type)).sum().backward()
    assert plain.call_count == 0
    ((sent, rows),) = sends
    assert rows == [int(rank != mesh.get_rank()) for rank in range(mesh.size())]
    bytes = sent.numel()
    return bytes / (sum(p.numel() for p in model.parameters()) * (1 - 1 / mesh.size()))


@pytest.mark.parametrize("name", CARRIED)
def test_bytes_are_what_travels(device, name):
    most = {8: 1.04, 6: 0.79, 4: 0.54}[nc.format(name).rowwise.element_bits]
    assert all(0.5 < each <= most for each in ranks.run(2, device, counted, name))


def undone(mesh, name):
    gradients = []
    for asked in ([], [name, None]):
        model = sharded(odd_model(mesh.device_type), mesh)
        for format in asked:
            nc.set_reduce_scatter_format(model, format)
        loss_of(mesh.get_rank())(model).backward()
        gradients.append(local_gradients(model))
    assert all(map(same, *gradients))


def test_none_undoes_it(device):
    ranks.run(2, device, undone, KINDS[0])


def in_a_part(mesh, name):
    """Of the groups in a module that is given, and no others."""
    models = [sharded(odd_model(mesh.device_type), mesh) for _ in range(3)]
    nc.set_reduce_scatter_format(models[1], name)
    nc.set_reduce_scatter_format(models[2][2], name)
    for model in models:
        loss_of(mesh.get_rank())(model).backward()
    plain, narrow, mixed = (local_gradients(model) for model in models)
    assert not any(map(same, plain[:1], narrow[:1]))
    assert all(map(same, mixed, plain[:2] + narrow[2:]))


def test_a_part_of_a_model(device):
    ranks.run(2, device, in_a_part, KINDS[0])


def disagreeing(mesh, mine, other):
    model = sharded(odd_model(mesh.device_type), mesh)
    try:
        nc.set_reduce_scatter_format(model, **(other if odd(mesh) else mine))
    finally:  # nothing was changed
        with noted_sends() as sends:
            loss_of(0)(model).backward()
        assert sends == []


FIRST = {"format": CARRIED[0]}


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"format": CARRIED[1]}, (CARRIED[0], CARRIED[1])),
        (FIRST | {"seed": 1}, ("seed=0", "seed=1")),
        (FIRST | {"rounding": "stochastic"}, ("nearest", "stochastic")),
        ({"format": None}, ("None",)),
        ({"format": "no"}, ("there is no format 'no'",)),
    ],
)
def test_ranks_disagree(device, other, words):
    answers = ranks.errors(2, device, disagreeing, FIRST, other)
    assert_named(answers, "rank 0 has", "rank 1 has", *words)


@pytest.mark.parametrize(
    ("asked", "kind", "words"),
    [
        ({"format": "no"}, "ValueError", ["there is no format 'no'"]),
        ({"format": 3}, "TypeError", ["a format is a name"]),
        (FIRST | {"rounding": "up"}, "ValueError", ['"nearest" or "stochastic"']),
        (FIRST | {"seed": -1}, "ValueError", ["seed is from 0"]),
        *(
            ({"format": name}, "ValueError", [f"cannot travel in {name}", ", ".join(CARRIED)])
            for name in one_of_each(lambda f: (f.casts_parts, f.tensor_amax, f.rowwise.block))
            if name not in CARRIED
        ),
    ],
)
def test_bad_calls(device, asked, kind, words):
    for got, message in ranks.errors(2, device, disagreeing, asked, asked):
        assert got == kind
        assert all(word in message for word in words), message


def test_a_model_without_groups():
    with pytest.raises(ValueError, match="call fully_shard first"):
        nc.set_reduce_scatter_format(odd_model("cpu"), CARRIED[0])
