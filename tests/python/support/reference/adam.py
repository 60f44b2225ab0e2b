"""Adam, bit for bit: every line is one fp32 operation or an explicit fma."""

import numpy as np

from reference.floats import round_to_bf16


def fma(a, b, c):
    """a * b + c of fp32 values, rounded once.

    The product is exact in float64. The sum is rounded to odd there (its last bit is set if
    anything was lost), which makes the second rounding, to fp32, the only one that counts: 53 bits
    are more than 24 + 2 (Boldo and Melquiond, 2008).
    """
    with np.errstate(all="ignore"):
        product = np.asarray(a, np.float64) * np.asarray(b, np.float64)
        addend = np.asarray(c, np.float64)
        product, addend = np.broadcast_arrays(product, addend)
        total = product + addend
        # What the sum lost, exactly (Knuth's two-sum).
        part = total - product
        lost = (product - (total - part)) + (addend - part)
        inexact = np.isfinite(total) & (lost != 0)
        word = np.array(total).view(np.int64)
        to_odd = inexact & (word % 2 == 0)
        outwards = (lost > 0) == (total > 0)
        word = word + np.where(to_odd, np.where(outwards, 1, -1), 0)
        return word.view(np.float64).astype(np.float32)


def power(b, t):
    """b^t in float64, by squaring, low bit first."""
    p = 1.0
    while t:
        if t & 1:
            p *= b
        b *= b
        t >>= 1
    return p


def bias_constants(betas, t):
    """float64, then narrowed: (1 - b1, 1 - b2, 1 / (1 - b1^t), 1 / (1 - b2^t))."""
    b1, b2 = betas
    constants = (1 - b1, 1 - b2, 1 / (1 - power(b1, t)), 1 / (1 - power(b2, t)))
    return tuple(np.float32(x) for x in constants)


def adam(
    p,
    m,
    v,
    g,
    *,
    t,
    lr=1e-3,
    betas=(0.9, 0.999),
    eps=1e-8,
    weight_decay=0.0,
    decoupled_weight_decay=True,
    bias_correction=True,
    grad_scale=None,
    bf16_state=False,
):
    """One update of fp32 arrays, t counting from 1: the new (p, m, v), all as fp32. The defaults
    are nc.FusedAdam's.
    """
    c1, c2, r1, r2 = bias_constants(betas, t)
    if not bias_correction:
        r1 = r2 = np.float32(1)
    b1, b2, lr, eps, wd = (np.float32(x) for x in (*betas, lr, eps, weight_decay))
    p, m, v, g = (np.asarray(x, np.float32) for x in (p, m, v, g))
    with np.errstate(all="ignore"):
        if grad_scale is not None:
            g = g * np.float32(1.0 / float(np.float32(grad_scale)))
        if not decoupled_weight_decay:
            g = fma(wd, p, g)
        m = fma(b1, m, c1 * g)
        v = fma(b2, v, (c2 * g) * g)
        d = np.sqrt(v * r2) + eps
        u = (m * r1) / d
        p = fma(-lr, fma(wd, p, u) if decoupled_weight_decay else u, p)
    if bf16_state:
        m, v = round_to_bf16(m), round_to_bf16(v)
    return p, m, v
