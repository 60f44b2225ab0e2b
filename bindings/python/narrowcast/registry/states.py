"""State formats: how an optimizer keeps its state in eight bits. They come with the library."""

import dataclasses
import functools

import torch

from narrowcast import _C

# Added ahead of the root, because a GPU's root of 0 without a branch is NaN; its code is 0.
_LEAST = 2.0**-24


@dataclasses.dataclass(frozen=True)
class StateFormat:
    """What follows from a spec of kind "state". Codes are of a value's root, under one float32
    scale for `block` elements of a row. `roots`: of a state of both signs, and of a state that is
    never negative. Formulas: docs/numerics.md, "State formats".
    """

    name: str
    summary: str
    reference: str
    block: int
    roots: tuple[int, int]

    @property
    def bits_per_element(self) -> float:
        return 8 + 32 / self.block

    def holds(self, shape: tuple[int, ...]) -> bool:
        """Whether a tensor of this whole shape has its state in the format: not with one dimension
        or none, nor if its rows are shorter than a block.
        """
        return len(shape) >= 2 and shape[-1] >= self.block

    def scale_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the scales of a tensor, or of its part."""
        return (*shape[:-1], -(-shape[-1] // self.block))

    def encode(self, values: torch.Tensor, nonnegative: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes (uint8, of the shape of `values`, which are float32) and scales."""
        root, most = self._code(nonnegative)
        shape = self.scale_shape(values.shape)
        missing = shape[-1] * self.block - values.shape[-1]
        blocks = torch.nn.functional.pad(values, (0, missing)).unflatten(-1, (shape[-1], -1))
        # In order of their bits, as the kernels have it: a NaN is the largest.
        amax = blocks.abs().contiguous().view(torch.int32).amax(-1).view(torch.float32)
        share = torch.tensor(1.0, device=amax.device) / float(most**root)
        scale = torch.where(amax.isfinite(), amax * share, torch.nan)
        scale = torch.where(scale < torch.finfo(torch.float32).tiny, 0.0, scale)
        multiplier = torch.where(scale > 0, 1 / scale, 0.0).unsqueeze(-1)
        whole = _fused(blocks.abs(), multiplier, _LEAST)
        for _ in range(root.bit_length() - 1):
            whole = whole.sqrt()
        number = whole.nan_to_num(0).round().to(torch.int32)
        number = torch.where((blocks < 0) & (not nonnegative), -number, number)
        codes = torch.where(whole.isnan(), 255, number).to(torch.uint8)
        return codes.flatten(-2)[..., : values.shape[-1]].contiguous(), scale

    def decode(self, codes: torch.Tensor, scales: torch.Tensor, nonnegative: bool) -> torch.Tensor:
        """The values, float32."""
        root, _ = self._code(nonnegative)
        whole = (codes if nonnegative else codes.view(torch.int8)).to(torch.float32)
        for _ in range(root.bit_length() - 1):
            whole = whole * whole.abs()
        return whole * scales.repeat_interleave(self.block, -1)[..., : codes.shape[-1]]

    def _code(self, nonnegative: bool) -> tuple[int, int]:
        """The root, and the largest whole number."""
        return self.roots[nonnegative], 255 if nonnegative else 127


def _fused(a: torch.Tensor, b: torch.Tensor, c: float) -> torch.Tensor:
    """a * b + c, of float32, rounded once: in float64 the product is exact, and the sum is rounded
    to odd, which a second rounding does not see. Of c above a * b no bit counts here.
    """
    product = a.double() * b.double()
    total = product + c
    lost = c - (total - product)
    is_even = total.view(torch.int64) % 2 == 0
    beside = torch.nextafter(total, lost.sign() * torch.inf)
    return torch.where((lost != 0) & is_even, beside, total).float()


@functools.cache
def _known() -> dict[str, StateFormat]:
    return {facts[0]: StateFormat(*facts) for facts in _C.state_formats()}


def state_formats() -> list[str]:
    """The names of all state formats, for the `state_dtype` of nc.optim's classes."""
    return sorted(_known())


def state_format(name: str) -> StateFormat:
    """A state format by its name. ValueError if there is none."""
    if name in _known():
        return _known()[name]
    raise ValueError(
        f"there is no state format {name!r}: narrowcast was built with {', '.join(state_formats())}"
    )
