"""capturable=True: steps in CUDA graphs give the bytes of eager steps, and nothing waits."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import narrowcast as nc
import ranks
from cuda_graphs import captured
from internals import tensors_of
from models import SHARDINGS, build, same, shard
from narrowcast.tensor import dtensors
from weights import value_of

TESTED_FORMATS = SHARDINGS
ON_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
STEPS = 4


def adamw(parameters, **options):
    return nc.optim.AdamW(parameters, betas=(0.9, 0.95), **options)


KINDS = {
    "adamw": adamw,
    "bfloat16": lambda p, **o: adamw(p, state_dtype=torch.bfloat16, **o),
    "int8_root": lambda p, **o: adamw(p, state_dtype="int8_root", **o),
    "stochastic": lambda p, **o: adamw(p, rounding="stochastic", seed=3, **o),
    "l2": lambda p, **o: nc.FusedAdam(p, adam_w_mode=False, weight_decay=0.1, **o),
    "lion": nc.optim.Lion,
    "sgd": lambda p, **o: nc.optim.SGD(p, momentum=0.9, dampening=0.1, **o),
}


def give(model, generator):
    """Gradients in the memory that gradients have, as a captured backward writes them."""
    for one in model.parameters():
        local = dtensors.local_of(one)
        drawn = torch.randn(local.shape, generator=generator, device=local.device) * 0.01
        if one.grad is None:
            drawn = drawn.to(one.dtype)
            one.grad = dtensors.like(one, drawn) if isinstance(one, DTensor) else drawn
        else:
            dtensors.local_of(one.grad).copy_(drawn)


def everything(model, optimizer):
    """Values and states; then what the bytes are: of shards, which have undefined ones too, by what
    a forward makes of them.
    """
    for name, one in model.named_parameters():
        local = dtensors.local_of(one)
        yield f"{name}'s value", dtensors.local_of(value_of(one)).detach()
        for key, state in optimizer.state[one].items():
            yield f"{name}'s {key}", dtensors.local_of(state).to(local.device)
        if local is one and isinstance(one, nc.MasterWeight):
            yield from ((f"{name}'s bytes", tensor) for tensor in tensors_of(one))
    if isinstance(one, DTensor):
        with torch.no_grad():
            yield "the output", model(torch.eye(model.width, device=local.device))
        model.reshard()


def assert_alike(first, second):
    """Pairs of a model and its optimizer."""
    for (what, ours), (_, theirs) in zip(everything(*first), everything(*second), strict=True):
        assert same(ours, theirs), what


def trained_both_ways(make_model, make, device, amp=()):
    """The same gradients, rates and amp's tensors for eager steps counted by the host, and, after
    two warm ones, for replays. `amp`: of each step grad_scale and found_inf.
    """
    rate = torch.tensor(1e-2, device=device)
    plain, model = make_model(), make_model()
    theirs = make(plain.parameters(), lr=1e-2)
    optimizer = make(model.parameters(), lr=rate, capturable=True)
    scale, found = (torch.ones((), device=device) for _ in range(2))
    if amp:
        optimizer.grad_scale, optimizer.found_inf = scale, found
    generators = [torch.Generator(device).manual_seed(1) for _ in range(2)]
    graph = None
    for step in range(2 + STEPS):
        give(plain, generators[0])
        give(model, generators[1])
        for group in theirs.param_groups:
            group["lr"] = float(rate.fill_(1e-2 / (step + 1)))
        if amp:
            scale.fill_(amp[step][0])
            found.fill_(amp[step][1])
            theirs.grad_scale, theirs.found_inf = scale.clone(), found.clone()
        theirs.step()
        if step < 2:
            optimizer.step()
        else:
            if graph is None:
                graph = captured(optimizer.step)
            graph.replay()
        assert_alike((plain, theirs), (model, optimizer))
    return model, optimizer


@ON_GPU
@pytest.mark.parametrize("kind", KINDS)
def test_replays_are_steps(kind, format):
    trained_both_ways(lambda: build(format, "cuda"), KINDS[kind], "cuda")


def narrow(format):
    return build(format, "cuda", torch.bfloat16, value_dtype=torch.bfloat16)


@ON_GPU
@pytest.mark.parametrize("bits", [8, 0])
def test_bfloat16_values(format, bits):
    """The GPU counts the steps that random words are of; a skipped one leaves residuals."""
    options = {"state_dtype": "int8_root", "residual_bits": bits, "seed": 3}
    amp = [(4.0, 0.0), (4.0, 1.0), (2.0, 1.0), (8.0, 0.0), (0.5, 2.0), (0.3, 0.0)]
    for given in ((), amp):
        trained_both_ways(
            lambda: narrow(format), lambda p, **o: adamw(p, **options, **o), "cuda", given
        )


@ON_GPU
def test_no_capture_of_what_ends_a_residual(format):
    """Replays would end it each time. A forward has made the bytes, so they are not stale."""
    model = narrow(format)
    optimizer = adamw(model.parameters(), capturable=True)
    generator = torch.Generator("cuda").manual_seed(1)
    for _ in range(2):
        give(model, generator)
        optimizer.step()
    with torch.no_grad():
        model.head.weight.mul_(1.5)
        model(torch.ones(1, model.width, device="cuda", dtype=torch.bfloat16))
    with pytest.raises(RuntimeError, match="a weight was written to"):
        captured(optimizer.step)


@ON_GPU
def test_skipped_and_scaled_steps(format):
    """The first of the replays is skipped, too."""
    amp = [(4.0, 0.0), (4.0, 1.0), (2.0, 1.0), (8.0, 0.0), (0.5, 2.0), (0.3, 0.0)]
    model, optimizer = trained_both_ways(lambda: build(format, "cuda"), adamw, "cuda", amp)
    assert all(int(optimizer.state[one]["step"]) == 3 for one in model.parameters())


@ON_GPU
def test_a_skipped_step_leaves_what_was_written(format):
    """A weight that was written to has the bytes of its value, whether the GPU skips or not."""
    models = build(format, "cuda"), build(format, "cuda")
    optimizer, theirs = (
        adamw(models[0].parameters(), capturable=True),
        adamw(models[1].parameters()),
    )
    generators = [torch.Generator("cuda").manual_seed(1) for _ in range(2)]
    for found in (0.0, 1.0, 0.0):
        for model, one, generator in zip(models, (optimizer, theirs), generators, strict=True):
            give(model, generator)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.5)
            one.found_inf = torch.tensor(found, device="cuda")
            one.step()
            model(torch.ones(1, model.width, device="cuda"))
        assert_alike((models[0], optimizer), (models[1], theirs))


@ON_GPU
@pytest.mark.parametrize("kind", ["adamw", "int8_root"])
def test_a_whole_training_step(kind, format):
    """Forward, backward and step in one graph."""

    def run(model, optimizer, x):
        model(x).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    inputs = torch.randn(2 + STEPS, 32, build(format).width, device="cuda")
    plain, model = build(format, "cuda"), build(format, "cuda")
    theirs = KINDS[kind](plain.parameters())
    optimizer = KINDS[kind](model.parameters(), capturable=True)
    static, graph = inputs[0].clone(), None
    for step, x in enumerate(inputs):
        run(plain, theirs, x)
        static.copy_(x)
        if step < 2:
            run(model, optimizer, static)
            continue
        if graph is None:
            graph = captured(lambda: run(model, optimizer, static))
        graph.replay()
        assert_alike((plain, theirs), (model, optimizer))


@ON_GPU
@pytest.mark.parametrize("layers", [3, 40])
def test_eager_steps_wait_for_nothing_and_copy_nothing(layers):
    """Few parameters, whose tables could travel with a launch, and many."""
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(layers))).cuda()
    nc.convert(model, "fp8_e4m3")
    rate = torch.tensor(1e-3, device="cuda")
    optimizer = adamw(model.parameters(), lr=rate, capturable=True)
    generator = torch.Generator("cuda").manual_seed(0)
    give(model, generator)
    optimizer.grad_scale, optimizer.found_inf = (torch.ones((), device="cuda") for _ in range(2))
    optimizer.step()
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(3):
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    names = [event.name for event in profile.events()]
    assert any("begin_kernel" in name for name in names)
    assert not [name for name in names if "HtoD" in name]


@ON_GPU
def test_grad_scaler():
    models = [nc.convert(nn.Linear(64, 64).cuda(), "mxfp8_e4m3") for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    optimizers = [
        adamw(m.parameters(), capturable=c) for m, c in zip(models, (True, False), strict=True)
    ]
    scalers = [torch.amp.GradScaler("cuda", init_scale=2.0**14) for _ in models]
    for step in range(4):
        for model, optimizer, scaler in zip(models, optimizers, scalers, strict=True):
            x = torch.ones(8, 64, device="cuda") * (float("inf") if step == 1 else 1.0 + step)
            scaler.scale(model(x).square().mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        assert_alike(*zip(models, optimizers, strict=True))
    assert int(optimizers[0].state[models[0].weight]["step"]) == 3


@ON_GPU
def test_states_go_on_either_way():
    """Of the host's counting, of torch's AdamW, and of one whose groups were changed by hand."""
    generator = torch.Generator("cuda").manual_seed(0)
    model = build("mxfp8_e4m3", "cuda")
    first = adamw(model.parameters())
    give(model, generator)
    first.step()
    second = adamw(model.parameters(), capturable=True)
    second.load_state_dict(first.state_dict())
    assert second.param_groups[0]["capturable"]
    second.step()
    assert {state["step"].device.type for state in second.state.values()} == {"cuda"}
    second.param_groups[0]["capturable"] = False
    second.step()
    third = adamw(model.parameters(), capturable=True)
    third.load_state_dict(copy.deepcopy(second.state_dict()))
    third.step()
    assert all(float(state["step"]) == 4 for state in third.state.values())
    weight = nn.Parameter(torch.ones(4, 4, device="cuda"))
    theirs = torch.optim.AdamW([weight], capturable=True)
    weight.grad = torch.ones_like(weight)
    theirs.step()
    ours = adamw([weight], capturable=True)
    ours.load_state_dict(theirs.state_dict())
    ours.step()
    assert float(ours.state[weight]["step"]) == 2


@ON_GPU
def test_what_a_capture_cannot_take():
    model = build("mxfp8_e4m3", "cuda")
    give(model, torch.Generator("cuda").manual_seed(0))
    optimizer = adamw(model.parameters(), capturable=True)
    with pytest.raises(RuntimeError, match="take some steps before the capture"):
        captured(optimizer.step)
    optimizer.step()
    with torch.no_grad():
        model.head.weight.mul_(2)
    with pytest.raises(RuntimeError, match="a weight was written to"):
        captured(optimizer.step)
    counted = adamw(model.parameters())
    with pytest.raises(RuntimeError, match=r"counted on the host.*pass capturable=True"):
        captured(counted.step)
    rates = torch.tensor(1e-3, dtype=torch.float64, device="cuda")
    doubtful = adamw(model.parameters(), lr=rates, capturable=True)
    with pytest.raises(TypeError, match="lr is Double, not Float"):
        doubtful.step()


def test_parameters_on_the_cpu():
    model = build("mxfp8_e4m3")
    model.head.weight.grad = torch.ones(model.head.weight.shape)
    with pytest.raises(
        ValueError, match="is on cpu, and capturable=True is for parameters on a GPU"
    ):
        adamw(model.parameters(), capturable=True).step()


def test_groups_agree():
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [weights[0]]}, {"params": [weights[1]], "capturable": True}]
    weights[0].grad = torch.ones(2)
    with pytest.raises(ValueError, match="groups differ in capturable"):
        nc.optim.SGD(groups).step()


def test_muon_has_no_such_option():
    with pytest.raises(NotImplementedError, match="group 0 has capturable=True"):
        nc.optim.Muon([{"params": [nn.Parameter(torch.ones(2, 2))], "capturable": True}])


@ON_GPU
@ranks.on(2, "cuda")
def test_shards(mesh, format):
    """With what ranks reduce over NCCL. A step is skipped that another rank wants to skip."""

    def make_model():
        model = build(format, "cuda")
        shard(model, mesh)
        return model

    amp = [(1.0, float(step == 4 and mesh.get_local_rank() == 1)) for step in range(2 + STEPS)]
    trained_both_ways(make_model, adamw, "cuda", amp)


@ON_GPU
@ranks.on(2, "cuda")
def test_shards_that_share_blocks(mesh, format):
    def make_model():
        torch.manual_seed(0)
        model = nc.convert(nn.Linear(64, 100, bias=False).cuda(), format)
        model.width = 64
        return fully_shard(model, mesh=mesh)

    trained_both_ways(make_model, adamw, "cuda")
