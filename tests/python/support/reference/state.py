"""docs/numerics.md, "State formats": an optimizer's state in eight bits."""

from dataclasses import dataclass

import numpy as np

from reference.adam import fma
from reference.formats import tomllib

TINY = np.float32(2.0**-126)
LEAST = np.float32(2.0**-24)


@dataclass(frozen=True)
class StateFormat:
    """What a spec of kind "state" says. `roots`: of a state of both signs, of a nonnegative one."""

    block: int
    roots: tuple[int, int]

    def holds(self, shape):
        return len(shape) >= 2 and shape[-1] >= self.block

    def encode(self, x, nonnegative):
        """Codes, uint8, and a scale for each block of a row; the last one may be short."""
        root, most = self.roots[nonnegative], 255 if nonnegative else 127
        x = np.asarray(x, np.float32)
        codes, scales = np.empty(x.shape, np.uint8), []
        with np.errstate(all="ignore"):
            for begin in range(0, x.shape[-1], self.block):
                part = x[..., begin : begin + self.block]
                amax = np.abs(part).max(-1)  # NaN if there is one
                scale = amax * (np.float32(1) / np.float32(most**root))
                scale = np.where(np.isfinite(amax), scale, np.float32(np.nan))
                scale = np.where(scale < TINY, np.float32(0), scale)
                inverse = np.where(scale > 0, np.float32(1) / scale, np.float32(0))
                whole = fma(np.abs(part), inverse[..., None], LEAST)
                for _ in range({1: 0, 2: 1, 4: 2}[root]):
                    whole = np.sqrt(whole)
                number = np.rint(np.where(np.isnan(whole), 0, whole)).astype(np.int64)
                signed = np.where((part < 0) & (not nonnegative), -number, number)
                signed = np.where(np.isnan(whole), 255, signed)
                codes[..., begin : begin + self.block] = signed.astype(np.uint8)
                scales.append(scale)
        return codes, np.stack(scales, -1).astype(np.float32)

    def decode(self, codes, scales, nonnegative):
        whole = (codes if nonnegative else codes.view(np.int8)).astype(np.float32)
        for _ in range({1: 0, 2: 1, 4: 2}[self.roots[nonnegative]]):
            whole = whole * np.abs(whole)
        with np.errstate(invalid="ignore"):
            return whole * np.repeat(scales, self.block, -1)[..., : codes.shape[-1]]


def load_state_format(path):
    spec = tomllib.loads(path.read_text(encoding="utf-8"))
    assert spec["kind"] == "state"
    return StateFormat(spec["block"], (spec["signed"]["root"], spec["nonnegative"]["root"]))
