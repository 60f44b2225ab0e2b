"""What fuzz_parts does with an input: loads it and, if it is taken, uses it in every basic way."""

import io
import pickle
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import narrowcast as nc
from changes import FIELDS, TENSORS, has_memory
from narrowcast.tensor import rebuild

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "python" / "support"))

import reference  # noqa: E402  # of the tests, which are no package
from internals import store_of, tensors_of, view_of  # noqa: E402
from reference.layout import store_scales, stored_blocks  # noqa: E402

_FORMATS = {path.stem: reference.load_format(path) for path in (ROOT / "spec").glob("*.toml")}
_EXPECTED = (ValueError, TypeError, NotImplementedError)


class FailedInputError(Exception):
    """An input does what none may."""


class _Call:
    """Pickles as a call of rebuild."""

    def __init__(self, arguments):
        self.arguments = tuple(arguments)

    def __reduce__(self):
        return rebuild, self.arguments


def run(rng, arguments: list) -> bool:
    """Whether the input was taken. FailedInputError if it misbehaves."""
    from_file = rng.random() < 0.25 and _is_readable(arguments)
    try:
        tensor = _loaded(_saved(_Call(arguments))) if from_file else rebuild(*arguments)
    except _EXPECTED as error:
        if str(error).startswith(("saved ", "there is no format", "rebuild()")):
            return False
        raise FailedInputError(f"the message says nothing of the weight: {error!r}") from error
    _check_same(tensor, arguments)
    _check_parts(tensor, arguments)
    for use in (_decode, _look, _copy, _multiply, _load_into_a_module, _save, _step):
        _try(use, tensor, rng)
    return True


def _try(use, tensor, rng) -> None:
    try:
        use(tensor, rng)
    except _EXPECTED as error:
        if tensor.format.name not in str(error) and "on the meta device" not in str(error):
            raise FailedInputError(f"the message names no tensor: {error!r}") from error


def _saved(value) -> io.BytesIO:
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return file


def _loaded(file):
    return torch.load(file, weights_only=True)


def _is_readable(arguments) -> bool:
    """Whether torch itself saves and loads the arguments: what it refuses does not come to us, and
    some of what it cannot read ends the process.
    """
    listed = arguments[TENSORS] if len(arguments) > TENSORS else None
    for one in listed if isinstance(listed, (list, tuple)) else ():
        if type(one) is torch.Tensor and not has_memory(one):
            return False
    try:
        _loaded(_saved(tuple(arguments)))
    except (RuntimeError, ValueError, TypeError, AttributeError, OverflowError, AssertionError):
        return False
    except (NotImplementedError, pickle.PickleError, UnicodeError):
        return False
    return True


def _check_same(tensor, arguments) -> None:
    """The parts of a tensor that was taken are those that it came from."""
    _, again = tensor.__reduce_ex__(2)
    given = [*arguments, *(False, False, "dequantized")[len(arguments) - 8 :]]
    for field, old, new in zip(FIELDS, given, again, strict=True):
        if field != "tensors" and (old != new or (type(old), type(new)) == (bool, int)):
            raise FailedInputError(f"{field} was {old!r} and is {new!r}")
    for old, new in zip(given[TENSORS], again[TENSORS], strict=True):
        if (old is None) != (new is None):
            raise FailedInputError("a tensor came or went")
        # Empty tensors come as those of the shape.
        is_reshaped = old is not None and old.shape != new.shape and old.numel() != 0
        if old is not None and (is_reshaped or not _is_same(old, new)):
            raise FailedInputError(f"a tensor changed: {old} is {new}")


def _is_same(one: torch.Tensor, other: torch.Tensor) -> bool:
    if one.is_meta or other.is_meta:
        return one.is_meta and other.is_meta
    bits = torch.int32 if one.dtype == torch.float32 else one.dtype
    return torch.equal(*(tensor.reshape(-1).view(bits) for tensor in (one, other)))


def _check_parts(tensor, arguments) -> None:
    """They are plain tensors, each with memory of its own and amaxes that casts make, of a shape
    that nc.quantize takes.
    """
    for given in arguments[TENSORS]:
        if given is not None and (type(given) is not torch.Tensor or given.requires_grad):
            raise FailedInputError(f"a part is no plain tensor without a gradient: {type(given)}")
    for part in (tensor.amax, tensor.history):
        if part is not None and not part.is_meta and not (1 / part >= 0).all():  # nor is it -0
            raise FailedInputError("an amax or a multiplier is negative or NaN")
    if tensor.numel() and not tensor.is_flat:
        value = torch.empty(tensor.shape, device="meta")
        usages = {u: u in view_of(tensor).usages for u in ("rowwise", "columnwise")}
        nc.quantize(value, tensor.format, **usages)
    _check_apart([part for part in tensors_of(tensor) if part.numel() and not part.is_meta])


def _check_apart(parts: list[torch.Tensor]) -> None:
    """A change of one changes all of it, and no other."""
    bits = [part.view(torch.int32) if part.dtype == torch.float32 else part for part in parts]
    for changed in bits:
        expected = [~one if one is changed else one.clone() for one in bits]
        changed.bitwise_not_()
        if not all(map(torch.equal, bits, expected)):
            raise FailedInputError("a write to one part changes another")
        changed.bitwise_not_()


# ---- uses ----


def _decode(tensor, rng) -> None:
    """Values are those of the reference: bytes that somebody wrote."""
    for usage in ("rowwise", "columnwise"):
        if getattr(tensor, f"{usage}_data") is None:
            continue
        value = tensor.detach().dequantize(usage=usage)
        assert value.shape == tensor.shape
        fmt = _FORMATS.get(tensor.format.name)
        if fmt is None or tensor.is_meta or tensor.numel() == 0:
            continue
        names = (f"{usage}_data", f"{usage}_scale_inv", "amax")
        parts = {name: getattr(tensor, name) for name in names}
        arrays = {name: one if one is None else one.numpy() for name, one in parts.items()}
        matrix = store_of(tensor).rows, store_of(tensor).columns
        if not _is_decided(arrays[names[1]], fmt, matrix, usage):
            continue
        with np.errstate(all="ignore"):
            truth = reference.dequantize(_Arrays(arrays), fmt, matrix, usage).reshape(value.shape)
        if not np.array_equal(value.numpy(), truth, equal_nan=True):
            raise FailedInputError(f"the {usage} value is not that of its bytes")


def _is_decided(scales, fmt, matrix, usage) -> bool:
    """Whether scales that are repeated are the same, so that it does not matter which is read."""
    facts = getattr(fmt, usage)
    if facts.block == facts.per:
        return True
    stored = stored_blocks(scales, facts, matrix)
    return np.array_equal(store_scales(stored, facts, matrix), scales)


class _Arrays:
    def __init__(self, arrays: dict):
        self.__dict__.update(arrays)


def _look(tensor, rng) -> None:
    repr(tensor)
    tensor.detach().clone()
    tensor.detach().view(-1)
    if tensor.dim():
        tensor.detach()[rng.randint(0, len(tensor)) :]
    if tensor.dim() == 2:
        tensor.detach().t()


def _copy(tensor, rng) -> None:
    """Into a weight of its own kind, and into one of another."""
    for format in (tensor.format.name, "mxfp8_e4m3"):
        try:
            value = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
            target = nc.quantize(value, format, columnwise=tensor.columnwise_data is not None)
        except ValueError:  # that cannot hold the shape
            continue
        target.copy_(tensor.detach())


def _multiply(tensor, rng) -> None:
    if tensor.dim() == 2 and tensor.shape[1] < 2**16:  # of an empty one it may be anything
        x = torch.ones(32, tensor.shape[1], device=tensor.device, requires_grad=True)
        F.linear(x, tensor.detach().to(torch.float32)).sum().backward()


def _load_into_a_module(tensor, rng) -> None:
    module, other = nn.Module(), nn.Module()
    module.weight = nn.Parameter(tensor.detach())
    other.weight = nn.Parameter(tensor.detach().clone())
    other.load_state_dict(module.state_dict())


def _save(tensor, rng) -> None:
    file = _saved(tensor)
    _check_same(_loaded(file), list(tensor.__reduce_ex__(2)[1]))


def _step(tensor, rng) -> None:
    parameter = nn.Parameter(tensor.detach())
    optimizer = nc.FusedAdam([parameter], lr=1e-3)
    parameter.grad = torch.ones(parameter.shape, dtype=parameter.dtype)
    optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
