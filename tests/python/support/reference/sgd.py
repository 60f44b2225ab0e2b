"""docs/numerics.md, "SGD"."""

import numpy as np

from reference.adam import fma
from reference.floats import round_to_bf16


def sgd(
    p,
    m,
    g,
    *,
    t,
    lr=1e-3,
    momentum=0.0,
    dampening=0.0,
    weight_decay=0.0,
    nesterov=False,
    decoupled_weight_decay=False,
    grad_scale=None,
    bf16_state=False,
):
    """One update of fp32 arrays, t counting from 1: the new (p, m), all as fp32."""
    c = np.float32(1 if t == 1 else 1 - dampening)
    b, lr, wd = (np.float32(x) for x in (momentum, lr, weight_decay))
    p, m, g = (np.asarray(x, np.float32) for x in (p, m, g))
    with np.errstate(all="ignore"):
        if grad_scale is not None:
            g = g * np.float32(1.0 / float(np.float32(grad_scale)))
        if not decoupled_weight_decay:
            g = fma(wd, p, g)
        m = fma(b, m, c * g)
        u = fma(b, m, g) if nesterov else m
        p = fma(-lr, fma(wd, p, u) if decoupled_weight_decay else u, p)
    return p, round_to_bf16(m) if bf16_state else m
