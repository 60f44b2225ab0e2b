"""Weights of bfloat16 and float16 models announce that dtype over a float32 value: what is read is
rounded to it, what is written changes the value in float32, and copies move the value.
"""

import copy
import pickle
import weakref

import pytest
import torch
from torch import nn, optim
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import narrowcast as nc
from by_hand import are_trained, by_hand, converted, loss_of, same, train, values, weights
from models import assert_quantized, pickled

TESTED_FORMATS = ["mxfp8_e4m3", "nvfp4"]
FORMAT = TESTED_FORMATS[1]
BF16, HALVES = torch.bfloat16, [torch.bfloat16, torch.float16]
SIZES = 64, 64, 32
RANDOM = torch.rand(64, 64, generator=torch.Generator().manual_seed(1)) + 0.1


def _model(format=FORMAT, dtype=BF16, **options):
    """One whose values are no bfloat16 numbers."""
    model = converted(format, *SIZES, dtype=dtype, **options)
    for weight in weights(model):
        weight.value.mul_(1.001)
    return model


def _weight(dtype=BF16):
    return _model(dtype=dtype)[0].up.weight


# ---- what is read ----


@pytest.mark.parametrize("dtype", HALVES)
def test_what_is_read_is_rounded(dtype):
    weight = _weight(dtype)
    value, read = weight.value.clone(), weight.value.to(dtype)
    assert isinstance(weight, nc.MasterWeight)
    assert weight.dtype == weight.t()[3:].dtype == weight.detach().dtype == dtype
    assert value.dtype == torch.float32
    assert not torch.equal(read.float(), value)
    assert torch.equal(weight * 2, read * 2)
    assert weight.tolist() == read.tolist()
    assert torch.equal(weight.double(), read.double())
    weight.square().sum().backward()
    assert torch.equal(weight.grad, 2 * read)
    with torch.no_grad():
        plain_tensor = torch.zeros(64, 64).copy_(weight)
        torch._foreach_copy_(list := [torch.zeros(64, 64)], [weight])
    assert torch.equal(plain_tensor, read.float())
    assert torch.equal(list[0], read.float())


def test_a_model_and_back(format):
    model = _model(format)
    assert are_trained(model)
    expected = {name: one.to(BF16) for name, one in values(model).items()}
    nc.to_plain(model)
    assert same(values(model), expected)


# ---- training ----


def _muon(model):
    every = [*model.parameters()]
    rest = optim.SGD([one for one in every if one.dim() != 2], 1e-2)
    return [optim.Muon([one for one in every if one.dim() == 2], 1e-2), rest]


def _of(kind, *arguments, **options):
    return lambda model: [kind(model.parameters(), *arguments, **options)]


OPTIMIZERS = {
    "AdamW for-loop": _of(optim.AdamW, 1e-2, foreach=False),
    "AdamW foreach": _of(optim.AdamW, 1e-2, foreach=True),
    "SGD": _of(optim.SGD, 1e-1, momentum=0.9, foreach=False),
    "Muon": _muon,
    # Its default of the first epsilon follows from the parameter's dtype.
    "Adafactor": _of(optim.Adafactor, 1e-2, eps=(2.0**-7, 1e-3)),
    "NAdam": _of(optim.NAdam, 1e-2, foreach=False),
}
# Moments are of what is read of a parameter, or of its gradient: bfloat16. Of the reference's
# float32 weights torch would make others.
MOMENTS = {optim.AdamW: ("exp_avg", "exp_avg_sq"), optim.NAdam: ("exp_avg", "exp_avg_sq")}


def _reference(format, name, dtype):
    """Plain float32 weights with gradients of a dtype, and torch's own arithmetic on them."""
    model = by_hand(format, *SIZES, dtype=dtype)
    optimizers = OPTIMIZERS[name](model)
    optimizers[0].param_groups[0]["foreach"] = False  # that is of lists of one dtype alone
    for weight in weights(model):
        weight.norm = lambda order, weight=weight: weight.detach().to(dtype).norm(order)
        if keys := MOMENTS.get(type(optimizers[0])):
            state = {key: torch.zeros_like(weight, dtype=dtype) for key in keys}
            state |= {"step": torch.tensor(0.0), "mu_product": torch.ones(())}
            optimizers[0].state[weight] = state
    return model, optimizers


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_torchs_optimizers(format, name):
    reference, optimizers = _reference(format, name, BF16)
    expected = train(reference, optimizers, width=64, dtype=BF16)
    model = converted(format, *SIZES, dtype=BF16)
    assert train(model, OPTIMIZERS[name](model), width=64, dtype=BF16) == expected
    assert same(values(model), values(reference))
    assert {one.grad.dtype for one in model.parameters()} == {BF16}


@pytest.mark.parametrize("dtype", HALVES)
def test_fused_adam(format, dtype):
    """As plain float32 weights with gradients of the dtype; its bytes are those of its values."""
    reference, model = by_hand(format, *SIZES, dtype=dtype), converted(format, *SIZES, dtype=dtype)
    optimizers = [nc.FusedAdam(one.parameters(), 1e-2) for one in (reference, model)]
    losses = [
        train(one, [optimizer], width=64, dtype=dtype)
        for one, optimizer in zip((reference, model), optimizers, strict=True)
    ]
    assert losses[0] == losses[1]
    assert same(values(model), values(reference))
    for mine in weights(model):
        assert not mine._store.is_stale
        assert_quantized(mine, mine.value)
        assert "master" not in optimizers[1].state[mine]
    assert "master" in optimizers[1].state[model[0].up.bias]  # a plain parameter


@pytest.mark.parametrize("kind", [optim.AdamW, optim.SGD])
def test_torchs_fused_steps_are_an_error(kind):
    model = _model()
    loss_of(model, 0, width=64, dtype=BF16).backward()
    before = values(model)
    with pytest.raises(NotImplementedError, match=r"Use one of nc\.optim.*MixedPrecisionPolicy"):
        kind(model.parameters(), 1e-2, fused=True).step()
    assert same(values(model), before)


def test_scaled_gradients():
    """A step whose gradients are infinite is skipped, and the scale falls."""
    reference = by_hand(FORMAT, *SIZES, dtype=torch.float16)
    model = converted(FORMAT, *SIZES, dtype=torch.float16)
    before = values(model)
    for one in (reference, model):
        optimizer = nc.FusedAdam(one.parameters(), 1e-2)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, backoff_factor=2.0**-36)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(loss_of(one, step, width=64, dtype=torch.float16)).backward()
            scaler.step(optimizer)
            scaler.update()
            assert step > 0 or same(values(one), before)
        assert scaler.get_scale() == 2.0**4
    assert same(values(model), values(reference))
    assert not same(values(model), before)


# ---- writes ----

ROWS = torch.arange(64).flip(0)
WRITES = {
    "lerp_": lambda w, x: w.lerp_(x, 0.001),
    "addcdiv_": lambda w, x: w.addcdiv_(x, x.t(), value=0.001),
    "mul_": lambda w, x: w.mul_(0.999),
    "addmm_": lambda w, x: w.addmm_(x, x, alpha=0.001),
    "rows": lambda w, x: w[3:5].sub_(x[3:5], alpha=0.001),
    "index_add_": lambda w, x: w.index_add_(0, ROWS, x, alpha=0.001),
    "items": lambda w, x: w.__setitem__((ROWS,), x),
    "masked_scatter_": lambda w, x: w.masked_scatter_(x > 0.5, x),
    "copy_": lambda w, x: w.copy_(x),
    "out": lambda w, x: torch.mul(w, 0.999, out=w),
    "data": lambda w, x: w.data.add_(x, alpha=0.001),
    "lists": lambda w, x: torch._foreach_lerp_([w], [x], 0.001),
    "numbers of a list": lambda w, x: torch._foreach_addcdiv_([w], [x], [x.t()], [0.001]),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WRITES)
def test_a_write_is_one_in_float32(name, mode):
    weight = _weight()
    weight._store.refresh()
    expected, other = weight.value.clone(), RANDOM.to(BF16)
    with mode():
        WRITES[name](weight, other)
        WRITES[name](expected, other.float())
    assert torch.equal(weight.value, expected)
    assert weight._store.is_stale


def test_a_list_of_weights_and_plain_parameters():
    """Each is written in its own way: values in float32, and biases in bfloat16."""
    model = _model()
    lists = [one.detach() for one in model.parameters()], [*values(model).values()]
    others = [torch.full_like(one, 0.3, dtype=BF16) for one in lists[1]]
    torch._foreach_lerp_(lists[0], others, 0.001)
    for one, other in zip(lists[1], others, strict=True):
        one.lerp_(other.to(one.dtype), 0.001)
    numbers = [0.99 + at / 1000 for at in range(len(others))]
    torch._foreach_mul_(lists[0], numbers)
    for one, number in zip(lists[1], numbers, strict=True):
        torch._foreach_mul_([one], [number])
    assert same(values(model), dict(zip(values(model), lists[1], strict=True)))


def test_averages():
    """They are those of the values."""
    model = _model()
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = optim.SGD(model.parameters(), 1e-2)
    for step in range(3):
        train(model, [optimizer], 1, first=step, width=64, dtype=BF16)
        average.update_parameters(model)
        for name, one in values(model).items():
            if step == 0:  # a copy
                expected = values(model)
            else:
                expected[name].lerp_(one, 1 - 0.9)
    assert same(values(average.module), expected)


# ---- copies ----

COPIES = {
    "clone": lambda w: w.clone(),
    "copy_": lambda w: torch.empty_like(w).copy_(w),
    "zeros": lambda w: w.new_zeros(64, 64).copy_(w),
    "lists": lambda w: torch._foreach_copy_([torch.empty_like(w)], [w])[0],
    "to": lambda w: w.to(torch.float16).to(BF16),
    "float": lambda w: w.float().bfloat16(),
    "device": lambda w: w.to("cpu", copy=True),
    "pickle": lambda w: pickle.loads(pickle.dumps(nn.Parameter(w))),
    "deepcopy": lambda w: copy.deepcopy(w),
    "weights_only": lambda w: pickled(nn.Parameter(w)),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_has_the_value(name):
    weight = _weight().detach()
    made = COPIES[name](weight)
    assert isinstance(made, nc.MasterWeight)
    assert made.dtype == BF16
    assert torch.equal(made.value, weight.value)
    assert made.data_ptr() != weight.data_ptr()


@pytest.mark.parametrize("dtype", HALVES)
def test_another_memory(dtype):
    weight = _weight()
    weight.data = RANDOM.to(dtype)
    assert weight.dtype == dtype
    assert torch.equal(weight.value, RANDOM.to(dtype).float())
    weight.data = value = RANDOM.clone()  # float32 is a value, of a weight of any dtype
    assert weight.dtype == dtype
    value.mul_(0.5)
    assert torch.equal(weight.value, RANDOM * 0.5)
    assert weight._store.is_stale
    with pytest.raises(TypeError, match=r"not torch\.float64"):
        weight.data = RANDOM.double()


@pytest.fixture(params=["", "overwrite", "swap"])
def way(request):
    """How torch converts the parameters of modules."""
    setters = [getattr(torch.__future__, f"set_{request.param}_module_params_on_conversion", None)]
    for one in filter(None, setters):
        one(True)
    yield request.param
    for one in filter(None, setters):
        one(False)


@pytest.mark.parametrize("dtype", [torch.float32, BF16])
def test_a_model_of_another_dtype(way, dtype):
    """It announces that; the value stays, and its optimizer goes on with it."""
    model = _model(dtype=dtype)
    optimizer = optim.SGD(model.parameters(), 1e-2)
    train(model, [optimizer], 1, width=64, dtype=dtype)
    every, expected = weights(model), [one.value.clone() for one in weights(model)]
    if not way:  # by .data, as plain parameters: libraries may hold references and attributes
        every[0].mark, known = "theirs", weakref.ref(every[0])
    for other in (BF16, torch.float16, torch.float32, BF16):
        model.to(other)
        assert {one.dtype for one in model.parameters()} == {other}
        assert all(one is now for one, now in zip(every, weights(model), strict=True))
        assert all(map(torch.equal, [one.value for one in every], expected))
    assert way or (every[0].mark == "theirs" and known() is every[0])
    train(model, [optimizer], 1, width=64, dtype=BF16)
    assert not any(map(torch.equal, [one.value for one in weights(model)], expected))
    with pytest.raises(TypeError, match=r"not torch\.float64: use nc\.to_plain"):
        model.double()
    assert are_trained(model)


# ---- state dicts, and other ways to the memory ----


@pytest.mark.parametrize("assign", [False, True])
def test_state_dicts_are_of_float32(assign):
    model, other = _model(), _model(seed=1)
    state = model.state_dict()
    held = {name: state[name] for name, one in model.named_parameters() if one.dim() == 2}
    assert {type(one) for one in state.values()} == {torch.Tensor}
    assert {one.dtype for one in held.values()} == {torch.float32}
    other.load_state_dict(pickled(state), assign=assign)
    assert same(values(other), values(model))
    rounded = {name: one.to(BF16) for name, one in state.items()}
    other.load_state_dict(rounded, assign=assign)
    assert {one.dtype for one in other.parameters()} == {BF16}
    assert are_trained(other)
    assert same(values(other), {name: one.to(state[name].dtype) for name, one in rounded.items()})


def test_written_files(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    model = _model()
    read = safetensors.load(safetensors.save(model.state_dict()))
    assert same(read, values(model))
    for tensors in (dict(model.named_parameters()), {"rows": model[0].up.weight[:32].detach()}):
        with pytest.raises(TypeError, match="no memory of this dtype"):
            safetensors.save(tensors)
    assert model[0].up.weight.storage().dtype == torch.float32


def test_transformers_writer(tmp_path):
    transformers = pytest.importorskip("transformers")
    safetensors = pytest.importorskip("safetensors.torch")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 64}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 1}
    config = transformers.LlamaConfig(**sizes, **heads, tie_word_embeddings=True)
    model = converted(FORMAT, model=transformers.LlamaForCausalLM(config), dtype=BF16)
    written = [one for one in model.parameters() if isinstance(one, nc.MasterWeight)]
    for weight in written:
        weight.value.mul_(1.001)
    assert len(written) == 7
    model.save_pretrained(tmp_path)
    read = safetensors.load_file(tmp_path / "model.safetensors")
    expected = values(model)
    assert same(read, {name: expected[name] for name in read})
    assert sum(one.dtype == torch.float32 for one in read.values()) == 7


def test_libraries_tell_parameters_apart():
    """By their addresses, which are no numbers: what reads memory by one is refused."""
    first, second = weights(_model())[:2]
    names = {first.data_ptr(): "first", second.data_ptr(): "second"}
    assert names[nn.Parameter(first).data_ptr()] == "first"
    assert names[second.detach().data_ptr()] == "second"
    for read in (int, lambda address: address == 0, lambda address: address != 0):
        with pytest.raises(TypeError, match="no memory of this dtype"):
            read(first.data_ptr())


# ---- torch.compile ----


def _written(weight, other):
    weight.lerp_(other, 0.001)
    return weight * 2


def test_compiled():
    model, other = _model(), _model()
    for block in other[:-1]:
        block.compile(fullgraph=True, backend="aot_eager")
    losses = [
        train(one, [optim.AdamW(one.parameters(), 1e-2)], 3, width=64, dtype=BF16)
        for one in (model, other)
    ]
    assert losses[0] == losses[1]
    assert same(values(model), values(other))
    written = torch.compile(_written, fullgraph=True, backend="aot_eager")
    results = [
        call(one[0].up.weight.detach(), RANDOM.to(BF16))
        for one, call in ((model, _written), (other, written))
    ]
    assert torch.equal(*results)
    assert same(values(model), values(other))
