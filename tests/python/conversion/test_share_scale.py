"""nc.convert(..., share_scale=): weights with one scale of the tensor, in one process."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import pickled
from shared_scales import ENTRIES, OPTIONS, SPANNING, STOCHASTIC, Projections, Truth, build, loss_of
from weights import quantized

TESTED_FORMATS = SPANNING


def amax_of(layer):
    return quantized(layer.weight).tensor_amax.item()


def amaxes(model):
    return [*map(amax_of, model.children())]


@pytest.mark.parametrize("options", [OPTIONS, STOCHASTIC], ids=["nearest", "stochastic"])
def test_steps_and_loads(format, options, device):
    model = build(format, device)
    truth = Truth(model)
    truth.compare("converted")
    optimizer = nc.FusedAdam(model.parameters(), **options)
    for step in range(1, 4):
        optimizer.zero_grad()
        loss_of(model, step, device).backward()
        optimizer.step()
        truth.compare(f"step {step}", optimizer, step)
    saved = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    with torch.no_grad():
        for weight in (model.k_proj.weight, model.up_proj.weight):
            weight.value.mul_(3)
    truth.begin()
    truth.compare("one is written to: read first is another")
    model.load_state_dict(saved[0])
    truth.begin()
    truth.compare("values are loaded")
    # One of three without a gradient: all are cast again, to nearest.
    loss_of(model, 4, device).backward()
    model.v_proj.weight.grad = model.gate_proj.weight.grad = None
    optimizer.step()
    truth.begin()
    truth.compare("a gradient is missing")


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies(format, copied):
    """A copy of the model shares among its own weights; the copy of one weight shares nothing."""
    model = build(format)
    other = copied(model)
    alone = copy.deepcopy(model.q_proj)
    clone = nn.Parameter(model.q_proj.weight.detach().clone())
    before = amaxes(model)
    for one in (alone.weight, clone):
        one.grad = torch.ones_like(one.value)
        nc.FusedAdam([one], **OPTIONS).step()
    with torch.no_grad():
        other.v_proj.weight.value.mul_(7)
        for one in (alone.weight, clone):
            one.value.mul_(0.5)
    Truth(other).compare("copy")
    for one in (alone.weight, clone):
        assert quantized(one).tensor_amax.item() == one.value.abs().max().item() < before[0]
    assert amaxes(model) == before
    dead = weakref.ref(other)
    gc.disable()
    del other
    gc.enable()
    assert dead() is None


def test_compiled(format):
    model = build(format)
    optimizer = nc.FusedAdam(model.parameters(), **OPTIONS)
    expected = [loss_of(model, step).item() for step in range(2)]
    compiled = torch.compile(model, backend="eager")
    loss_of(compiled, 0).backward()
    optimizer.step()
    with torch.no_grad():
        for weight in (model.k_proj.weight, model.up_proj.weight):
            weight.value.mul_(2)
    assert loss_of(compiled, 1).item() != expected[1]
    Truth(model).compare("compiled")


def test_choice():
    """Which weights an entry chooses."""
    nested = nn.Sequential(Projections(), nn.Sequential(Projections()))
    nc.convert(nested, "nvfp4", share_scale=[("q_proj", "v_proj")])
    first, second = amaxes(nested[0]), amaxes(nested[1][0])
    assert first[0] == first[2] != first[1]
    assert first == second
    assert len(set(amaxes(nc.convert(Projections(), "nvfp4")))) == 6  # no library's
    assert len(set(amaxes(nc.convert(Projections(), "nvfp4", share_scale=True)))) == 3
    nc.convert(Projections(), "mxfp8_e4m3", share_scale=ENTRIES)  # nothing to share
    part = nc.convert(Projections(), "nvfp4", filter=["q_proj", "k_proj"], share_scale=ENTRIES[:1])
    assert amax_of(part.q_proj) == amax_of(part.k_proj)
    lines = str(nc.summary(part)).splitlines()
    shared = [line.split()[0] for line in lines if "one scale for q_proj/k_proj" in line]
    assert shared == ["q_proj.weight", "k_proj.weight"]


@pytest.mark.parametrize(
    ("entries", "error", "words"),
    [
        ([("q_proj", "kproj")], ValueError, "no two of 'q_proj', 'kproj' are beside each other"),
        ([("q_proj", "k_proj"), ("k_proj", "v_proj")], ValueError, "two entries choose k_proj"),
        (("q_proj", "k_proj"), TypeError, "list of tuples of names"),
    ],
)
def test_errors(entries, error, words):
    model = Projections()
    with pytest.raises(error, match=words):
        nc.convert(model, "nvfp4", share_scale=entries)
    assert not any(isinstance(one, nc.MasterWeight) for one in model.parameters())


def test_frozen():
    """The scale is one, of the conversion, and that of a later value its own."""
    model = Projections()
    model.q_proj.requires_grad_(False)
    with pytest.raises(ValueError, match=r"only k_proj\.weight, v_proj\.weight would be trained"):
        nc.convert(model, "nvfp4", share_scale=ENTRIES)
    nc.convert(model, "nvfp4", share_scale=ENTRIES, trainable=False)
    assert len(set(amaxes(model))) == 3
    with torch.no_grad():
        model.k_proj.weight.copy_(torch.ones(48, 64))
    assert len(set(amaxes(model))) == 4
    model.up_proj.weight.data += torch.ones(96, 64)  # as peft adds adapters
    assert len(set(amaxes(model))) == 5


def test_parts(format):
    """What is left of a group when one has become plain, or another module, shares on."""
    model = build(format)
    nc.to_plain(model.q_proj)
    model.gate_proj = nn.Linear(64, 96, bias=False)
    optimizer = nc.FusedAdam(model.parameters(), **OPTIONS)
    loss_of(model, 0).backward()
    optimizer.step()
    both = [one.weight.value.abs().max().item() for one in (model.k_proj, model.v_proj)]
    parts = model.k_proj, model.v_proj, model.up_proj
    alone = model.up_proj.weight.value.abs().max().item()
    assert [amax_of(one) for one in parts] == [max(both), max(both), alone]


def test_apart(format):
    """Weights that share a scale are stepped by one optimizer, with one rounding."""
    model = build(format)
    apart = {"params": [model.k_proj.weight], "rounding": "stochastic"}
    rest = [one for name, one in model.named_parameters() if name != "k_proj.weight"]
    loss_of(model, 0).backward()
    for groups in ([apart, {"params": rest}], rest):
        with pytest.raises(ValueError, match="have one scale"):
            nc.FusedAdam(groups, lr=0.1).step()


def test_transformers(format):
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 32, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    other = nc.convert(copy.deepcopy(model), format, share_scale=False)
    layer, plain = (nc.convert(model, format).model.layers[0], other.model.layers[0])
    for one, whole in ((layer, False), (plain, True)):
        attention, mlp = one.self_attn, one.mlp
        group = [attention.q_proj, attention.k_proj, attention.v_proj]
        assert (len({*map(amax_of, group)}) == 3) == whole
        assert (amax_of(mlp.gate_proj) != amax_of(mlp.up_proj)) == whole
