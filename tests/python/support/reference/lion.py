"""docs/numerics.md, "Lion"."""

import numpy as np

from reference.adam import fma
from reference.floats import round_to_bf16


def lion(
    p, m, g, *, t, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0, grad_scale=None, bf16_state=False
):
    """One update of fp32 arrays: the new (p, m), all as fp32. No constant depends on t."""
    c1, c2 = (np.float32(1 - beta) for beta in betas)
    b1, b2, lr, wd = (np.float32(x) for x in (*betas, lr, weight_decay))
    p, m, g = (np.asarray(x, np.float32) for x in (p, m, g))
    with np.errstate(all="ignore"):
        if grad_scale is not None:
            g = g * np.float32(1.0 / float(np.float32(grad_scale)))
        d = fma(b1, m, c1 * g)
        u = np.where(d > 0, np.float32(1), np.where(d < 0, np.float32(-1), d))
        m = fma(b2, m, c2 * g)
        p = fma(-lr, fma(wd, p, u), p)
    return p, round_to_bf16(m) if bf16_state else m
