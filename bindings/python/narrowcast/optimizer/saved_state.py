"""What a state dict may bring to FusedAdam: names, shapes and dtypes are checked before anything of
the optimizer changes.
"""

from itertools import chain

import torch

from narrowcast.optimizer import parameters
from narrowcast.optimizer.state import MOMENTS
from narrowcast.tensor import QuantizedTensor, dtensors

DECOUPLED = "decoupled_weight_decay"  # what torch's AdamW calls adamw
_ORIGIN = "It must come from FusedAdam, or with of_adamw=True from torch.optim.AdamW or Adam"
_NO_MASTER = (
    "FusedAdam saves none of a float32 parameter, which is its own: load such a checkpoint into a "
    "model of float32, fully_shard it, and call nc.convert after that, which goes on with the state"
)


def matching(
    optimizer, state_dict, of_adamw: bool
) -> tuple[list[tuple[torch.Tensor, str, dict]], list[torch.Tensor]]:
    """Pairs of parameters with their names and saved state; and the parameters without any, which
    begin anew. ValueError if groups or parameters do not match, or if it is AdamW's state, masters
    are needed and `of_adamw` is False. TypeError if it is no state dict.
    """
    check_type("the state dict", state_dict, dict)
    for key, *kinds in (("state", dict), ("param_groups", list, tuple)):
        if key not in state_dict:
            raise ValueError(f"the state dict has no {key!r}, only {sorted(map(str, state_dict))}")
        check_type(f"{key!r} of the state dict", state_dict[key], *kinds)
    saved_groups = state_dict["param_groups"]
    for index, group in enumerate(saved_groups):
        check_type(f"group {index} of the state dict", group, dict)
        check_type(f"'params' of group {index} of the state dict", group.get("params"), list, tuple)
        for key in group["params"]:
            check_type(f"a parameter of group {index} of the state dict", key, int, str)
    sizes = [len(group["params"]) for group in optimizer.param_groups]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"the state dict has groups of {saved_sizes} parameters, the optimizer of {sizes}"
        )
    _check_names(optimizer.param_groups, saved_groups)
    keys = chain.from_iterable(group["params"] for group in saved_groups)
    named = [*parameters.named(optimizer.param_groups)]
    if not of_adamw and any(_has_master(parameter) for _, parameter, _ in named):
        _check_not_adamw(state_dict)
    may_lack = of_adamw or not state_dict["state"]
    pairs, without = [], []
    for key, (_, parameter, name) in zip(keys, named, strict=True):
        saved = state_dict["state"].get(key)
        if saved is not None and saved != {}:
            pairs.append((parameter, name, saved))
        elif optimizer.state.get(parameter) and parameter.requires_grad and not may_lack:
            raise ValueError(
                f"the state dict has no state for {name}, and the optimizer has some: load it into "
                "a new optimizer, where such a parameter begins anew"
            )
        elif parameter.requires_grad:  # get_optimizer_state_dict leaves frozen parameters out
            without.append(parameter)
    return pairs, without


def _check_not_adamw(state_dict: dict) -> None:
    """ValueError if torch's AdamW or Adam has saved it, perhaps after it loaded one of FusedAdam's:
    it keeps the masters of that, which are no longer the weights'.
    """
    if any(DECOUPLED in group for group in state_dict["param_groups"]):
        raise ValueError(
            "the state dict is one of torch.optim.AdamW or Adam, which have no masters: "
            "load_state_dict(state_dict, of_adamw=True) takes its moments, steps and options, and "
            "leaves the masters as they are. For torch.distributed.checkpoint see "
            "docs/checkpoints.md"
        )


def _has_master(parameter: torch.Tensor) -> bool:
    """Whether its master is not the parameter itself."""
    is_quantized = isinstance(dtensors.local_of(parameter), QuantizedTensor)
    return is_quantized or parameter.dtype != torch.float32


def _check_names(groups: list[dict], saved_groups) -> None:
    """ValueError if both say how parameters are called, and they are the same in another order:
    masters would go to other weights of the same shape. torch compares no names, for a wrapper
    may have changed them.
    """
    for index, (group, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        own, theirs = (list(one.get("param_names") or []) for one in (group, saved))
        if own != theirs and sorted(own) == sorted(map(str, theirs)):
            place, here, there = next(
                (at, *pair)
                for at, pair in enumerate(zip(own, theirs, strict=True))
                if pair[0] != pair[1]
            )
            raise ValueError(
                f"group {index} of the state dict has the optimizer's parameters in another order: "
                f"number {place} is {there!r} there and {here!r} here. Make the optimizer from the "
                "parameters in the order of the saved one"
            )


def check(state: dict, saved: dict, name: str) -> None:
    """ValueError or TypeError unless a parameter's state can be that which was saved."""
    for key, value in state.items():
        if key not in saved:
            raise ValueError(
                f"{name}: the state dict has no {key!r}, only {sorted(map(str, saved))}. "
                + (_NO_MASTER if key == "master" else _ORIGIN)
            )
        if key == "step":
            _check_step(saved[key], name)
        else:
            _check_tensor(key, value, saved[key], name)


def check_type(what: str, value, *types: type) -> None:
    """TypeError unless a value is of one of some types."""
    if not isinstance(value, types):
        wanted = " or ".join(one.__name__ for one in types)
        raise TypeError(f"{what} is of type {type(value).__name__}, not {wanted}")


def _check_tensor(key: str, value: torch.Tensor, other, name: str) -> None:
    if not isinstance(other, torch.Tensor):
        raise TypeError(f"{name}: {key} is a {type(other).__name__} in the state dict")
    if other.is_meta:
        raise ValueError(f"{name}: {key} is on the meta device in the state dict: it has no value")
    if isinstance(value, dtensors.DTensor) != isinstance(other, dtensors.DTensor):
        raise ValueError(
            f"{name}: {key} is a {type(other).__name__} in the state dict and a "
            f"{type(value).__name__} in the optimizer. "
            "torch.distributed.checkpoint.state_dict.set_optimizer_state_dict distributes a "
            "full state dict"
        )
    if isinstance(dtensors.local_of(other), QuantizedTensor):
        raise TypeError(f"{name}: {key} is a QuantizedTensor in the state dict: dequantize() it")
    if tuple(other.shape) != tuple(value.shape):
        raise ValueError(
            f"{name}: {key} has shape {tuple(other.shape)} in the state dict, "
            f"{tuple(value.shape)} in the optimizer"
        )
    if other.dtype == value.dtype:
        return
    if key not in MOMENTS:
        raise ValueError(f"{name}: {key} is {other.dtype} in the state dict, not {value.dtype}")
    if other.dtype not in (torch.bfloat16, torch.float32):
        raise ValueError(
            f"{name}: {key} is {other.dtype} in the state dict, and moments are float32 or bfloat16"
        )
    if value.dtype != torch.float32:
        raise ValueError(
            f"{name}: {key} is {other.dtype} in the state dict and {value.dtype} in the "
            f"optimizer, which would round it. Make the optimizer with state_dtype={other.dtype}"
        )


def _check_step(step, name: str) -> None:
    check_type(f"{name}: step in the state dict", step, int, float, torch.Tensor)
    if isinstance(step, torch.Tensor) and (step.is_meta or step.dim() or step.is_complex()):
        raise ValueError(
            f"{name}: step has shape {tuple(step.shape)} and {step.dtype} on {step.device} in the "
            "state dict; it is one real number"
        )
    if not (0 <= float(step) < 2**63 and float(step).is_integer()):
        raise ValueError(
            f"{name}: step is {float(step)} in the state dict; steps are counted from 0 to 2^63"
        )
