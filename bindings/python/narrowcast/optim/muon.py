"""Muon, for matrices, with AdamW for all else."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable

import torch

from narrowcast.muon import Directions, Matrix
from narrowcast.muon.matrices import ADJUSTMENTS, Split
from narrowcast.optim.adam import Adam, AdamW
from narrowcast.optimizer import FusedOptimizer, parameters

_ADAMW = {
    key: inspect.signature(AdamW).parameters[key].default
    for key in ("lr", "betas", "eps", "weight_decay")
}
_SHARED = ("lr", "weight_decay", "eps")  # options of both, which mean another thing in each


class Muon(FusedOptimizer):
    """torch.optim.Muon, with the new values and the bytes of quantized weights made in one pass
    over memory, and AdamW for the parameters that are not its own.

    lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn
                  as torch's
    filter        filter(name, parameter): whether Muon updates a parameter; by default each of two
                  dimensions. Parameters need names then: give model.named_parameters()
    split         split(name, parameter): some parameters are several matrices one above another,
                  such as a projection for queries, keys and values. It gives the rows of each, or
                  how many equal ones there are, or None. Each is orthogonalized alone, and has its
                  own adjustment. Parameters need names then
    adamw         the options of AdamW: lr, betas, eps, weight_decay; by default nc.optim.AdamW's
    state_dtype   torch.float32 or torch.bfloat16
    rounding, seed
                  narrowcast.optimizer.FusedOptimizer's, where all else is told

    A parameter of three dimensions [batch, rows, columns] is a batch of matrices, such as experts;
    a filter chooses it. Rows are outputs.

    A group may say "algorithm": "muon" or "adamw". Then all of it is that rule's, whatever the
    filter says. Every other group is parted: AdamW's parameters have a group of their own, with
    the options of `adamw`. If all of a group is AdamW's, its own options come before those. If it
    has parameters of both, lr, weight_decay and eps in it are a ValueError.

    Under fully_shard momenta lie in row shards. A step sends every matrix to one rank, which
    orthogonalizes it: an all-to-all in bfloat16 there, and one back. So step() is collective, and
    all ranks have gradients of the same matrices. Results do not depend on the number of ranks, for
    equal gradients. The iterations are bfloat16, as torch's.

    NotImplementedError: matrices that are cut otherwise than in rows by one dimension of a mesh
    (column-wise, or by tensor parallelism too), and flat shards. ValueError: a parameter of another
    number of dimensions in a group of "muon"; a split that does not fit; a parameter without a
    name where filter or split asks for it. A copy of the optimizer by pickle needs functions that
    can be pickled.
    """

    rule = "muon"
    takes_flat_shards = can_be_captured = False

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
        *,
        filter: Callable[[str, torch.Tensor], bool] | None = None,
        split: Split | None = None,
        adamw: dict | None = None,
        state_dtype: torch.dtype = torch.float32,
        rounding: str = "nearest",
        seed: int = 0,
    ):
        if unknown := set(adamw or ()) - set(_ADAMW):
            raise TypeError(
                f"Muon: adamw has {', '.join(sorted(unknown))}; its options are {', '.join(_ADAMW)}"
            )
        self._filter, self._split = filter, split
        self._adamw = {**_ADAMW, **(adamw or {})}
        defaults = {
            "lr": lr,
            "weight_decay": weight_decay,
            "momentum": momentum,
            "nesterov": nesterov,
            "ns_coefficients": ns_coefficients,
            "eps": eps,
            "ns_steps": ns_steps,
            "adjust_lr_fn": adjust_lr_fn,
        }
        super().__init__(params, defaults, state_dtype, rounding, seed)

    def rule_of(self, group: dict) -> str:
        return "adamw" if group["algorithm"] == "adamw" else self.rule

    def state_names(self, group: dict) -> list[str]:
        is_own = self.rule_of(group) == self.rule
        return ["momentum_buffer"] if is_own else super().state_names(group)

    @staticmethod
    def numbers(group: dict) -> dict:
        if group["algorithm"] == "adamw":
            return Adam.numbers({"decoupled_weight_decay": True, **group})
        _check(group)
        return {key: group[key] for key in ("lr", "weight_decay")}

    @staticmethod
    def adopted(saved: dict) -> dict:
        """torch's counts no steps."""
        return {"step": 1.0, **saved} if "momentum_buffer" in saved else saved

    def add_param_group(self, param_group: dict) -> None:
        """Adds a group, or the two that it is parted in, without state."""
        before = len(self.param_groups)
        try:
            for one in self._parted(param_group):
                super().add_param_group(one)
        except BaseException:
            del self.param_groups[before:]
            raise

    def _parted(self, group: dict) -> list[dict]:
        algorithm = group.get("algorithm")
        if algorithm not in (None, "muon", "adamw"):
            raise ValueError(f'algorithm is "muon" or "adamw", not {algorithm!r}')
        if algorithm == "adamw":
            return [{**self._adamw, **group}]
        given = group["params"]
        if isinstance(given, torch.Tensor):
            given = [given]
        if isinstance(given, set) or not isinstance(given, Iterable):
            return [{**group, "algorithm": "muon"}]  # an error of torch's
        own, others = [], []
        for one in given:
            is_own = self._is_own(one)  # which checks names
            (own if is_own or algorithm == "muon" else others).append(one)
        if not others:
            return [{**group, "algorithm": "muon", "params": own}]
        theirs = {**self._adamw, **group, "algorithm": "adamw", "params": others}
        if not own:
            return [theirs]
        if both := [key for key in _SHARED if key in group]:
            raise ValueError(
                f"a group has {', '.join(both)}, and parameters of Muon and of AdamW, for which "
                'that is another thing: make two groups, with "algorithm": "muon" and "adamw"'
            )
        return [{**group, "algorithm": "muon", "params": own}, theirs]

    def _is_own(self, given) -> bool:
        """Of a parameter, or a pair of name and parameter."""
        is_pair = isinstance(given, tuple) and len(given) == 2
        name, parameter = given if is_pair else (None, given)
        if not isinstance(parameter, torch.Tensor):
            return True  # torch says what is wrong
        name = name or parameters.label_of(parameter)
        if name is None and (self._filter or self._split):
            raise ValueError(
                f"Muon: filter= and split= look at names, and a parameter of shape "
                f"{tuple(parameter.shape)} has none: give model.named_parameters()"
            )
        return bool(self._filter(name, parameter)) if self._filter else parameter.dim() == 2

    def __getstate__(self):
        own = {key: getattr(self, key) for key in ("_filter", "_split", "_adamw")}
        return {**super().__getstate__(), **own}

    def _use(self, entries: list[parameters.Entry]) -> None:
        own = (entry for entry in entries if entry.rule == self.rule)
        groups = self.param_groups
        self._matrices = [Matrix(entry, groups[entry.group], self._split) for entry in own]
        self._directions = Directions([])

    def _take(self, grad_scale: float | None) -> None:
        present = [one for one in self._matrices if one.entry.parameter.grad is not None]
        if present:
            if self._directions.matrices != present:
                self._directions = Directions(present)
            self._tables.replace_gradients(self._directions.compute(grad_scale or 1))
        super()._take(grad_scale)


def _check(group: dict) -> None:
    """ValueError or TypeError for an option of Muon's that makes no sense."""
    if group["adjust_lr_fn"] not in (None, *ADJUSTMENTS):
        known = ", ".join(ADJUSTMENTS)
        raise ValueError(f"adjust_lr_fn is None or one of {known}, not {group['adjust_lr_fn']!r}")
    if not 0 <= float(group["momentum"]) < 1:
        raise ValueError(f"momentum is {group['momentum']}, and must be from 0 up to 1")
    coefficients = [*map(float, group["ns_coefficients"])]
    if len(coefficients) != 3 or not all(map(math.isfinite, coefficients)):
        raise ValueError(f"ns_coefficients are three numbers, not {group['ns_coefficients']}")
    if not isinstance(group["ns_steps"], int) or not 0 <= group["ns_steps"] < 100:
        raise ValueError(f"ns_steps is {group['ns_steps']}, and must be from 0 to 99")
    if not 0 < float(group["eps"]) < math.inf:
        raise ValueError(f"eps is {group['eps']}, and must be above 0 and finite")
    for parameter in group["params"]:
        if parameter.dim() not in (2, 3):
            raise ValueError(
                f"Muon updates matrices, of two or three dimensions, and a parameter has shape "
                f"{tuple(parameter.shape)}: leave it to AdamW (filter=)"
            )
