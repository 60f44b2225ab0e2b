"""No write goes unseen: each method of torch.Tensor that writes in place, and each operator over
lists, leaves the value that a plain tensor has, and bytes that are known to be stale.
"""

import itertools

import pytest
import torch

import narrowcast as nc
from by_hand import FORMATS
from narrowcast.master import products
from narrowcast.tensor.store import WeightConfig

ROWS = 64
RANDOM = torch.rand(ROWS, ROWS, generator=torch.Generator().manual_seed(1))
MASK, INDEX = RANDOM > 0.5, torch.arange(ROWS)
PLACES = INDEX.flip(0)[None].expand(ROWS, ROWS).contiguous()
# An operator is tried with all of these that a plain tensor takes, until one changes that.
ARGUMENTS = [
    *((), (0.5,), (2,), (RANDOM,), (0.1, 0.9), (0.5, RANDOM), (RANDOM, 0.5), (RANDOM, RANDOM)),
    *((MASK, 0.3), (MASK, RANDOM), (0, 1), (0, INDEX, RANDOM), (0, INDEX, 0.5)),
    (0, PLACES, RANDOM),
    *(((INDEX,), RANDOM[0]), (INDEX[:1], RANDOM[:1, 0]), (2.0, 0, 1.0), (RANDOM[0], RANDOM[1])),
    *((0, PLACES, RANDOM, "sum"), (0, INDEX, RANDOM, "mean"), (lambda value: value * 0.5,)),
    *((RANDOM, lambda mine, other: mine + other), ([0.5],), (RANDOM, RANDOM, 0.5)),
    *((RANDOM, RANDOM, [0.5]), (RANDOM, [0.5]), (0,), (RANDOM[None], RANDOM[None]), (-RANDOM,)),
    (RANDOM, RANDOM, lambda mine, one, other: mine + one * other),
]
VALUES = [RANDOM * 0.8 + 0.1, torch.where(MASK, RANDOM * 8 - 5, torch.nan)]
CHANGES_SHAPE = {
    *("as_strided_", "resize_", "resize_as_", "set_", "squeeze_", "swapaxes_", "swapdims_", "t_"),
    *("transpose_", "unsqueeze_"),
}
METHODS = sorted(
    name
    for name in dir(torch.Tensor)
    if name.endswith("_") and not name.endswith("__") and name not in CHANGES_SHAPE
)
LISTS = sorted(name for name in dir(torch) if name.startswith("_foreach_") and name.endswith("_"))
STEPS = sorted(name for name in dir(torch) if name.startswith("_fused_") and name.endswith("_"))
# What changes no plain matrix of random numbers, with whichever arguments.
_INTEGERS, _SPARSE = "of integers, which a weight has none of", "of sparse tensors"
_NO_WRITE, _OTHER = "no write to a value", "of another number of dimensions than a matrix"
NOT_TRIED = {
    **dict.fromkeys(("bitwise_and_", "bitwise_not_", "bitwise_or_", "bitwise_xor_"), _INTEGERS),
    **dict.fromkeys(("bitwise_left_shift_", "bitwise_right_shift_", "gcd_", "lcm_"), _INTEGERS),
    **dict.fromkeys(("_coalesced_", "resize_as_sparse_", "sparse_resize_"), _SPARSE),
    **dict.fromkeys(("sparse_resize_and_clear_",), _SPARSE),
    **dict.fromkeys(("detach_", "rename_", "requires_grad_", "share_memory_"), _NO_WRITE),
    **dict.fromkeys(("addmv_", "baddbmm_"), _OTHER),
    "conj_physical_": "leaves real numbers as they are",
    "float_power_": "makes float64, which cannot be written to float32",
}


def _weight(value):
    """One whose bytes are there and fresh."""
    format = nc.format(FORMATS[0])
    weight = nc.MasterWeight.of(value.clone(), format, WeightConfig("a weight"))
    products.narrowed(weight)
    assert not weight._store.is_stale
    return weight


def _changed(call, target, arguments):
    """What a call makes of a tensor; None if it is an error, or changes nothing."""
    before = target.clone().nan_to_num(7)
    torch.manual_seed(3)
    try:
        call(target, arguments)
    except Exception:
        return None
    is_other = target.shape != before.shape or target.dtype != before.dtype
    return None if is_other or torch.equal(target.nan_to_num(7), before) else target


def _try(call):
    """Whether any arguments change a plain tensor. With those, a weight is as that one, and known
    to have been written to.
    """
    for value, arguments in itertools.product(VALUES, ARGUMENTS):
        expected = _changed(call, value.clone(), arguments)
        if expected is None:
            continue
        weight = _weight(value)
        torch.manual_seed(3)
        call(weight, arguments)
        assert torch.equal(weight.value.nan_to_num(7), expected.nan_to_num(7))
        assert weight._store.is_stale
        return True
    return False


def _of_method(name):
    return lambda target, arguments: getattr(target, name)(*arguments)


def _of_list(name):
    def call(target, arguments):
        lists = ([one] if isinstance(one, torch.Tensor) else one for one in arguments)
        getattr(torch, name)([target], *lists)

    return call


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_seen(name):
    assert _try(_of_method(name)) == (name not in NOT_TRIED)


@pytest.mark.parametrize("name", LISTS)
def test_an_operator_over_lists_is_seen(name):
    assert _try(_of_list(name)) == (name not in NOT_TRIED)


def _moments(count):
    return [[torch.zeros(ROWS, ROWS)] for _ in range(count)]


_ADAM = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.1, "eps": 1e-8}
FUSED = {
    "_fused_adagrad_": (1, 1, {"lr": 0.1, "lr_decay": 0.1, "weight_decay": 0.1, "eps": 1e-8}),
    "_fused_adam_": (3, 1, {**_ADAM, "amsgrad": True}),
    "_fused_adamw_": (3, 1, {**_ADAM, "amsgrad": True}),
    "_fused_sgd_": (
        *(1, 0),
        {"lr": 0.1, "weight_decay": 0.1, "momentum": 0.9, "dampening": 0.0}
        | {"nesterov": False, "is_first_step": True},
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_fused_step_is_seen(name):
    moments, steps, options = FUSED[name]  # a new one of torch's is to be entered there

    def call(target, _):
        counts = [[torch.ones(())] for _ in range(steps)]
        getattr(torch, name)(
            [target], [RANDOM], *_moments(moments), *counts, **options, maximize=False
        )

    assert _try(call)


@pytest.mark.parametrize("name", sorted(CHANGES_SHAPE))
def test_shapes_stay(name):
    """A weight in whose place is another shape or memory would have the bytes of the old one."""
    arguments = {
        **dict.fromkeys(("swapaxes_", "swapdims_", "transpose_"), (0, 1)),
        **dict.fromkeys(("resize_as_", "set_"), (torch.ones(1, ROWS),)),
        "as_strided_": ((2,), (1,)),
        "resize_": (1, ROWS),
        "unsqueeze_": (0,),
    }
    with torch.no_grad(), pytest.raises((NotImplementedError, RuntimeError)):
        getattr(_weight(RANDOM), name)(*arguments.get(name, ()))


WAYS = {
    "data": lambda w: w.data.mul_(0.5),
    "detach": lambda w: w.detach().mul_(0.5),
    "rows": lambda w: w[3:5].fill_(1.0),
    "a column": lambda w: w[:, 7].fill_(1.0),
    "an item": lambda w: w.__setitem__((3, slice(1, 9)), 1.0),
    "transposed": lambda w: w.t()[2].zero_(),
    "flat": lambda w: w.view(-1)[5:9].fill_(3.0),
    "reshaped": lambda w: w.reshape(2, -1).add_(1.0),
    "chunks": lambda w: [one.mul_(0.5) for one in w.chunk(2)],
    "rows one by one": lambda w: [one.mul_(0.5) for one in w.unbind()],
    "out": lambda w: torch.add(w, 1.0, out=w),
    "a product": lambda w: torch.mm(RANDOM, RANDOM, out=w),
    "its value": lambda w: w.value.mul_(0.5),
    "a list": lambda w: torch._foreach_mul_([w, w.detach()], 0.5),
    "a copy": lambda w: w.copy_(RANDOM),
    "a merge": lambda w: w.__iadd__(RANDOM[:, :4] @ RANDOM[:4]),
    "a memory that is noted": lambda w: (w.value.numpy().__imul__(0.5), nc.note_write(w)),
}


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", WAYS)
def test_a_write_in_another_way_is_seen(name, mode):
    value = torch.nn.Parameter(_weight(RANDOM))
    with mode():
        WAYS[name](value)
        assert value._store.is_stale
    weight = nc.quantize(value.value.clone(), FORMATS[0])
    assert torch.equal(products.narrowed(value).dequantize(), weight.dequantize())
    assert not value._store.is_stale


def test_a_write_that_nobody_counts_is_noted_of_weights_alone():
    with pytest.raises(TypeError, match="not a Parameter"):
        nc.note_write(torch.nn.Parameter(RANDOM))
