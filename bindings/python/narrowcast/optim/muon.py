"""Muon, for matrices, with AdamW for all else."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch

from narrowcast.muon import Directions, Matrix
from narrowcast.muon.matrices import ADJUSTMENTS, Split
from narrowcast.optim.adam import Adam
from narrowcast.optimizer import FusedOptimizer, parameters

_ADAMW = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
_MUONS = ("momentum", "nesterov", "ns_coefficients", "ns_steps", "adjust_lr_fn")


class Muon(FusedOptimizer):
    """torch.optim.Muon, with the new values and the bytes of quantized weights made in one pass
    over memory, and AdamW for the parameters that are not its own.

    lr, weight_decay, momentum, nesterov, ns_coefficients, eps, ns_steps, adjust_lr_fn
                  as torch's
    filter        filter(name, parameter): whether Muon updates a parameter; by default each of two
                  or three dimensions. A parameter has a name if named parameters are given, or if
                  nc.convert has given it one, else ""
    split         split(name, parameter): the rows of each part of a matrix that is several, as of
                  a fused projection for queries, keys and values, or a number of equal parts; None
                  if it is one. Each part is orthogonalized alone, and has its own adjustment
    adamw         the options of AdamW: lr, betas, eps, weight_decay; by default nc.optim.AdamW's
    state_dtype   torch.float32 or torch.bfloat16
    rounding, seed
                  narrowcast.optimizer.FusedOptimizer's, where all else is told

    A parameter of three dimensions is a batch of matrices. A group that has "algorithm", "muon" or
    "adamw", is that rule's, whatever the filter says, with its options; every other group is parted
    in two, of which the first has the group's options and the second those of `adamw`.

    Under fully_shard momenta lie in row shards. A step sends every matrix to one rank, which
    orthogonalizes it: an all-to-all in bfloat16 there, and one back. So step() is collective.
    Results do not depend on the number of ranks. The iterations are bfloat16, as torch's.

    NotImplementedError: matrices that are cut otherwise than in rows by one dimension of a mesh
    (column-wise, or by tensor parallelism too), and flat shards. ValueError: a parameter of another
    number of dimensions in a group of "muon"; a split that does not fit.
    """

    rule = "muon"
    takes_flat_shards = False

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
        for one in self._parted(param_group):
            super().add_param_group(one)
            group = self.param_groups[-1]
            for key in _MUONS if group["algorithm"] == "adamw" else ():
                del group[key]

    def _parted(self, group: dict) -> list[dict]:
        algorithm, given = group.get("algorithm"), group["params"]
        if algorithm not in (None, "muon", "adamw"):
            raise ValueError(f'algorithm is "muon" or "adamw", not {algorithm!r}')
        if algorithm == "adamw":
            return [{**self._adamw, **group}]
        if isinstance(given, torch.Tensor):
            given = [given]
        elif isinstance(given, Iterable) and not isinstance(given, set):
            given = [*given]
        else:
            return [{**group, "algorithm": "muon"}]  # an error of torch's
        own, others = [], []
        for one in given:
            is_own = algorithm == "muon" or self._is_own(*_named(one))
            (own if is_own else others).append(one)
        groups = [{**group, "algorithm": "muon", "params": own}] if own or not others else []
        if others:
            kept = {key: group[key] for key in ("rounding", "seed") if key in group}
            groups.append({**self._adamw, **kept, "algorithm": "adamw", "params": others})
        return groups

    def _is_own(self, name: str, parameter: torch.Tensor) -> bool:
        is_matrix = parameter.dim() in (2, 3)
        return is_matrix if self._filter is None else bool(self._filter(name, parameter))

    def __getstate__(self):
        own = {key: getattr(self, key) for key in ("_filter", "_split", "_adamw")}
        return {**super().__getstate__(), **own}

    def _rebuild(self) -> None:
        super()._rebuild()
        self._matrices = [
            Matrix(entry, self.param_groups[entry.group], self._split)
            for entry in parameters.entries(self)
            if entry.rule == self.rule
        ]
        self._directions, self._directed = None, None

    def _take(self) -> None:
        present = [one for one in self._matrices if one.entry.parameter.grad is not None]
        if present:
            if self._directed != present:
                self._directions, self._directed = Directions(present), present
            self._tables.replace_gradients(self._directions.compute(self._grad_scale or 1))
        super()._take()


def _named(given) -> tuple[str, torch.Tensor]:
    """A parameter of a group, with its name."""
    if isinstance(given, tuple) and len(given) == 2:
        return given
    is_tensor = isinstance(given, torch.Tensor)  # of anything else torch says what is wrong
    return ((parameters.label_of(given) or "") if is_tensor else ""), given


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
