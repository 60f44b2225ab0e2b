"""The reference's fma, Adam and Philox, against exact fractions and golden values."""

from fractions import Fraction

import numpy as np
import pytest

import reference
from reference.floats import FLT_MAX, bits, from_bits


def nearest_fp32(exact):
    """A fraction rounded to fp32, to nearest, ties to even, in integers alone."""
    sign, magnitude = (-1 if exact < 0 else 1), abs(exact)
    if magnitude == 0:
        return 0.0
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    while Fraction(2) ** exponent > magnitude:
        exponent -= 1
    while Fraction(2) ** (exponent + 1) <= magnitude:
        exponent += 1
    unit = Fraction(2) ** (max(exponent, -126) - 23)
    rounded = round(magnitude / unit) * unit  # Python rounds ties of fractions to even
    return sign * (float(rounded) if rounded <= Fraction(float(FLT_MAX)) else float("inf"))


def hard_triples(count, seed):
    """fp32 triples whose result lies near a tie, decided by what float64 cannot see."""
    rng = np.random.default_rng(seed)

    def significands(bits):
        return 1 + rng.integers(0, 1 << bits, count) * 2.0**-bits

    def signs():
        return rng.choice([-1.0, 1.0], count)

    # An addend up to 60 binades away leaves a long run of zeros or ones below the last bit.
    a, b = significands(23) * 2.0 ** rng.integers(-20, 20, count), significands(23)
    far = (a, b, a * b * 2.0 ** rng.integers(-60, 60, count) * signs())
    # The addend cancels all but the error of the product.
    cancelling = (a, b, -(a * b).astype(np.float32).astype(np.float64))
    # (1 + i/2^12)(1 + j/2^12) with i and j odd is a tie of fp32; the addend breaks it.
    i, j = (1 + (2 * rng.integers(0, 400, count) + 1) * 2.0**-12 for _ in range(2))
    broken = (i, j, signs() * 2.0 ** rng.integers(-90, -30, count))
    # The product is half an ulp of the addend, less a part of 2^-46.
    nearly = (
        np.full(count, 2.0**-24 * (1 + 2.0**-23)),
        np.full(count, 1 - 2.0**-23),
        significands(23),
    )
    return tuple(
        np.concatenate(column).astype(np.float32)
        for column in zip(far, cancelling, broken, nearly, strict=True)
    )


@pytest.mark.parametrize("kind", ["hard", "bits", "subnormal"])
def test_fma_is_exact(kind):
    rng = np.random.default_rng(8)
    if kind == "hard":
        a, b, c = hard_triples(2000, 9)
    else:
        a, b, c = (from_bits(rng.integers(0, 1 << 32, 6000, dtype=np.uint32)) for _ in range(3))
        if kind == "subnormal":  # results among the subnormals, where fp32 has fewer bits
            a, b, c = (from_bits(bits(x) & 0x9FFFFFFF | 0x10000000) for x in (a, b, c))
            c = from_bits(bits(c) & 0x80FFFFFF)
    finite = np.isfinite(a) & np.isfinite(b) & np.isfinite(c)
    a, b, c = a[finite], b[finite], c[finite]
    assert len(a) > 1000
    got = reference.fma(a, b, c)
    for i in range(len(a)):
        exact = Fraction(float(a[i])) * Fraction(float(b[i])) + Fraction(float(c[i]))
        assert float(got[i]) == nearest_fp32(exact), (a[i], b[i], c[i])


def test_fma_differs_from_rounding_twice():
    a, b, c = hard_triples(2000, 9)
    twice = (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    assert np.count_nonzero(bits(twice) != bits(reference.fma(a, b, c))) > 0


def test_fma_of_specials():
    inf, nan = np.float32(np.inf), np.float32(np.nan)
    assert reference.fma(inf, np.float32(1), np.float32(0)) == inf
    assert np.isnan(reference.fma(inf, np.float32(0), np.float32(0)))
    assert np.isnan(reference.fma(nan, np.float32(1), np.float32(1)))
    assert np.signbit(reference.fma(np.float32(-0.0), np.float32(1), np.float32(-0.0)))


AT_7 = {"t": 7, "betas": (0.9, 0.95)}
COUPLED = {"decoupled_weight_decay": False}


@pytest.mark.parametrize(
    ("state", "options", "expected"),
    [
        ((0.02, 0.001, 1e-6), AT_7, (0x3C9B13B3, 0x3A9D4952, 0x35BBE7A2)),
        ((0.02, 0.001, 1e-6), AT_7 | COUPLED, (0x3C9BB31D, 0x3AB78035, 0x3613A3B7)),
        ((0.02, 0.0, 0.0), {"t": 1, "betas": (0.9, 0.999)}, (0x3C9BA1B3, 0x399D4952, 0x321A9E6C)),
    ],
)
def test_golden_adam(state, options, expected):
    numbers = (np.array([x], np.float32) for x in (*state, 0.003))
    got = reference.adam(*numbers, weight_decay=0.1, **options)
    assert tuple(int(bits(x)[0]) for x in got) == expected


def adam_float64(p, m, v, g, t, betas, adamw, lr=1e-3, eps=1e-8, wd=0.1):
    """The textbook's Adam in float64, with the fp32 values of the constants."""
    g = g if adamw else g + wd * p
    m, v = betas[0] * m + (1 - betas[0]) * g, betas[1] * v + (1 - betas[1]) * g * g
    u = m / (1 - betas[0] ** t) / (np.sqrt(v / (1 - betas[1] ** t)) + eps)
    return p - lr * (u + wd * p if adamw else u), m, v


@pytest.mark.parametrize("adamw", [True, False])
@pytest.mark.parametrize("betas", [(0.9, 0.95), (0.9, 0.999)])
def test_a_hundred_steps_stay_near_float64(adamw, betas):
    rng = np.random.default_rng(10)
    p = (rng.normal(size=4096) * 0.02).astype(np.float32)
    ours, exact = (
        (p, np.zeros_like(p), np.zeros_like(p)),
        (p.astype(np.float64), np.zeros(4096), np.zeros(4096)),
    )
    for t in range(1, 101):
        g = reference.round_to_bf16((rng.normal(size=4096) * 0.01).astype(np.float32))
        ours = reference.adam(
            *ours, g, t=t, betas=betas, weight_decay=0.1, decoupled_weight_decay=adamw
        )
        exact = adam_float64(*exact, g.astype(np.float64), t, betas, adamw)
    assert np.abs(ours[0] - exact[0]).max() < 1e-7
    assert 0.01 < np.abs(ours[0] - p).max() < 0.2


def test_zero_over_zero_and_scaled_gradients():
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)
    assert np.isnan(reference.adam(one, zero, zero, zero, t=1, eps=0)[0])[0]
    scaled = reference.adam(one, zero, zero, one * 65536, t=1, grad_scale=65536)
    plain = reference.adam(one, zero, zero, one, t=1)
    assert all(reference.same_bits(a, b) for a, b in zip(scaled, plain, strict=True))


def test_philox_known_answers():
    zero, ones = np.zeros(1, np.uint32), np.full(1, 0xFFFFFFFF, np.uint32)
    hexes = [f"{int(w[0]):08x}" for w in reference.philox([zero] * 4, (0, 0))]
    assert hexes == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    hexes = [f"{int(w[0]):08x}" for w in reference.philox([ones] * 4, (0xFFFFFFFF, 0xFFFFFFFF))]
    assert hexes == ["408f276d", "41c83b0e", "a20bc7c6", "6d5451fd"]


def test_golden_random_words():
    hexes = [f"{int(w):08x}" for w in reference.random_words(1, 2, np.arange(8))]
    assert hexes == [
        "e73404cf",
        "8cedc5d3",
        "3f071736",
        "0a0afddd",
        "b7b4c173",
        "db04b052",
        "44541f91",
        "0e0b3cf3",
    ]
    assert reference.random_words(0x123456789ABCDEF0, 7, np.array([2**34 + 1])) == 0xA53519AC


def test_golden_stochastic_codes():
    y = np.array([0.3, 0.3, 0.3, 0.3, -0.3, -0.3, 2.5, 2.5], np.float32)
    codes = reference.ELEMENTS["e2m1"].encode_stochastic(
        y, reference.random_words(1, 2, np.arange(8))
    )
    assert codes.tolist() == [0, 1, 1, 1, 8, 8, 5, 5]


@pytest.mark.parametrize("name", reference.ELEMENTS)
def test_stochastic_rounding_meets_neighbours_alone_and_the_mean(name):
    element = reference.ELEMENTS[name]
    exact = element.values[np.isfinite(element.values)]
    words = reference.random_words(3, 1, np.arange(len(exact)))
    exact_codes = element.encode_stochastic(exact, words)
    assert reference.same_bits(
        np.abs(element.decode(exact_codes)), np.minimum(np.abs(exact), element.max)
    )
    y = np.full(100_000, (element.magnitudes[3] * 3 + element.magnitudes[4]) / 4, np.float32)
    values = element.decode(
        element.encode_stochastic(y, reference.random_words(4, 1, np.arange(y.size)))
    )
    assert set(values.tolist()) == set(element.magnitudes[3:5].tolist())
    sigma = (element.magnitudes[4] - element.magnitudes[3]) * np.sqrt(3 / 16 / y.size)
    assert abs(values.mean(dtype=np.float64) - y[0]) < 5 * sigma
    special = np.array([np.nan, np.inf, -np.inf, element.max], np.float32)
    assert np.array_equal(element.encode_stochastic(special, words[:4]), element.encode(special))
