"""The optimizers that are compared, and by formula the bytes that each keeps and moves."""

import dataclasses
import functools
import importlib
import itertools
import math
from collections.abc import Callable

import torch

from narrowcast import optim, registry
from narrowcast.benchmark.weights import Weights

RULES = {"adamw": optim.AdamW, "lion": optim.Lion, "sgd": optim.SGD, "muon": optim.Muon}
_OPTIONS = {"sgd": {"momentum": 0.9}}
_NUMBERS = {"adamw": 2}  # that a rule keeps of an element; others one
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
_VALUE, _GRADIENT = 4, 2  # bytes; gradients of narrowcast's rows are bfloat16, of others float32
_FLASH = {"master_weight_bits": None}  # it refuses its default for float32 weights
_ADAMW, _MUON = "torch.optim.AdamW", "torch.optim.Muon"
# Of other libraries: the module, the class, the bytes of an element's moments, and options.
_OTHERS = {
    "adamw": {
        "torchao AdamW8bit": ("torchao.optim", "AdamW8bit", 2 * (1 + 4 / 256), {}),
        "bitsandbytes AdamW8bit": ("bitsandbytes.optim", "AdamW8bit", 2 * (1 + 4 / 256), {}),
        "FlashOptim FlashAdamW": ("flashoptim", "FlashAdamW", 2 * (1 + 2 / 32), _FLASH),
    },
    "muon": {"dion Muon": ("dion", "Muon", 4, {})},
}


@dataclasses.dataclass(frozen=True)
class Row:
    """An optimizer with weights of its own.

    kept     bytes of an element that stay from step to step: its value, state and codes
    moved    bytes of it that a step has to read and write; None if products take its time
    beside   torch's optimizer that it is compared with
    make     makes it, and gives its step
    """

    optimizer: str
    format: str
    state: str
    kept: float
    moved: float | None
    beside: str
    make: Callable[[Weights], Callable[[], None]]
    is_own: bool = False

    def __str__(self):
        return f"{self.optimizer}, {self.format}, {self.state}"


def all_rows(formats, rules, states) -> list[Row]:
    """torch's, other libraries' and narrowcast's; None is all. ValueError for an unknown name."""
    rules = _known("rule", rules, [*RULES])
    states = _known("state", states, [*_DTYPES, *registry.state_formats()])
    every = itertools.product(rules, formats, states)
    # Of narrowcast's rules only AdamW's state can be in a state format.
    own = [_own(*one) for one in every if one[2] in _DTYPES or one[0] == "adamw"]
    if not own:
        raise ValueError(
            f"--rules {','.join(rules)}: none keeps its state in {', '.join(states)}, which AdamW "
            f"does; others in {', '.join(_DTYPES)}"
        )
    plain = [_plain(_ADAMW, "float32", 8, torch.optim.AdamW, fused=True)]
    if "muon" in rules:
        plain.append(_plain(_MUON, "float32", 4, torch.optim.Muon))
    for rule in rules:
        for name, (module, kind, kept, given) in _OTHERS.get(rule, {}).items():
            state = "8 bits" if rule == "adamw" else "float32"
            made = functools.partial(_imported, module, kind)
            plain.append(_plain(name, state, kept, made, **given))
    return plain + own


def _known(what: str, names: list[str] | None, known: list[str]) -> list[str]:
    for name in names or []:
        if name not in known:
            raise ValueError(f"there is no {what} {name!r}: there are {', '.join(known)}")
    return list(dict.fromkeys(names or known))


def _imported(module: str, kind: str, weights, **options) -> torch.optim.Optimizer:
    return getattr(importlib.import_module(module), kind)(weights, **options)


def _plain(name: str, state: str, kept: float, optimizer_of, **options) -> Row:
    """An optimizer of float32 weights and gradients."""
    is_muon = "Muon" in name
    moved = None if is_muon else 2 * _VALUE + 4 + 2 * kept

    def make(weights):
        return optimizer_of(weights.make(), lr=1e-6, **options).step

    beside = _MUON if is_muon else _ADAMW
    return Row(name, "plain", state, _VALUE + kept, moved, beside, make)


def _own(rule: str, format: str, state: str) -> Row:
    optimizer_of, dtype = RULES[rule], _DTYPES.get(state, state)

    def make(weights):
        own = weights.make(format, torch.bfloat16)
        return optimizer_of(own, lr=1e-6, state_dtype=dtype, **_OPTIONS.get(rule, {})).step

    of_number = (
        dtype.itemsize if state in _DTYPES else registry.state_format(state).bits_per_element / 8
    )
    kept = _NUMBERS.get(rule, 1) * of_number
    f = registry.format(format)
    codes = _stored(f.rowwise) + _stored(f.columnwise)
    again = 4 if f.tensor_amax and not f.is_delayed else 0  # the cast reads the value once more
    moved = 2 * _VALUE + _GRADIENT + 2 * kept + codes + again
    sizes = _VALUE + kept + codes, None if rule == "muon" else moved
    name, beside = f"nc.optim.{optimizer_of.__name__}", _MUON if rule == "muon" else _ADAMW
    return Row(name, format, state, *sizes, beside, make, is_own=True)


def _stored(usage) -> float:
    """Bytes of an element as it is stored: scales as often as they are there."""
    scales = 0 if usage.block == "tensor" else usage.scale_bytes / math.prod(usage.scale_per)
    return usage.element_bits / 8 + scales
