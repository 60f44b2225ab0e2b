"""FusedAdam as a torch optimizer; of wrong options, parameters and gradients an error, and nothing
changes. Its arithmetic is in conformance/test_adam.py.
"""

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn

import narrowcast as nc
from internals import tensors_of
from mixed_model import give_gradients, model_of, snapshot, unchanged
from models import DEVICES, STORAGES, assert_quantized, assert_same, build, loss_of, same, train
from weights import quantized, value_of


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_makes_the_bytes_of_the_new_values(device, dtype):
    model = model_of(device, dtype)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    for step in range(3):
        give_gradients(model, step)
        optimizer.step()
    for p in model.parameters():
        state = optimizer.state[p]
        assert state["step"] == 3
        if isinstance(p, nc.MasterWeight):
            assert_quantized(p, p.value)
        elif dtype == torch.bfloat16:
            assert same(p.detach(), state["master"].bfloat16())


@pytest.mark.parametrize("default", [torch.bfloat16, torch.float64], ids=str)
def test_the_default_dtype_decides_nothing(default):
    found = []
    for dtype in (torch.float32, default):
        model = model_of()
        give_gradients(model)
        torch.set_default_dtype(dtype)
        try:
            optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
            optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
        found.append(snapshot(model, optimizer))
    assert all(same(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("adamw", [True, False])
def test_against_torch(adamw):
    """100 steps, within the distance that docs/numerics.md states."""
    values = 0.02 * torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    weights = [nn.Parameter(values.clone()) for _ in range(3)]
    layer = nn.Linear(64, 64, bias=False)
    layer.weight = weights[0]
    weights[0] = nc.convert(layer, "mxfp8_e4m3").weight
    kind = torch.optim.AdamW if adamw else torch.optim.Adam
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizers = [
        nc.FusedAdam([weights[0]], adam_w_mode=adamw, **options),
        nc.FusedAdam([weights[1]], adam_w_mode=adamw, **options),
        kind([weights[2]], **options),
    ]
    generator = torch.Generator().manual_seed(2)
    for _ in range(100):
        gradient = 0.01 * torch.randn(64, 64, generator=generator)
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    ours, plain, torchs = weights[0].value, weights[1].detach(), weights[2].detach()
    assert same(ours, plain)
    movement = (torchs - values).abs().max()
    assert movement > 0.01
    ulp = torch.finfo(torch.float32).eps * torchs.abs().max()
    assert (ours - torchs).abs().max() <= 1e-5 * movement + ulp


def test_defaults():
    group = nc.FusedAdam([nn.Parameter(torch.ones(2))]).param_groups[0]
    expected = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.0}
    expected |= {"decoupled_weight_decay": True, "bias_correction": True}
    expected |= {"rounding": "nearest", "seed": 0, "capturable": False}
    assert {key: group[key] for key in expected} == expected


def test_parameters_without_a_gradient_count_no_step():
    model = model_of()
    optimizer = nc.FusedAdam(model.parameters())
    give_gradients(model)
    model[1].weight.grad = None
    frozen = [one.clone() for one in tensors_of(model[1].weight)]
    optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in optimizer.state] == [1] * 5
    assert model[1].weight not in optimizer.state
    tensors = tensors_of(model[1].weight)
    assert all(same(a, b) for a, b in zip(tensors, frozen, strict=True))
    optimizer.zero_grad()
    before = snapshot(model, optimizer)
    optimizer.step()
    assert unchanged(before, model, optimizer)


def test_groups_schedules_and_tensors_as_constants():
    """A group's constants are read at every step, numbers and tensors alike."""
    results = []
    for lr in (0.01, torch.tensor(0.01, dtype=torch.float64)):
        model = model_of()
        weights = [p for p in model.parameters() if p.dim() > 1]
        biases = [p for p in model.parameters() if p.dim() == 1]
        groups = [{"params": weights, "lr": lr}, {"params": biases, "weight_decay": 0, "lr": 0.1}]
        optimizer = nc.FusedAdam(groups, adam_w_mode=False)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
        for step in range(3):
            give_gradients(model, step)
            optimizer.step()
            schedule.step()
        assert float(optimizer.param_groups[0]["lr"]) == 0.01 / 8
        results.append(snapshot(model, optimizer))
    assert all(same(a, b) for a, b in zip(*results, strict=True))


def test_groups_added_later():
    model = model_of()
    optimizer = nc.FusedAdam(model[0].parameters())
    give_gradients(model)
    optimizer.step()
    optimizer.add_param_group({"params": list(model[1:].parameters()), "lr": 1e-2})
    optimizer.step()
    steps = [optimizer.state[p]["step"].item() for p in model.parameters()]
    assert steps == [2, 2, 1, 1, 1, 1]


def test_closure_and_hooks():
    model = build("nvfp4")
    optimizer = nc.FusedAdam(model.parameters())
    calls = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
    optimizer.register_step_post_hook(lambda *_: calls.append("post"))

    def closure():
        loss = loss_of(model, 0)
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == loss_of(build("nvfp4"), 0).item()
    assert calls == ["pre", "post"]
    assert optimizer.state[model.head.weight]["step"] == 1


def test_empty_parameters_count_their_steps():
    layer = nc.convert(nn.Linear(64, 0), "nvfp4")
    optimizer = nc.FusedAdam(layer.parameters())
    layer(torch.ones(3, 64)).sum().backward()
    optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in layer.parameters()] == [1, 1]
    assert quantized(layer.weight).tensor_amax.tolist() == [0]


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (ValueError, "state_dtype.*float16", {"state_dtype": torch.float16}),
        (ValueError, "'odd'", {"rounding": "odd"}),
        (ValueError, "group 0: seed is from 0", {"rounding": "stochastic", "seed": -1}),
        (TypeError, "group 0: seed is an int", {"seed": 0.5}),
        (NotImplementedError, "amsgrad", {"amsgrad": True}),
        (ValueError, r"group 0: lr is -1\.0", {"lr": -1.0}),
        (ValueError, r"beta2 is 1\.0", {"betas": (0.9, 1.0)}),
        (ValueError, "eps is nan", {"eps": float("nan")}),
    ],
)
def test_wrong_options(kind, words, options):
    with pytest.raises(kind, match=words):
        nc.FusedAdam([nn.Parameter(torch.ones(2))], **options)


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (TypeError, r"one is Double: float32, bfloat16 or float16", {"dtype": torch.float64}),
        (NotImplementedError, "cannot update parameters on meta", {"device": "meta"}),
    ],
)
def test_wrong_parameters(kind, words, options):
    parameter = nn.Parameter(torch.ones(2, **options))
    optimizer = nc.FusedAdam([("one", parameter)])
    parameter.grad = torch.ones_like(parameter)
    with pytest.raises(kind, match=words):
        optimizer.step()


def bad_shape(p):
    p.grad.data = torch.ones(3, 64)


def bad_dtype(p):
    p.grad.data = torch.ones(p.shape, dtype=torch.float64)


def bad_layout(p):
    p.grad = None
    p.grad = torch.ones(p.shape).to_sparse()


@pytest.mark.parametrize("index", range(3))
@pytest.mark.parametrize(
    ("spoil", "kind", "words"),
    [
        (bad_shape, ValueError, r"the gradient has shape \[3, 64\], the parameter \[64, 64\]"),
        (bad_dtype, TypeError, "the gradient is Double"),
        (bad_layout, NotImplementedError, "the gradient is sparse"),
    ],
)
def test_wrong_gradients_change_nothing(index, spoil, kind, words):
    model = model_of()
    optimizer = nc.FusedAdam(model.named_parameters())
    give_gradients(model)
    optimizer.step()
    before = snapshot(model, optimizer)
    give_gradients(model, 1)
    spoil(model[index].weight)
    with pytest.raises(kind, match=rf"{index}\.weight: {words}"):
        optimizer.step()
    assert unchanged(before, model, optimizer)
    give_gradients(model, 1)
    optimizer.step()
    assert not unchanged(before, model, optimizer)


# ---- what changes between steps ----


def test_strided_gradients_are_read():
    results = []
    for strided in (False, True):
        layer = nc.convert(nn.Linear(64, 64, bias=False), "mxfp8_e4m3")
        nn.init.constant_(layer.weight, 0.5)
        optimizer = nc.FusedAdam(layer.parameters())
        gradient = torch.arange(4096.0).view(64, 64)
        layer.weight.grad = gradient.t().contiguous().t() if strided else gradient
        optimizer.step()
        results.append(quantized(layer.weight).rowwise_data.clone())
    assert same(*results)


def test_memory_that_moved_is_found():
    """A parameter with other memory of the same kind is followed; of another kind, refused."""
    model, other = model_of(), model_of()
    optimizers = [nc.FusedAdam(m.named_parameters(), lr=1e-2) for m in (model, other)]
    for step in range(3):
        for m, optimizer in zip((model, other), optimizers, strict=True):
            give_gradients(m, step)
            optimizer.step()
        model[2].weight.data = model[2].weight.detach().clone()
        torch.utils.swap_tensors(model[0].weight, nn.Parameter(model[0].weight.detach().clone()))
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert same(value_of(a), value_of(b))
    model[2].weight.data = torch.ones(3, 64)
    with pytest.raises(ValueError, match=r"2\.weight: state exp_avg has 4096 elements"):
        optimizers[0].step()
    model[2].weight.data = torch.ones(64, 64, dtype=torch.bfloat16)
    with pytest.raises((ValueError, TypeError), match=r"2\.weight"):
        optimizers[0].step()


def test_changes_of_dtype_and_memory_keep_training():
    """module.to(dtype) after the optimizer was made."""
    model = build("mxfp8_e4m3")
    optimizer = nc.FusedAdam([p for p in model.parameters() if isinstance(p, nc.MasterWeight)])
    train(model, optimizer, 1)
    model.to(torch.bfloat16)
    loss_of(model, 1, dtype=torch.bfloat16).backward()
    optimizer.step()
    weight = model.head.weight
    assert weight.dtype == torch.bfloat16
    assert optimizer.state[weight]["step"] == 2
    assert_quantized(weight, weight.value)


# ---- automatic mixed precision: torch's GradScaler ----


@pytest.mark.parametrize("device", DEVICES)
def test_grad_scaler(device):
    model = model_of(device)
    optimizer = nc.FusedAdam(model.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=256.0)
    for overflow in (False, True):
        before = snapshot(model, optimizer)
        loss = model(torch.ones(2, 64, device=device)).sum()
        scaler.scale(loss * (float("inf") if overflow else 1.0)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        assert unchanged(before, model, optimizer) == overflow
    assert scaler.get_scale() == 128.0


# ---- what goes wrong in the field, and not here; "TE" is Transformer Engine ----


def test_element_types_mixed_in_one_group():
    # TE's fused Adam takes the output type of a group from its first tensor: e5m2 weights get e4m3
    # codes.
    torch.manual_seed(0)
    names = ("fp8_e4m3", "fp8_e5m2", "mxfp8_e4m3", "mxfp8_e5m2", "nvfp4")
    layers = [nc.convert(nn.Linear(64, 64, bias=False), name) for name in names]
    optimizer = nc.FusedAdam([layer.weight for layer in layers], lr=0.1)
    for layer in layers:
        layer.weight.grad = torch.randn(64, 64)
    optimizer.step()
    for layer, name in zip(layers, names, strict=True):
        assert layer.weight.format is nc.format(name)
        assert_quantized(layer.weight.detach(), layer.weight.value)


@pytest.mark.parametrize("name", [name for name in STORAGES if nc.format(name).tensor_amax])
def test_scales_survive_a_checkpoint_in_float32(name, tmp_path):
    # TE under FSDP2: a distributed checkpoint stores the scale in the parameter's bfloat16.
    x = torch.randn(64, 64) * (1 + 2**-20)
    saved, loaded = (nc.quantize(value, name).to(torch.bfloat16) for value in (x, x * 0))
    dcp.save({"w": saved}, checkpoint_id=tmp_path, no_dist=True)
    dcp.load({"w": loaded}, checkpoint_id=tmp_path, no_dist=True)
    assert loaded.dtype == torch.bfloat16
    assert_same(loaded, saved)
    assert loaded.tensor_amax.dtype == torch.float32
    assert loaded.tensor_amax.bfloat16() != loaded.tensor_amax
