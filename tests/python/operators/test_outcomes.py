"""What docs/operators.md says of each operation: exact on the bytes, only read, or an error."""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

import narrowcast as nc
from models import unit

TESTED_FORMATS = nc.formats()


def filled(q, fill):
    """What an operation in place leaves, on a copy."""
    other = q.clone()
    fill(other)
    return other


def of_its_own_dtype(q):
    """A bf16 tensor asked for in bf16."""
    if not isinstance(q, nc.QuantizedTensor):
        return q
    narrow = q.to(torch.bfloat16)
    assert narrow.bfloat16() is narrow
    return narrow.bfloat16()


def received(q):
    """By a plain tensor."""
    plain = torch.zeros(q.shape)
    dist.all_gather_into_tensor(plain, q)
    return plain


def on_meta(q):
    meta = q.to("meta")
    return torch.empty_like(meta, device="cpu").copy_(q)


# Operations as functions of q, a tensor of 3 x 2 units, and the unit. The expected value is that of
# the same function of q.dequantize().
EXACT = {
    "detach": lambda q, u: q.detach(),
    "view": lambda q, u: q.view(3, u, 2 * u).flatten(0, 1).unsqueeze(0),
    "mm": lambda q, u: torch.mm(torch.ones(3, 3 * u), q),
    "flip": lambda q, u: q.flip(0),
    "index": lambda q, u: q[[1, 0]],
    "zeros_like": lambda q, u: torch.zeros_like(q),
    "new_zeros": lambda q, u: q.new_zeros(u, u),
    "clone": lambda q, u: copy.deepcopy(q.clone()),
    "to": lambda q, u: q.to("cpu", torch.float32, copy=True),
    "bfloat16": lambda q, u: of_its_own_dtype(q),
    "pin_memory": lambda q, u: q.pin_memory() if torch.cuda.is_available() else q.clone(),
    "copy_": lambda q, u: torch.empty_like(q).copy_(q),
    "copy_ of values": lambda q, u: torch.empty_like(q).copy_(torch.ones_like(q)),
    "meta": lambda q, u: on_meta(q) if isinstance(q, nc.QuantizedTensor) else q,
    "broadcast": lambda q, u: filled(q, lambda t: dist.broadcast(t, 0)),
    "send": lambda q, u: received(q),
    "full_tensor": lambda q, u: funcol.all_gather_tensor(q, 0, dist.group.WORLD),
    "untyped_storage": lambda q, u: q.untyped_storage() and q,
    "is_pinned": lambda q, u: torch.tensor(q.is_pinned()),
    "equal": lambda q, u: torch.tensor(torch.equal(q, q.clone()) and not torch.equal(q, q[:u])),
    "vmap": lambda q, u: torch.vmap(lambda row: row @ q)(torch.ones(3, 3 * u)),
}
# By the rules of a format (nc.format(name).rules).
BY_RULE = {
    "cut": lambda q, u: q[u:, :u],
    "write_part": lambda q, u: filled(q, lambda t: t[:u].copy_(torch.zeros(u, 2 * u))),
}
READ = {
    "transpose": lambda q, u: q.t(),
    "mT of three dimensions": lambda q, u: q.view(3, u, 2 * u).mT,
}
ERRORS = {
    "expand": lambda q, u: q.expand(2, 3 * u, 2 * u),
    "arithmetic in place": lambda q, u: torch._foreach_lerp_([q], [torch.ones_like(q)], 0.5),
    "set_": lambda q, u: q.set_(torch.ones(3)),
    "receive": lambda q, u: dist.all_reduce(q),
}


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def assert_exact(example, q, u):
    before = q.dequantize()
    got, expected = example(q, u), example(before, u)
    if isinstance(got, nc.QuantizedTensor):
        got = got.dequantize()
    assert torch.equal(got, expected)
    assert torch.equal(q.dequantize(), before)


def assert_refused(example, q, u):
    before = q.dequantize()
    with pytest.raises(NotImplementedError, match=f"matrix in {q.format.name}: "):
        example(q, u)
    assert torch.equal(q.dequantize(), before)


def quantized(format):
    u = unit(format)
    value = torch.randn(3 * u, 2 * u, generator=torch.Generator().manual_seed(0))
    return nc.quantize(value, format), u


@pytest.mark.parametrize("name", EXACT)
def test_exact(format, name):
    assert_exact(EXACT[name], *quantized(format))


@pytest.mark.parametrize("rule", BY_RULE)
def test_by_rule(format, rule):
    is_exact = getattr(nc.format(format).rules, rule).kind != "error"
    (assert_exact if is_exact else assert_refused)(BY_RULE[rule], *quantized(format))


@pytest.mark.parametrize("name", READ)
def test_read(format, name):
    q, u = quantized(format)
    assert_exact(READ[name], q, u)
    got = READ[name](q, u)
    if name == "transpose" and nc.format(format).rules.transpose.kind == "exact":
        return
    for asks in (got.clone, lambda: got.rowwise_data, lambda: pickle.dumps(got)):
        with pytest.raises(NotImplementedError, match=f"matrix in {format}: .* has no bytes"):
            asks()


@pytest.mark.parametrize("name", ERRORS)
def test_refused(format, name):
    assert_refused(ERRORS[name], *quantized(format))


def test_a_shape_that_does_not_fit():
    q = nc.quantize(torch.ones(64, 64), nc.formats()[0])
    with pytest.raises(RuntimeError, match=r"Target sizes: \[64, 64\].*Tensor sizes: \[3, 2\]"):
        q.copy_(torch.ones(3, 2))
