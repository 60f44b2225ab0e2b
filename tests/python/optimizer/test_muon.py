"""nc.optim.Muon beside torch.optim.Muon, and what it has beyond it."""

import copy
import inspect
import math

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import DEVICES, same
from weights import quantized, value_of

SHAPES = [(48, 32), (32, 64), (40, 40)]  # tall, wide, square
OURS = {"filter", "split", "adamw", "state_dtype", "rounding", "seed"}


def test_signature():
    theirs = inspect.signature(torch.optim.Muon.__init__).parameters
    ours = inspect.signature(nc.optim.Muon.__init__).parameters
    assert list(ours)[: len(theirs)] == list(theirs)
    for key, one in theirs.items():
        given = ours[key].default
        same_default = given == one.default
        assert same_default or (key == "adjust_lr_fn" and given is one.default is None), key
    assert set(ours) - set(theirs) == OURS


def weights(shapes=SHAPES, device="cpu", seed=0):
    torch.manual_seed(seed)
    return [nn.Parameter(torch.randn(shape).to(device)) for shape in shapes]


def train(parameters, *optimizers, steps=3, seed=0):
    """The same gradients for each list of parameters."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for each in zip(*parameters, strict=True):
            gradient = torch.randn(each[0].shape, generator=generator)
            for one in each:
                one.grad = gradient.to(one.device, one.dtype)
        for optimizer in optimizers:
            optimizer.step()


OPTIONS = [
    {},
    {"lr": 0.02, "weight_decay": 0.0, "nesterov": False},
    {"momentum": 0.8, "adjust_lr_fn": "match_rms_adamw", "ns_steps": 3},
    {"adjust_lr_fn": "original", "ns_coefficients": (2.0, -1.5, 0.5), "ns_steps": 0, "eps": 1e-3},
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", OPTIONS)
def test_numbers_and_states_are_torchs(options, device):
    """Momenta have torch's bits. Values differ in the last ones, where torch rounds once more."""
    own, theirs = (weights(device=device) for _ in range(2))
    optimizer, torchs = nc.optim.Muon(own, **options), torch.optim.Muon(theirs, **options)
    train([own, theirs], optimizer, torchs)
    saved = [copy.deepcopy(one.state_dict()) for one in (optimizer, torchs)]
    for p, w in zip(own, theirs, strict=True):
        torch.testing.assert_close(p, w, rtol=1e-5, atol=1e-6)
        ours = optimizer.state[p]
        assert same(ours["momentum_buffer"], torchs.state[w]["momentum_buffer"])
        assert set(ours) == {"step", "momentum_buffer"}
    optimizer.load_state_dict(saved[1])
    train([own, theirs], optimizer, torchs, seed=1)
    for p, w in zip(own, theirs, strict=True):
        torch.testing.assert_close(p, w, rtol=1e-5, atol=1e-6)
        assert same(optimizer.state[p]["momentum_buffer"], torchs.state[w]["momentum_buffer"])


def in_float32(x, coefficients=(3.4445, -4.775, 2.0315), steps=5):
    """The iteration, in float32."""
    a, b, c = coefficients
    x = x / x.norm()
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


@pytest.mark.parametrize("shape", SHAPES)
def test_the_direction(shape):
    """Near the iteration in float32, and near the nearest matrix with equal singular values."""
    (weight,) = weights([shape])
    before = weight.detach().clone()
    optimizer = nc.optim.Muon([weight], lr=1.0, weight_decay=0, momentum=0, nesterov=False)
    train([[weight]], optimizer, steps=1)
    direction = (before - weight.detach()) / math.sqrt(max(1, shape[0] / shape[1]))
    expected = in_float32(weight.grad)
    assert (direction - expected).norm() < 0.02 * expected.norm()
    singular = torch.linalg.svdvals(direction)
    assert singular.min() > 0.5 and singular.max() < 1.3


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", nc.formats())
def test_bytes_of_a_format(name, device):
    """Values are those of plain weights, and the bytes are a cast of them."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(128, rows, bias=False) for rows in (256, 128)).to(device)
    plain = [nn.Parameter(one.weight.detach().clone()) for one in layers]
    nc.convert(layers, name)
    own = [one.weight for one in layers]
    optimizers = nc.optim.Muon(own, lr=0.02), nc.optim.Muon(plain, lr=0.02)
    train([own, plain], *optimizers)
    for weight, value in zip(own, plain, strict=True):
        assert same(value_of(weight), value)
        if not nc.format(name).is_delayed:
            cast, made = nc.quantize(value.detach(), name), quantized(weight)
            assert same(made.rowwise_data, cast.rowwise_data)
            assert same(made.columnwise_data, cast.columnwise_data)
            assert same(made.rowwise_scale_inv, cast.rowwise_scale_inv)


def model_of(seed=0):
    torch.manual_seed(seed)
    return nn.ModuleDict(
        {
            "embedding": nn.Embedding(16, 32),
            "up": nn.Linear(32, 64),
            "norm": nn.LayerNorm(64),
        }
    )


def test_all_else_is_adamws():
    model, other = model_of(), model_of()
    adamw = {"lr": 0.1, "betas": (0.8, 0.9), "weight_decay": 0.2}
    is_own = lambda name, p: p.dim() == 2 and "embedding" not in name  # noqa: E731
    optimizer = nc.optim.Muon(model.named_parameters(), lr=0.02, filter=is_own, adamw=adamw)
    assert [g["algorithm"] for g in optimizer.param_groups] == ["muon", "adamw"]
    names = [name for name, _ in other.named_parameters() if name != "up.weight"]
    rest = [other.get_parameter(name) for name in names]
    beside = nc.optim.AdamW(rest, **adamw), nc.optim.Muon([other["up"].weight], lr=0.02)
    train([[*model.parameters()], [*other.parameters()]], optimizer, *beside)
    for p, w in zip(model.parameters(), other.parameters(), strict=True):
        assert same(p, w)
    again = nc.optim.Muon(model_of().named_parameters(), lr=1.0, filter=is_own)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    assert [g["lr"] for g in again.param_groups] == [0.02, 0.1]
    assert again.param_groups[1]["betas"] == (0.8, 0.9)


def test_groups_say_whose_they_are():
    a, b, c = weights()
    groups = [{"params": [a], "lr": 0.5}, {"params": [b, c], "algorithm": "adamw", "lr": 0.25}]
    optimizer = nc.optim.Muon(groups)
    facts = [(g["algorithm"], g["lr"]) for g in optimizer.param_groups]
    assert facts == [("muon", 0.5), ("adamw", 0.25)]
    optimizer.add_param_group({"params": weights([(8,), (8, 8)], seed=1), "algorithm": "adamw"})
    train([[a, b, c]], optimizer, steps=1)
    assert set(optimizer.state[b]) == {"step", "exp_avg", "exp_avg_sq"}


def test_a_split_is_several_matrices():
    """Their learning rates are adjusted alone: parts of unequal shapes have unequal factors."""
    whole = nn.Parameter(torch.cat([p.detach() for p in weights([(64, 32), (16, 32), (16, 32)])]))
    parts = weights([(64, 32), (16, 32), (16, 32)])
    twice = nn.Parameter(torch.randn(64, 32))
    halves = [nn.Parameter(one.clone()) for one in twice.detach().chunk(2)]
    split = lambda name, p: [64, 16, 16] if name == "qkv" else 2  # noqa: E731
    optimizer = nc.optim.Muon([("qkv", whole), ("heads", twice)], lr=0.02, split=split)
    beside = nc.optim.Muon([*parts, *halves], lr=0.02)
    for step in range(3):
        train([[*parts, *halves]], beside, steps=1, seed=step)
        whole.grad = torch.cat([p.grad for p in parts])
        twice.grad = torch.cat([p.grad for p in halves])
        optimizer.step()
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-4, atol=1e-4)
    assert same(whole[:64], parts[0])
    assert same(twice, torch.cat(halves))


def test_experts_are_batches():
    experts = nn.Parameter(torch.randn(3, 32, 16))
    alone = [nn.Parameter(one.clone()) for one in experts.detach()]
    group = {"params": [experts], "algorithm": "muon"}
    optimizer, beside = nc.optim.Muon([group], lr=0.02), nc.optim.Muon(alone, lr=0.02)
    for step in range(2):
        train([alone], beside, steps=1, seed=step)
        experts.grad = torch.stack([one.grad for one in alone])
        optimizer.step()
    assert same(experts, torch.stack([*alone]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_plain_weights_of_few_bits_have_masters(dtype):
    (weight,) = weights([(32, 16)])
    narrow = nn.Parameter(weight.detach().to(dtype))
    master = nn.Parameter(narrow.detach().float())
    optimizer = nc.optim.Muon([narrow], lr=1e-3)
    beside = nc.optim.Muon([master], lr=1e-3)
    for step in range(3):
        train([[narrow]], optimizer, steps=1, seed=step)
        master.grad = narrow.grad.float()
        beside.step()
    assert same(optimizer.state[narrow]["master"], master)
    assert same(narrow, master.to(dtype))


def test_bfloat16_momenta():
    own, wide = weights(), weights()
    optimizer = nc.optim.Muon(own, state_dtype=torch.bfloat16)
    beside = nc.optim.Muon(wide)
    train([own, wide], optimizer, beside, steps=1)
    for p, w in zip(own, wide, strict=True):
        assert same(p, w)  # by the unrounded ones
        rounded = beside.state[w]["momentum_buffer"].bfloat16()
        assert same(optimizer.state[p]["momentum_buffer"], rounded)


def test_grad_scale_and_found_inf():
    own, beside = weights(), weights()
    optimizer, other = nc.optim.Muon(own), nc.optim.Muon(beside)
    train([own, beside], other, steps=1)
    for one in own:
        one.grad *= 8
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(8.0), torch.tensor(0.0)
    optimizer.step()
    assert all(map(same, own, beside))
    optimizer.found_inf = torch.tensor(1.0)
    optimizer.step()
    assert all(map(same, own, beside))
    assert optimizer.state[own[0]]["step"] == 1


def test_some_have_no_gradient():
    own, beside = weights(), weights()
    optimizer, other = nc.optim.Muon(own), nc.optim.Muon(beside[1:])
    train([own, beside], other, steps=1)
    own[0].grad = None
    before = own[0].detach().clone()
    optimizer.step()
    assert same(own[0], before)
    assert own[0] not in optimizer.state
    assert all(map(same, own[1:], beside[1:]))


def test_copies_keep_filter_and_split():
    model, options = nn.Linear(32, 64), {"split": lambda *_: 2, "adamw": {"lr": 0.5}}
    optimizer = nc.optim.Muon(model.named_parameters(), **options)
    train([[*model.parameters()]], optimizer, steps=1)
    other, copied = copy.deepcopy((model, optimizer))
    every = [*model.parameters()], [*other.parameters()]
    train(every, optimizer, copied)
    assert all(map(same, *every))


ERRORS = [
    ({"lr": -1.0}, ValueError, "lr is -1.0"),
    ({"weight_decay": math.nan}, ValueError, "weight_decay is nan"),
    ({"momentum": 1.0}, ValueError, "momentum is 1.0"),
    ({"ns_coefficients": (1.0, 2.0)}, ValueError, "ns_coefficients are three numbers"),
    ({"ns_steps": 100}, ValueError, "ns_steps is 100"),
    ({"ns_steps": 2.5}, ValueError, "ns_steps is 2.5"),
    ({"eps": 0.0}, ValueError, "eps is 0.0"),
    ({"adjust_lr_fn": "other"}, ValueError, "adjust_lr_fn is None or one of original"),
    ({"adamw": {"beta": 1}}, TypeError, "adamw has beta; its options are lr, betas"),
    ({"state_dtype": "int8_root"}, ValueError, "for Muon, and not 'int8_root'"),
    ({"filter": lambda *_: True}, ValueError, r"two or three dimensions.*\(64,\)"),
]


@pytest.mark.parametrize(("options", "error", "text"), ERRORS)
def test_options_that_make_no_sense(options, error, text):
    with pytest.raises(error, match=text):
        nc.optim.Muon(nn.Linear(32, 64).named_parameters(), **options)


@pytest.mark.parametrize("given", [3, [32, 31], [64, 0], [32.5, "x"], 0])
def test_a_split_that_does_not_fit(given):
    model = nn.Linear(32, 64)
    optimizer = nc.optim.Muon(model.named_parameters(), split=lambda *_: given)
    before = copy.deepcopy([*model.parameters()])
    for _ in range(2):  # the second does not go on with what the first has left
        with pytest.raises(ValueError, match=r"split= gives .*64 rows"):
            train([[*model.parameters()]], optimizer, steps=1)
    assert all(map(same, model.parameters(), before))


def test_names_that_a_filter_needs():
    """A name that is none would pass for one that is not the embedding's."""
    model = model_of()
    nc.convert(model, nc.formats()[0], filter=lambda name, _: name == "up")
    for options in ({"filter": lambda name, p: "embedding" not in name}, {"split": lambda *_: 2}):
        with pytest.raises(ValueError, match=r"shape \(16, 32\) has none: give model.named_para"):
            nc.optim.Muon(model.parameters(), **options)


def test_options_of_groups_that_are_parted():
    """A group of AdamW's parameters alone keeps its options, and what is not an option stays."""
    a, b, c = weights([(32, 16), (16,), (16,)])
    both = {"params": [a, b], "name": "both", "betas": (0.5, 0.6), "seed": 3}
    alone = {"params": [c], "lr": 0.25, "weight_decay": 0.0, "initial_lr": 0.25}
    groups = nc.optim.Muon([both, alone], lr=0.02).param_groups
    assert [group["algorithm"] for group in groups] == ["muon", "adamw", "adamw"]
    assert [group["name"] for group in groups[:2]] == ["both", "both"]
    assert groups[1]["betas"] == (0.5, 0.6) and [g["seed"] for g in groups] == [3, 3, 0]
    assert groups[2]["lr"] == groups[2]["initial_lr"] == 0.25 and groups[2]["weight_decay"] == 0
    with pytest.raises(ValueError, match=r"a group has lr, and parameters of Muon and of AdamW"):
        nc.optim.Muon([{**both, "lr": 0.5}])


def test_a_group_that_cannot_be_added_adds_nothing():
    a, b, c = weights([(32, 16), (16,), (16, 16)])
    optimizer = nc.optim.Muon([a, b])
    for more in ([c, b], [c, "x"]):
        with pytest.raises((ValueError, TypeError)):
            optimizer.add_param_group({"params": more})
        assert len(optimizer.param_groups) == 2


def test_options_change_between_steps():
    own, theirs = weights(), weights()
    optimizers = nc.optim.Muon(own), torch.optim.Muon(theirs)
    train([own, theirs], *optimizers, steps=1)
    for group in (one.param_groups[0] for one in optimizers):
        group.update(adjust_lr_fn="match_rms_adamw", momentum=0.5, lr=0.1, ns_steps=2)
    train([own, theirs], *optimizers, steps=1)
    for p, w in zip(own, theirs, strict=True):
        torch.testing.assert_close(p, w, rtol=1e-5, atol=1e-6)


def test_an_unknown_algorithm():
    with pytest.raises(ValueError, match="algorithm is"):
        nc.optim.Muon([{"params": weights(), "algorithm": "sgd"}])


def test_flat_shards_are_refused():
    model = nn.ModuleList([nn.Linear(128, 128, bias=False)])
    weights = [nc.convert(model, nc.formats()[0])[0].weight]
    masters = [nn.Parameter(value_of(one).flatten().clone()) for one in weights]
    optimizer = nc.optim.Muon([{"params": masters, "algorithm": "adamw"}])
    with pytest.raises(NotImplementedError, match="Muon updates whole matrices"):
        nc.flat.fuse(optimizer, weights, masters, [0])
