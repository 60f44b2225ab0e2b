"""State formats from outside: their names, what has them, refusals, and state dicts of others."""

import copy
import io

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import same
from narrowcast import registry
from narrowcast.__main__ import main

STATE = nc.state_formats()[0]
FORMAT = registry.state_format(STATE)
BLOCK = FORMAT.block


def parameters(seed=0):
    """In formats: a matrix and a stack of them. In float32: a vector, and short rows."""
    torch.manual_seed(seed)
    shapes = [(4, 2 * BLOCK), (2, 3, BLOCK + 1), (4 * BLOCK,), (4, BLOCK - 1)]
    return [nn.Parameter(torch.randn(shape)) for shape in shapes]


def stepped(make, *, steps=2, seed=0, **options):
    """Parameters and an optimizer that has taken steps."""
    every = parameters(seed)
    optimizer = make(every, lr=1e-2, **options)
    step(every, optimizer, steps)
    return every, optimizer


def step(every, optimizer, steps=1, first=0):
    for number in range(first, first + steps):
        generator = torch.Generator().manual_seed(number)
        for one in every:
            one.grad = torch.randn(one.shape, generator=generator)
        optimizer.step()


def moments_of(optimizer, parameter):
    """As numbers."""
    state = optimizer.state[parameter]
    for name, nonnegative in (("exp_avg", False), ("exp_avg_sq", True)):
        if name in state:
            yield state[name]
        else:
            codes, scales = state[f"{name}_{STATE}"], state[f"{name}_{STATE}_scale"]
            yield FORMAT.decode(codes, scales, nonnegative)


def test_which_parameters_have_codes():
    every, optimizer = stepped(nc.optim.AdamW, state_dtype=STATE)
    for one in every:
        state = optimizer.state[one]
        if one.dim() >= 2 and one.shape[-1] >= BLOCK:
            codes, scales = state[f"exp_avg_{STATE}"], state[f"exp_avg_{STATE}_scale"]
            assert codes.dtype == torch.uint8
            assert codes.shape == one.shape
            assert scales.dtype == torch.float32
            assert scales.shape == (*one.shape[:-1], -(-one.shape[-1] // BLOCK))
            assert "exp_avg" not in state
        else:
            assert state["exp_avg"].dtype == state["exp_avg_sq"].dtype == torch.float32


def test_moments_are_near_those_in_float32():
    coded, plain = stepped(nc.optim.AdamW, state_dtype=STATE), stepped(nc.optim.AdamW)
    for one, other in zip(coded[0], plain[0], strict=True):
        moments = zip(moments_of(coded[1], one), moments_of(plain[1], other), strict=True)
        for ours, theirs in moments:
            assert (ours - theirs).norm() <= 0.02 * theirs.norm()


@pytest.mark.parametrize("make", [nc.optim.AdamW, nc.optim.Adam, nc.FusedAdam])
def test_all_names_of_adam(make):
    every, optimizer = stepped(make, state_dtype=STATE)
    assert f"exp_avg_sq_{STATE}_scale" in optimizer.state[every[0]]


@pytest.mark.parametrize("wrong", ["int9", "", 8, torch.float16, torch.uint8, None])
def test_no_such_dtype(wrong):
    with pytest.raises(ValueError, match=STATE):
        nc.optim.AdamW(parameters(), state_dtype=wrong)


@pytest.mark.parametrize("make", [nc.optim.Lion, nc.optim.SGD])
def test_rules_that_keep_numbers(make):
    with pytest.raises(ValueError, match=f"bfloat16 for {make.__name__}, and not '{STATE}'"):
        make(parameters(), state_dtype=STATE)


def test_not_of_weights():
    for use in (nc.format, lambda name: nc.convert(nn.Linear(128, 128), name)):
        with pytest.raises(ValueError, match="is a state format"):
            use(STATE)


def test_command_line(capsys):
    assert main(["list"]) == 0
    assert STATE in capsys.readouterr().out
    assert main(["show", STATE]) == 0
    assert str(BLOCK) in capsys.readouterr().out


def test_its_own_state_dict():
    every, optimizer = stepped(nc.optim.AdamW, state_dtype=STATE)
    file = io.BytesIO()
    torch.save(optimizer.state_dict(), file)
    file.seek(0)
    others = copy.deepcopy(every)
    other = nc.optim.AdamW(others, lr=1e-2, state_dtype=STATE)
    other.load_state_dict(torch.load(file, weights_only=True))
    step(every, optimizer, first=5)
    step(others, other, first=5)
    for one, two in zip(every, others, strict=True):
        assert same(one, two)
        for key, value in optimizer.state[one].items():
            assert same(value, other.state[two][key]), key


@pytest.mark.parametrize("make", [torch.optim.AdamW, nc.optim.AdamW])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_from_numbers(make, dtype):
    """A training in other dtypes goes on in the format."""
    if make is torch.optim.AdamW and dtype != torch.float32:
        return
    options = {} if make is torch.optim.AdamW else {"state_dtype": dtype}
    every, before = stepped(make, **options)
    optimizer = nc.optim.AdamW(every, lr=1e-2, state_dtype=STATE)
    optimizer.load_state_dict(before.state_dict())
    for one in every:
        for key, nonnegative in (("exp_avg", False), ("exp_avg_sq", True)):
            value = before.state[one][key].float()
            state = optimizer.state[one]
            if not FORMAT.holds(one.shape):
                assert same(state[key], value)
                continue
            expected = FORMAT.encode(value, nonnegative)
            assert same(state[f"{key}_{STATE}"], expected[0])
            assert same(state[f"{key}_{STATE}_scale"], expected[1])
        assert optimizer.state[one]["step"] == 2
    step(every, optimizer)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_to_numbers(dtype):
    every, before = stepped(nc.optim.AdamW, state_dtype=STATE)
    optimizer = nc.optim.AdamW(every, lr=1e-2, state_dtype=dtype)
    optimizer.load_state_dict(before.state_dict())
    for one in every:
        expected = [moment.to(dtype) for moment in moments_of(before, one)]
        assert all(map(same, moments_of(optimizer, one), expected))
    step(every, optimizer)


def test_a_state_that_does_not_fit_changes_nothing():
    _, optimizer = stepped(nc.optim.AdamW, state_dtype=STATE)
    saved = optimizer.state_dict()
    del saved["state"][0][f"exp_avg_{STATE}_scale"]
    _, other = stepped(nc.optim.AdamW, state_dtype=STATE, seed=1)
    before = copy.deepcopy(other.state_dict())
    with pytest.raises(ValueError, match=f"exp_avg_{STATE}_scale"):
        other.load_state_dict(saved)
    after = other.state_dict()
    for index, state in before["state"].items():
        assert all(same(value, after["state"][index][key]) for key, value in state.items())


@pytest.mark.parametrize("dtype", [torch.float32, STATE], ids=str)
@pytest.mark.parametrize("change", ["missing", "shape"])
def test_codes_without_their_scales(dtype, change):
    _, optimizer = stepped(nc.optim.AdamW, state_dtype=STATE)
    saved = optimizer.state_dict()
    name = f"exp_avg_{STATE}_scale"
    if change == "missing":
        del saved["state"][0][name]
    else:
        saved["state"][0][name] = torch.zeros(4, 7)
    other = nc.optim.AdamW(parameters(), lr=1e-2, state_dtype=dtype)
    with pytest.raises(ValueError, match="exp_avg"):
        other.load_state_dict(saved)
    assert not other.state


def test_a_state_that_is_broken_by_hand():
    every, optimizer = stepped(nc.optim.AdamW, state_dtype=STATE)
    state = optimizer.state[every[0]]
    scale = state.pop(f"exp_avg_{STATE}_scale")
    state[f"exp_avg_{STATE}_scale"] = torch.zeros(3)
    with pytest.raises(ValueError, match=f"exp_avg_{STATE}_scale"):
        step(every, optimizer)
    state[f"exp_avg_{STATE}_scale"] = scale
    del state[f"exp_avg_{STATE}"]
    with pytest.raises(ValueError, match=r"state has no exp_avg$"):
        step(every, optimizer)


def test_copies():
    every, optimizer = stepped(nc.optim.AdamW, state_dtype=STATE)
    twins, twin = copy.deepcopy((every, optimizer))
    step(every, optimizer, first=7)
    step(twins, twin, first=7)
    assert all(map(same, every, twins))
