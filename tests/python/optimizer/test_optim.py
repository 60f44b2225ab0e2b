"""nc.optim beside torch's optimizers of the same names: signatures, numbers, states, options."""

import copy
import inspect

import pytest
import torch
from torch import nn

import narrowcast as nc
import reference

TORCHS = ("AdamW", "Adam", "SGD")
OURS = {
    *("state_dtype", "rounding", "seed", "decoupled_weight_decay", "capturable"),
    "residual_bits",
}


@pytest.mark.parametrize("name", TORCHS)
def test_signature(name):
    """Names, order, defaults; ours come last, by keyword."""
    theirs = inspect.signature(getattr(torch.optim, name).__init__).parameters
    ours = inspect.signature(getattr(nc.optim, name).__init__).parameters
    for key, one in theirs.items():
        assert ours[key].default == one.default, key
        assert ours[key].kind == one.kind, key
    positional = [key for key, one in ours.items() if one.kind == one.POSITIONAL_OR_KEYWORD]
    assert positional == [k for k, one in theirs.items() if one.kind == one.POSITIONAL_OR_KEYWORD]
    assert set(ours) - set(theirs) <= OURS


SETUPS = [
    ("AdamW", {}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.3}),
    ("Adam", {"weight_decay": 0.1}),
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "dampening": 0.5}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
]


def train(weight, optimizer, steps, seed=0):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        weight.grad = torch.randn(weight.shape, generator=generator)
        optimizer.step()


@pytest.mark.parametrize(("name", "options"), SETUPS)
def test_numbers_and_states_are_torchs(name, options):
    """Five steps of each, and five that each takes from the other's state: equal but for the last
    bits, in which torch's order of operations differs.
    """
    torch.manual_seed(0)
    value = torch.randn(64, 32)
    weights, optimizers = [nn.Parameter(value.clone()) for _ in range(2)], []
    for weight, module in zip(weights, (torch.optim, nc.optim), strict=True):
        optimizers.append(getattr(module, name)([weight], **options))
        train(weight, optimizers[-1], 5)
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)
    saved = [copy.deepcopy(one.state_dict()) for one in optimizers]
    for weight, optimizer, state in zip(weights, optimizers, saved[::-1], strict=True):
        optimizer.load_state_dict(state)
        train(weight, optimizer, 5, seed=1)
    torch.testing.assert_close(*weights, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", TORCHS)
@pytest.mark.parametrize(
    ("option", "value"),
    [("maximize", True), ("differentiable", True), ("foreach", True), ("fused", False)],
)
def test_options_without_effect_are_refused(name, option, value):
    weight = nn.Parameter(torch.ones(4))
    with pytest.raises(NotImplementedError, match=f"has {option}={value}"):
        getattr(nc.optim, name)([weight], **{option: value})
    getattr(nc.optim, name)([weight], fused=True, foreach=False)


@pytest.mark.parametrize("name", ["Adam", "AdamW", "FusedAdam"])
def test_amsgrad_is_refused(name):
    with pytest.raises(NotImplementedError, match="has amsgrad=True"):
        getattr(nc.optim, name)([nn.Parameter(torch.ones(4))], amsgrad=True)


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("AdamW", {"lr": float("inf")}, "lr is inf, and must be finite"),
        ("Lion", {"betas": (0.9, 1.0)}, "beta2 is 1.0, and must be from 0 up to 1"),
        ("Lion", {"weight_decay": float("nan")}, "weight_decay is nan"),
        ("SGD", {"momentum": -1}, "momentum is -1.0, and must be finite, and 0 or above"),
        ("SGD", {"nesterov": True}, "nesterov=True needs a momentum above 0"),
        ("SGD", {"momentum": 0.9, "nesterov": True, "dampening": 0.1}, "no dampening"),
        ("FusedAdam", {"eps": -1e-8}, "eps is -1e-08"),
        ("Lion", {"state_dtype": torch.float16}, "state_dtype is torch.float32 or"),
    ],
)
def test_options_that_make_no_sense(name, options, words):
    with pytest.raises(ValueError, match=words):
        getattr(nc.optim, name)([nn.Parameter(torch.ones(4))], **options)


def test_adamw_stays_adamw():
    """Whatever options it loads, as torch's."""
    weight = nn.Parameter(torch.ones(4))
    theirs = torch.optim.Adam([weight], weight_decay=0.1)
    train(weight, theirs, 1)
    optimizer = nc.optim.AdamW([weight])
    optimizer.load_state_dict(theirs.state_dict())
    assert optimizer.param_groups[0]["decoupled_weight_decay"]
    assert optimizer.param_groups[0]["weight_decay"] == 0.1


@pytest.mark.parametrize("adam_w_mode", [True, False])
@pytest.mark.parametrize("bias_correction", [True, False])
def test_fused_adam_by_apexs_names(adam_w_mode, bias_correction):
    """In apex's order."""
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(8, 16))
    p = weight.detach().numpy().copy()
    m, v = p * 0, p * 0
    betas = (0.8, 0.9)
    given = (1e-2, bias_correction, betas, 1e-6, adam_w_mode, 0.1, False)
    optimizer = nc.FusedAdam([weight], *given)
    for t in (1, 2):
        weight.grad = torch.randn(8, 16)
        optimizer.step()
        p, m, v = reference.adam(
            *(p, m, v, weight.grad.numpy()),
            t=t,
            lr=1e-2,
            betas=betas,
            eps=1e-6,
            weight_decay=0.1,
            decoupled_weight_decay=adam_w_mode,
            bias_correction=bias_correction,
        )
        assert reference.same_bits(weight.detach().numpy(), p)


def test_fused_adam_refuses():
    weight = nn.Parameter(torch.ones(4))
    with pytest.raises(NotImplementedError, match="set_grad_none=False"):
        nc.FusedAdam([weight], set_grad_none=False)
    with pytest.raises(TypeError, match="master_weights"):
        nc.FusedAdam([weight], master_weights=True)


def test_state_of_sgd_without_momentum():
    """torch's has no buffer then."""
    weight = nn.Parameter(torch.ones(4))
    theirs = torch.optim.SGD([weight], lr=0.1)
    train(weight, theirs, 1)
    optimizer = nc.optim.SGD([weight], lr=0.1)
    optimizer.load_state_dict(theirs.state_dict())
    train(weight, optimizer, 1)
    assert optimizer.state[weight]["step"] == 1
