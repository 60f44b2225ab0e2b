"""CUDA graphs, torch.compile's and the user's own: replays do what the captured calls would."""

import itertools

import pytest
import torch
from torch import nn

import narrowcast as nc
from cuda_graphs import captured
from models import same
from scaled import SCALED
from weights import quantized

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
TESTED_FORMATS = SCALED
STEPS = 5


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()


def build(format, matmul):
    torch.manual_seed(0)
    layers = nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)
    return nc.convert(nn.Sequential(*layers).cuda().bfloat16(), format, matmul=matmul)


def inputs():
    generator = torch.Generator("cuda").manual_seed(1)
    return torch.randn(STEPS, 64, 256, device="cuda", generator=generator).bfloat16()


def values(model):
    """All that a step has made."""
    for one in model.parameters():
        yield one.detach()
        if isinstance(one, nc.MasterWeight):
            yield quantized(one).rowwise_data


def trained(model, forward):
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    losses = []
    for x in inputs():
        torch.compiler.cudagraph_mark_step_begin()
        loss = forward(x).float().square().mean()
        loss.backward()
        losses.append(loss.detach().clone())
        optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
def test_reduced_overhead(format, matmul):
    """Random gradients are no equal ones, but those of torch's seed."""
    results = []
    for mode in ("default", "reduce-overhead"):
        torch._dynamo.reset()
        model = build(format, matmul)
        torch.manual_seed(2)
        losses = trained(model, torch.compile(model, mode=mode, fullgraph=True))
        results.append([*losses, *values(model)])
    assert all(map(same, *results))


def test_replays_draw_anew():
    """Stochastic gradients of equal inputs differ from step to step."""
    model = build("nvfp4", "scaled")
    run, x = torch.compile(model, mode="reduce-overhead"), inputs()[0]
    seen = []
    for _ in range(STEPS):
        torch.compiler.cudagraph_mark_step_begin()
        run(x).float().square().sum().backward()
        seen.append(model[0].weight.grad.clone())
        model.zero_grad()
    assert not any(torch.equal(one, other) for one, other in itertools.pairwise(seen))


def warm_up(run):
    """On another stream, as torch wants it before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)


def pass_through(model, x):
    model(x).float().square().mean().backward()


@pytest.mark.parametrize("matmul", ["dequantized", "scaled"])
def test_a_captured_step(matmul):
    """Forward and backward in a graph, the optimizer's step outside of it."""
    model, other = (build("mxfp8_e4m3", matmul) for _ in range(2))
    static = inputs()[0].clone()
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in (model, other)]
    warm_up(lambda: pass_through(model, static))
    graph = captured(lambda: pass_through(model, static))
    for x in inputs():
        static.copy_(x)
        for one in model.parameters():
            one.grad.zero_()
        other.zero_grad()
        graph.replay()
        pass_through(other, x)
        for optimizer in optimizers:
            optimizer.step()
    assert all(map(same, values(model), values(other)))


@pytest.mark.parametrize("eager_first", [True, False])
def test_a_cast_of_a_capture_is_its_own(eager_first):
    """Layers of one input and stream, inside and outside of a capture: each casts for itself."""
    inside, outside = (
        nc.convert(nn.Linear(256, 64).cuda(), "fp8_e4m3", matmul="scaled") for _ in range(2)
    )
    x, later = (one.clone() for one in inputs()[:2].float())
    expected = inside(later), outside(x.clone())
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        if eager_first:
            got = outside(x)
        with torch.cuda.graph(graph, stream=stream):
            captured_output = inside(x)
        if not eager_first:
            got = outside(x)
        x.copy_(later)
        graph.replay()
    stream.synchronize()
    assert same(captured_output, expected[0]) and same(got, expected[1])


def test_random_gradients_in_a_capture():
    """The seed of a replay would be the one of the capture."""
    model, x = build("nvfp4", "scaled"), inputs()[0]
    warm_up(lambda: pass_through(model, x))
    with pytest.raises(RuntimeError, match="rounded stochastically"):
        captured(lambda: pass_through(model, x))


def test_a_step_in_a_capture():
    model = build("mxfp8_e4m3", "dequantized")
    for one in model.parameters():
        one.grad = torch.zeros(one.shape, dtype=one.dtype, device="cuda")
    optimizer = nc.FusedAdam(model.parameters())
    with pytest.raises(RuntimeError, match="steps are counted on the host"):
        captured(optimizer.step)
