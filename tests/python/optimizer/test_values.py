"""Values in bfloat16, in one process: what they are to torch, what ends a residual, state dicts and
copies, and refusals. What every byte is, is in conformance/test_values.py.
"""

import copy
import io
import pickle

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import batch, build, build_plain, same, train
from weights import quantized, value_of

BF16 = torch.bfloat16
FORMAT = "mxfp8_e4m3"
SPANNING = "fp8_e4m3"  # whose scale spans the tensor
NAMES = [nc.optim.AdamW, nc.optim.Adam, nc.FusedAdam]


def model_of(device="cpu", format=FORMAT, dtype=BF16, **options):
    return build(format, device, dtype, value_dtype=BF16, **options)


def weight_of(model):
    return model.blocks[0].up.weight


def layer(rows=64, columns=64):
    torch.manual_seed(0)
    made = nn.Linear(columns, rows, bias=False, dtype=BF16)
    return nc.convert(made, FORMAT, value_dtype=BF16)


def adamw(model, **options):
    return nc.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, **options)


def step(model, optimizer, steps=1, first=0):
    for number in range(first, first + steps):
        generator = torch.Generator().manual_seed(number)
        for one in model.parameters():
            one.grad = torch.randn(one.shape, generator=generator).to(one.device, one.dtype)
        optimizer.step()


def number_of(optimizer, weight):
    """In float64, what value and residual are together."""
    value = value_of(weight)
    bits = value.view(torch.int16).to(torch.int64) & 0x7FFF
    sum = (bits << 16) + optimizer.state[weight]["residual"].to(torch.int64) * 256
    return sum.to(torch.int32).view(torch.float32).double() * value.double().sign()


# ---- what it is to torch ----


@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_value_weight_and_gradient(device, dtype):
    model = build_plain(FORMAT, device, dtype)
    before = weight_of(model).detach().clone()
    nc.convert(model, FORMAT, value_dtype=BF16)
    weight = weight_of(model)
    assert weight.dtype == weight.value.dtype == BF16
    assert same(weight.value, before.to(BF16))
    assert same(quantized(weight).dequantize(), nc.quantize(before.to(BF16), FORMAT).dequantize())
    assert weight.data_ptr() == weight.value.data_ptr()
    if dtype == BF16:
        loss = eager(model, 0, device, BF16)
        loss.backward()
        assert weight.grad.dtype == BF16
    assert model.state_dict()["blocks.0.up.weight"].dtype == BF16
    assert type(model.state_dict()["blocks.0.up.weight"]) is torch.Tensor


def test_a_value_takes_over_the_weights_memory():
    plain = nn.Linear(64, 64, bias=False, dtype=BF16)
    address = plain.weight.data_ptr()
    assert nc.convert(plain, FORMAT, value_dtype=BF16).weight.value.data_ptr() == address


TORCHS = {
    "loop": (torch.optim.AdamW, {"foreach": False}),
    "foreach": (torch.optim.AdamW, {"foreach": True}),
    "fused": (torch.optim.AdamW, {"fused": True}),
    "sgd": (torch.optim.SGD, {"momentum": 0.9, "foreach": True}),
    "adagrad": (torch.optim.Adagrad, {"foreach": True}),
}


@pytest.mark.parametrize("name", TORCHS)
def test_torchs_optimizers_do_as_with_plain_parameters(device, name):
    make, options = TORCHS[name]
    model, plain = model_of(device), build_plain(FORMAT, device, BF16)
    each = [(one, make(one.parameters(), lr=1e-2, **options)) for one in (model, plain)]
    for one, optimizer in each:
        step(one, optimizer, 3)
    for mine, theirs in zip(model.parameters(), plain.parameters(), strict=True):
        assert same(value_of(mine), theirs.detach())
    weight = weight_of(model)
    model(batch(model, 0, device, BF16)[0])  # which makes the bytes anew
    expected = nc.quantize(weight.value, FORMAT)
    assert same(quantized(weight).rowwise_data, expected.rowwise_data)


def test_other_dtypes_have_float32_values():
    weight = weight_of(model_of())
    exact = weight.value.float()
    for dtype in (torch.float32, torch.float16):
        other = weight.to(dtype)
        assert (other.dtype, other.value.dtype) == (dtype, torch.float32)
        assert same(other.value, exact)
    assert weight.clone().value.dtype == weight.detach().value.dtype == BF16
    model = model_of().float()
    assert weight_of(model).value.dtype == torch.float32
    assert isinstance(weight_of(model), nc.MasterWeight)


def test_copies_of_the_model():
    model = model_of()
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert weight_of(other).value.dtype == BF16
        assert same(weight_of(other).value, weight_of(model).value)


def test_state_dicts_go_both_ways():
    narrow, wide = model_of(), build(FORMAT)
    narrow.load_state_dict(wide.state_dict())
    assert same(value_of(weight_of(narrow)), value_of(weight_of(wide)).to(BF16))
    wide.load_state_dict(narrow.state_dict())
    assert same(value_of(weight_of(wide)), value_of(weight_of(narrow)).float())
    narrow.load_state_dict(build(FORMAT, seed=1).state_dict(), assign=True)
    assert weight_of(narrow).value.dtype == BF16


def test_compiled(device):
    """A graph reads the bytes of the present value, and its gradients train it."""
    model, other = model_of(device), model_of(device)
    losses = [
        train(one, adamw(one), 3, device, BF16, loss_of=loss)
        for one, loss in ((other, eager), (torch.compile(model), eager))
    ]
    assert torch.allclose(*map(torch.tensor, losses), rtol=0.02)


def eager(model, number, device, dtype):
    module = getattr(model, "_orig_mod", model)
    x, y = batch(module, number, device, dtype)
    return (model(x).float() - y.float()).square().mean()


# ---- training ----


@pytest.mark.parametrize("options", [{}, {"state_dtype": nc.state_formats()[0]}], ids=str)
def test_learns_like_float32_values(device, options):
    models = build(FORMAT, device, BF16), model_of(device)
    for one in models:
        assert weight_of(one).dtype == BF16
    wide, narrow = (
        train(
            one,
            nc.optim.AdamW(one.parameters(), lr=3e-4, **options),
            60,
            device,
            BF16,
            loss_of=lambda m, number, *rest: eager(m, number % 4, *rest),
        )
        for one in models
    )
    assert wide[-1] < 0.8 * wide[0]
    assert all(abs(a - b) < 0.02 * a for a, b in zip(wide, narrow, strict=True))


def test_steps_that_bfloat16_would_lose(device):
    """A hundredth of a bfloat16's unit each. With residuals the sum is what float32 has, up to the
    rounding to 24 bits; by chance it is right in the mean; by torch nothing moves.
    """
    start = torch.full((64, 64), 1.0, device=device)
    made = {}
    for bits in (8, 0, None):
        model = layer().to(device)
        with torch.no_grad():
            model.weight.copy_(start)
        make = torch.optim.AdamW if bits is None else nc.optim.AdamW
        options = {} if bits is None else {"residual_bits": bits}
        optimizer = make(model.parameters(), lr=4e-5, weight_decay=0.0, **options)
        for _ in range(100):
            model.weight.grad = torch.ones_like(start, dtype=BF16)
            optimizer.step()
        made[bits] = model, optimizer
    assert same(value_of(made[None][0].weight).float(), start)
    exact = number_of(made[8][1], made[8][0].weight)
    assert (exact - (1 - 4e-3)).abs().max() < 100 * 2**-17
    mean = value_of(made[0][0].weight).double().mean()
    assert abs(mean - (1 - 4e-3)) < 5e-4


def test_the_bytes_are_a_cast_of_the_value(device):
    for name in (FORMAT, SPANNING, "fp8_e4m3_delayed", "nvfp4"):
        model = model_of(device, name)
        optimizer = nc.optim.AdamW(model.parameters(), lr=1e-3)
        train(model, optimizer, 2, device, BF16)
        weight = weight_of(model)
        assert not weight._store.is_stale
        before = quantized(weight).rowwise_data.clone()
        if nc.format(name).amax != "delayed":  # a write begins its history anew
            nc.note_write(weight)
            model(batch(model, 0, device, BF16)[0])
            assert same(quantized(weight).rowwise_data, before)


def test_summary_counts_value_and_residual(device):
    model = model_of(device)
    optimizer = nc.optim.AdamW(model.parameters(), state_dtype=nc.state_formats()[0])
    train(model, optimizer, 1, device, BF16)
    found = {one.name: one for one in nc.summary(model, optimizer).parameters}
    one, weight = found["blocks.0.up.weight"], weight_of(model)
    assert one.masters == 2 * weight.numel()
    scales = 2 * 4 * weight.shape[0] * -(-weight.shape[1] // 128)
    assert one.state == 3 * weight.numel() + scales


# ---- residuals ----


def other_write(model, way):
    weight = model.weight
    value = torch.full_like(weight.value, 0.25)
    with torch.no_grad():
        if way == "copy_":
            weight.copy_(value)
        elif way == "data.copy_":
            weight.data.copy_(value)
        elif way == "data":
            weight.data = value
        elif way == "value":
            weight.value.copy_(value)
        elif way == "load":
            model.load_state_dict({"weight": value})
        elif way == "the same":
            weight.mul_(1.0)
        elif way == "noted":
            nc.note_write(weight)
        elif way == "moved":
            model.to(torch.float32).to(BF16)


WRITES = ["copy_", "data.copy_", "data", "value", "load", "the same", "noted"]


@pytest.mark.parametrize("way", WRITES)
def test_a_write_ends_a_residual(way):
    model, other = layer(), layer()
    optimizer, expected = adamw(model), adamw(other)
    for one, its in ((model, optimizer), (other, expected)):
        step(one, its, 3)
    assert optimizer.state[model.weight]["residual"].count_nonzero() > 1000
    other_write(model, way)
    other_write(other, way)
    expected.state[other.weight]["residual"].zero_()
    step(model, optimizer, first=7)
    step(other, expected, first=7)
    assert same(value_of(model.weight), value_of(other.weight))
    for key, entry in optimizer.state[model.weight].items():
        assert same(entry, expected.state[other.weight][key]), key


@pytest.mark.parametrize(
    "between",
    [
        lambda model, optimizer: model(torch.ones(2, 64, dtype=BF16)),
        lambda model, optimizer: optimizer.state_dict(),
        lambda model, optimizer: model.state_dict(),
        lambda model, optimizer: optimizer.zero_grad(),
        lambda model, optimizer: nc.summary(model, optimizer),
        lambda model, optimizer: copy.deepcopy(optimizer),
        lambda model, optimizer: setattr(model.weight, "data", model.weight.data),
        lambda model, optimizer: model.bfloat16(),
        lambda model, optimizer: optimizer.add_param_group(
            {"params": [nn.Parameter(torch.ones(3))]}
        ),
    ],
    ids=["forward", "state", "model", "zero_grad", "summary", "copy", "data", "to", "group"],
)
def test_what_is_no_write_keeps_it(between):
    model, other = layer(), layer()
    optimizer, expected = adamw(model), adamw(other)
    step(model, optimizer, 3)
    step(other, expected, 3)
    between(model, optimizer)
    step(model, optimizer, first=7)
    step(other, expected, first=7)
    assert same(value_of(model.weight), value_of(other.weight))
    residuals = (
        its.state[one.weight]["residual"] for one, its in ((model, optimizer), (other, expected))
    )
    assert same(*residuals)


def test_a_saved_residual_is_of_the_saved_value():
    model = layer()
    optimizer = adamw(model)
    step(model, optimizer, 3)
    with torch.no_grad():
        model.weight.mul_(0.5)
    assert optimizer.state_dict()["state"][0]["residual"].count_nonzero() == 0


def test_two_optimizers_do_not_share_one():
    """Each step ends the other's."""
    model = layer()
    one, two = adamw(model), adamw(model)
    step(model, one, 3)
    step(model, two, 3)
    assert one.state[model.weight]["residual"].count_nonzero() > 1000
    model.weight.grad = torch.zeros_like(model.weight.value)
    before = value_of(model.weight).clone()
    for optimizer in (one, two):
        for key in ("exp_avg", "exp_avg_sq"):
            optimizer.state[model.weight][key].zero_()
    one.step()
    assert one.state[model.weight]["residual"].count_nonzero() == 0
    assert same(value_of(model.weight), before)


@pytest.mark.parametrize("way", ["optimizer first", "model first", "only memory", "new model"])
def test_resumes_exactly(way):
    model, other = layer(), layer()
    optimizer, new = adamw(model), adamw(other)
    step(model, optimizer, 3)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    if way == "only memory":  # in the place of what is there, as distributed checkpoints load
        step(other, new, 5, first=20)
        other.load_state_dict(saved[0])
        for key, entry in new.state_dict()["state"][0].items():
            entry.copy_(saved[1]["state"][0][key])
    elif way == "new model":
        other, new = model, adamw(model)
        new.load_state_dict(saved[1])
    else:
        if way == "model first":
            other.load_state_dict(saved[0])
        else:
            step(other, new, 2, first=20)
        new.load_state_dict(saved[1])
        other.load_state_dict(saved[0])
    alone = layer()
    expected = adamw(alone)
    step(alone, expected, 3)
    step(other, new, 2, first=9)
    step(alone, expected, 2, first=9)
    assert same(value_of(other.weight), value_of(alone.weight))
    for key, entry in new.state[other.weight].items():
        assert same(entry, expected.state[alone.weight][key]), key


@pytest.mark.parametrize("way", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_copies(way):
    model = layer()
    optimizer = adamw(model)
    step(model, optimizer, 3)
    twin, its = way((model, optimizer))
    assert its.residual_bits == 8
    step(model, optimizer, 2, first=9)
    step(twin, its, 2, first=9)
    assert same(value_of(model.weight), value_of(twin.weight))
    residuals = optimizer.state[model.weight]["residual"], its.state[twin.weight]["residual"]
    assert same(*residuals)


def test_states_without_residuals():
    """Of torch's, and of float32 values: they load, and the residual is 0."""
    model, wide = layer(), nc.convert(nn.Linear(64, 64, bias=False), FORMAT)
    for other in (torch.optim.AdamW(wide.parameters()), nc.optim.AdamW(wide.parameters())):
        step(wide, other, 2)
        optimizer = adamw(model)
        step(model, optimizer, 2)
        optimizer.load_state_dict(other.state_dict())
        assert optimizer.state[model.weight]["residual"].count_nonzero() == 0
        assert same(optimizer.state[model.weight]["exp_avg"], other.state[wide.weight]["exp_avg"])
    step(model, optimizer, 2)
    back = nc.optim.AdamW(wide.parameters())
    back.load_state_dict(optimizer.state_dict())
    assert "residual" not in back.state[wide.weight]
    drawn = adamw(model, residual_bits=0)
    drawn.load_state_dict(optimizer.state_dict())
    assert "residual" not in drawn.state[model.weight]
    step(model, drawn)


def test_without_a_gradient_nothing_changes():
    model = model_of(format=FORMAT)
    optimizer = adamw(model)
    train(model, optimizer, 2, dtype=BF16)
    weight = weight_of(model)
    before = value_of(weight).clone(), optimizer.state[weight]["residual"].clone()
    step(model, optimizer)
    kept = value_of(weight).clone(), optimizer.state[weight]["residual"].clone()
    for one in model.parameters():
        one.grad = None if one is weight else torch.ones_like(one)
    optimizer.step()
    assert not same(before[0], kept[0])
    assert same(value_of(weight), kept[0])
    assert same(optimizer.state[weight]["residual"], kept[1])


def test_a_skipped_step(device):
    model = model_of(device)
    optimizer = adamw(model)
    train(model, optimizer, 2, device, BF16)
    weight = weight_of(model)
    before = value_of(weight).clone(), optimizer.state[weight]["residual"].clone()
    for one in model.parameters():
        one.grad = torch.ones_like(one)
    optimizer.grad_scale = torch.ones((), device=device)
    optimizer.found_inf = torch.ones((), device=device)
    optimizer.step()
    assert same(value_of(weight), before[0])
    assert same(optimizer.state[weight]["residual"], before[1])


def test_draws_differ_by_seed_and_step_and_not_by_rounding():
    """Codes rounded by chance have other words than values."""
    made = []
    for options in ({"seed": 1}, {"seed": 1}, {"seed": 2}, {"seed": 1, "rounding": "stochastic"}):
        model = layer()
        step(model, adamw(model, residual_bits=0, **options), 2)
        made.append(value_of(model.weight).clone())
    assert same(made[0], made[1])
    assert not same(made[0], made[2])
    assert same(made[0], made[3])


def test_a_seed_may_change_between_steps():
    model, other = layer(), layer()
    optimizer, expected = adamw(model, residual_bits=0), adamw(other, residual_bits=0, seed=3)
    with torch.no_grad():
        other.weight.copy_(model.weight)
    optimizer.param_groups[0]["seed"] = 3
    step(model, optimizer)
    step(other, expected)
    assert same(value_of(model.weight), value_of(other.weight))


# ---- refusals ----


@pytest.mark.parametrize("make", [nc.optim.Lion, nc.optim.SGD, nc.optim.Muon])
def test_other_rules(make):
    model = layer()
    with pytest.raises(NotImplementedError, match=r"weight has a bfloat16 value.*nc.optim.AdamW"):
        make(model.parameters())
    optimizer = make([nn.Parameter(torch.ones(32, 32))])
    with pytest.raises(NotImplementedError, match="the rule"):
        optimizer.add_param_group({"params": [model.weight]})
    assert len(optimizer.param_groups) == 1


def test_a_model_that_is_converted_after_the_optimizer_was_made():
    plain = nn.Linear(64, 64, bias=False, dtype=BF16)
    optimizer = nc.optim.SGD(plain.parameters())
    model = layer()
    optimizer.param_groups[0]["params"][0] = model.weight
    model.weight.grad = torch.ones_like(model.weight.value)
    before = value_of(model.weight).clone()
    with pytest.raises(NotImplementedError, match="bfloat16 value"):
        optimizer.step()
    assert same(value_of(model.weight), before)


def test_muons_adamw_takes_them():
    model = nn.Sequential(nn.Linear(64, 64, dtype=BF16), nn.Linear(64, 64, dtype=BF16))
    nc.convert(model, FORMAT, value_dtype=BF16)
    optimizer = nc.optim.Muon(model.named_parameters(), filter=lambda name, one: False)
    step(model, optimizer, 2)
    assert optimizer.state[model[0].weight]["residual"].count_nonzero() > 0


@pytest.mark.parametrize("make", NAMES)
@pytest.mark.parametrize("bits", [4, 16, -1, None, True, "8"])
def test_no_such_number_of_bits(make, bits):
    with pytest.raises(ValueError, match="residual_bits is"):
        make(layer().parameters(), residual_bits=bits)


@pytest.mark.parametrize("make", NAMES)
def test_all_names_of_adam(make):
    model = layer()
    optimizer = make(model.parameters())
    step(model, optimizer)
    assert optimizer.state[model.weight]["residual"].dtype == torch.int8
    drawn = make(model.parameters(), residual_bits=0)
    step(model, drawn)
    assert "residual" not in drawn.state[model.weight]


@pytest.mark.parametrize("wrong", [torch.float16, torch.float64, torch.int8, "bfloat16", None])
def test_no_such_value_dtype(wrong):
    plain = nn.Linear(64, 64)
    with pytest.raises(ValueError, match="value_dtype is"):
        nc.convert(plain, FORMAT, value_dtype=wrong)
    assert type(plain.weight) is nn.Parameter


def test_not_of_float16_weights():
    plain = nn.Linear(64, 64, dtype=torch.float16)
    with pytest.raises(TypeError, match=r"weight is float16.*model.bfloat16\(\)"):
        nc.convert(plain, FORMAT, value_dtype=BF16)
    assert type(plain.weight) is nn.Parameter
    nc.convert(plain.requires_grad_(False), FORMAT, value_dtype=BF16)  # which has no value


def test_a_residual_that_is_broken_by_hand():
    model = layer()
    optimizer = adamw(model)
    step(model, optimizer)
    for broken, message in (
        (torch.zeros(64, 64), "residual is Float, not Char"),
        (torch.zeros(3, dtype=torch.int8), "residual has 3 elements"),
    ):
        optimizer.state[model.weight]["residual"] = broken
        before = value_of(model.weight).clone()
        with pytest.raises((TypeError, ValueError), match=message):
            step(model, optimizer)
        assert same(value_of(model.weight), before)


def test_a_residual_that_was_taken_away():
    """By hand: it is 0."""
    model, other = layer(), layer()
    optimizer, expected = adamw(model), adamw(other)
    step(model, optimizer, 2)
    step(other, expected, 2)
    del optimizer.state[model.weight]["residual"]
    expected.state[other.weight]["residual"].zero_()
    step(model, optimizer, first=5)
    step(other, expected, first=5)
    assert same(value_of(model.weight), value_of(other.weight))


def test_a_value_that_gets_another_dtype():
    model = layer()
    optimizer = adamw(model)
    step(model, optimizer, 2)
    narrow = model.weight.data
    model.weight.data = model.weight.data.float()
    step(model, optimizer, 2)
    assert value_of(model.weight).dtype == torch.float32
    assert "residual" not in optimizer.state[model.weight]
    model.weight.data = narrow
    step(model, optimizer, 2)
    assert value_of(model.weight).dtype == BF16
    assert optimizer.state[model.weight]["residual"].count_nonzero() > 0


def test_the_default_is_float32():
    assert weight_of(build(FORMAT, dtype=BF16)).value.dtype == torch.float32
