"""FusedAdam as a torch optimizer. Its arithmetic is in test_conformance_adam."""

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import DEVICES, assert_quantized, build, loss_of, same, train

MIXED = ["mxfp8_e4m3", "nvfp4", None]


def model_of(device="cpu", dtype=torch.float32):
    """A weight of each format, a plain one, and biases."""
    torch.manual_seed(0)
    layers = nn.Sequential(*(nn.Linear(64, 64) for _ in MIXED)).to(device, dtype)
    for index, format in enumerate(MIXED):
        if format is not None:
            nc.convert(layers, format, filter=lambda name, _, index=index: name == str(index))
    return layers


def give_gradients(model, seed=0, dtype=None):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        gradient = torch.randn(p.shape, generator=generator)
        p.grad = gradient.to(p.device, dtype or p.dtype)


def snapshot(model, optimizer):
    """Copies of all that a step may change."""
    found = []
    for p in model.parameters():
        found += [value.clone() for value in optimizer.state.get(p, {}).values()]
        if isinstance(p, nc.QuantizedTensor):
            found += [tensor.clone() for tensor in p._store.tensors]
        else:
            found.append(p.detach().clone())
    return found


def unchanged(before, model, optimizer):
    after = snapshot(model, optimizer)
    return len(before) == len(after) and all(map(same, before, after))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_step_makes_the_bytes_of_the_new_masters(device, dtype):
    model = model_of(device, dtype)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    for step in range(3):
        give_gradients(model, step)
        optimizer.step()
    for p in model.parameters():
        state = optimizer.state[p]
        assert state["step"] == 3
        if isinstance(p, nc.QuantizedTensor):
            assert_quantized(p.detach(), state["master"])
            assert p.master.data_ptr() == state["master"].data_ptr()
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
    quantized = nn.Linear(64, 64, bias=False)
    quantized.weight = weights[0]
    weights[0] = nc.convert(quantized, "mxfp8_e4m3").weight
    kind = torch.optim.AdamW if adamw else torch.optim.Adam
    options = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
    optimizers = [
        nc.FusedAdam([weights[0]], adamw=adamw, **options),
        nc.FusedAdam([weights[1]], adamw=adamw, **options),
        kind([weights[2]], **options),
    ]
    generator = torch.Generator().manual_seed(2)
    for _ in range(100):
        gradient = 0.01 * torch.randn(64, 64, generator=generator)
        for weight, optimizer in zip(weights, optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    ours, plain, torchs = weights[0].master, weights[1].detach(), weights[2].detach()
    assert same(ours, plain)
    movement = (torchs - values).abs().max()
    assert movement > 0.01
    ulp = torch.finfo(torch.float32).eps * torchs.abs().max()
    assert (ours - torchs).abs().max() <= 1e-5 * movement + ulp


def test_defaults():
    group = nc.FusedAdam([nn.Parameter(torch.ones(2))]).param_groups[0]
    expected = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "adamw": True}
    expected |= {"rounding": "nearest", "seed": 0, "capturable": False}
    assert {key: group[key] for key in expected} == expected


def test_parameters_without_a_gradient_count_no_step():
    model = model_of()
    optimizer = nc.FusedAdam(model.parameters())
    give_gradients(model)
    model[1].weight.grad = None
    frozen = model[1].weight._store.map(torch.clone)
    optimizer.step()
    assert [int(optimizer.state[p]["step"]) for p in optimizer.state] == [1] * 5
    assert model[1].weight not in optimizer.state
    tensors = model[1].weight._store.tensors
    assert all(same(a, b) for a, b in zip(tensors, frozen.tensors, strict=True))
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
        optimizer = nc.FusedAdam(groups, adamw=False)
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


def test_gradients_of_another_float_dtype():
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        layer = nc.convert(nn.Linear(64, 64, bias=False), "nvfp4")
        nn.init.constant_(layer.weight, 0.5)
        optimizer = nc.FusedAdam(layer.parameters())
        gradient = torch.arange(4096.0).view(64, 64).bfloat16().to(dtype)
        layer.weight.to(dtype)
        layer.to(dtype)
        layer.weight.grad = gradient
        optimizer.step()
        results.append(optimizer.state[layer.weight]["master"].clone())
    assert same(*results)


def test_strided_gradients_are_read():
    results = []
    for strided in (False, True):
        layer = nc.convert(nn.Linear(64, 64, bias=False), "mxfp8_e4m3")
        nn.init.constant_(layer.weight, 0.5)
        optimizer = nc.FusedAdam(layer.parameters())
        gradient = torch.arange(4096.0).view(64, 64)
        layer.weight.grad = gradient.t().contiguous().t() if strided else gradient
        optimizer.step()
        results.append(layer.weight.rowwise_data.clone())
    assert same(*results)


def test_a_backward_through_the_old_value_is_an_error():
    model = model_of()
    optimizer = nc.FusedAdam(model.parameters())
    loss = model(torch.ones(2, 64, requires_grad=True)).sum()
    loss.backward(retain_graph=True)
    optimizer.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_empty_parameters_count_their_steps():
    layer = nc.convert(nn.Linear(64, 0), "nvfp4")
    optimizer = nc.FusedAdam(layer.parameters())
    layer(torch.ones(3, 64)).sum().backward()
    optimizer.step()
    assert [optimizer.state[p]["step"].item() for p in layer.parameters()] == [1, 1]
    assert layer.weight.amax.tolist() == [0]


def test_weights_without_a_master():
    """Their decoded value is what the optimizer begins with."""
    weight = nn.Parameter(nc.quantize(torch.randn(64, 64), "nvfp4"))
    value = weight.dequantize().detach()
    optimizer = nc.FusedAdam([weight], lr=0.0)
    weight.grad = torch.ones(64, 64)
    optimizer.step()
    assert same(optimizer.state[weight]["master"], value)


# ---- what goes wrong ----


@pytest.mark.parametrize(
    ("kind", "words", "options"),
    [
        (ValueError, "state_dtype.*float16", {"state_dtype": torch.float16}),
        (ValueError, "'odd'", {"rounding": "odd"}),
        (ValueError, "group 0: seed is from 0", {"rounding": "stochastic", "seed": -1}),
        (TypeError, "group 0: seed is an int", {"seed": 0.5}),
        (NotImplementedError, "capturable", {"capturable": True}),
        (ValueError, r"group 0: lr -1\.0", {"lr": -1.0}),
        (ValueError, r"betas 0\.9, 1\.0", {"betas": (0.9, 1.0)}),
        (ValueError, "eps nan", {"eps": float("nan")}),
    ],
)
def test_wrong_options(kind, words, options):
    with pytest.raises(kind, match=words):
        nc.FusedAdam([nn.Parameter(torch.ones(2))], **options)


def test_wrong_parameters():
    with pytest.raises(
        TypeError, match=r"parameter 0 of group 0 \(shape \(2,\)\) is torch.float64"
    ):
        nc.FusedAdam([nn.Parameter(torch.ones(2, dtype=torch.float64))])
    with pytest.raises(ValueError, match="meta device"):
        nc.FusedAdam([("one", nn.Parameter(torch.ones(2, device="meta")))])
    with pytest.raises(TypeError, match=r"two is torch\.int8"):
        nc.FusedAdam([("two", nn.Parameter(torch.ones(2, dtype=torch.int8), requires_grad=False))])


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


def test_memory_that_moved_is_found():
    """A parameter with other memory of the same kind is followed; of another kind, refused."""
    model, other = model_of(), model_of()
    optimizers = [nc.FusedAdam(m.named_parameters(), lr=1e-2) for m in (model, other)]
    for step in range(3):
        for m, optimizer in zip((model, other), optimizers, strict=True):
            give_gradients(m, step)
            optimizer.step()
        model[2].weight.data = model[2].weight.detach().clone()
        quantized = nn.Parameter(model[0].weight.detach().clone())
        torch.utils.swap_tensors(model[0].weight, quantized)
        first = optimizers[0].state[model[0].weight]["master"]
        assert (first.data_ptr() == model[0].weight.master.data_ptr()) is False
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        if isinstance(a, nc.QuantizedTensor):
            a, b = a.master, b.master
        assert same(a, b)
    model[2].weight.data = torch.ones(3, 64)
    with pytest.raises(ValueError, match=r"2\.weight: state exp_avg has 4096 elements"):
        optimizers[0].step()
    model[2].weight.data = torch.ones(64, 64, dtype=torch.bfloat16)
    with pytest.raises((ValueError, TypeError), match=r"2\.weight"):
        optimizers[0].step()


def test_changes_of_dtype_and_memory_keep_training():
    """module.to(dtype) after the optimizer was made."""
    model = build("mxfp8_e4m3")
    optimizer = nc.FusedAdam([p for p in model.parameters() if isinstance(p, nc.QuantizedTensor)])
    train(model, optimizer, 1)
    model.to(torch.bfloat16)
    loss_of(model, 1, dtype=torch.bfloat16).backward()
    optimizer.step()
    weight = model.head.weight
    assert weight.dtype == torch.bfloat16
    assert optimizer.state[weight]["step"] == 2
    assert_quantized(weight.detach(), optimizer.state[weight]["master"])


# ---- automatic mixed precision ----


def test_found_inf_changes_nothing():
    model = model_of()
    optimizer = nc.FusedAdam(model.parameters())
    give_gradients(model)
    before = snapshot(model, optimizer)
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0), torch.tensor(1.0)
    optimizer.step()
    assert unchanged(before, model, optimizer)
    optimizer.found_inf = torch.tensor(0.0)
    optimizer.step()
    assert not unchanged(before, model, optimizer)


def test_grad_scale_divides_gradients():
    results = []
    for scale in (1.0, 1024.0):
        model = model_of()
        optimizer = nc.FusedAdam(model.parameters())
        give_gradients(model)
        for p in model.parameters():
            p.grad *= scale
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(0.0)
        optimizer.step()
        results.append(snapshot(model, optimizer))
    assert all(same(a, b) for a, b in zip(*results, strict=True))


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
