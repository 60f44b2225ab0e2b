"""The reference's delayed scaling against docs/numerics.md, "Delayed scaling"."""

import numpy as np
import pytest

import facts
import reference
from reference.floats import FLT_MAX
from reference.formats import format_from

DELAYED = format_from(facts.spec("fp8_e4m3_delayed"))
CURRENT = format_from(facts.spec("fp8_e4m3"))


def multiplier(amax):
    return min(np.float32(448) / np.float32(amax), FLT_MAX)


def matrix(amax):
    return np.array([[amax, -amax / 3], [0, amax / 7]], np.float32)


def run(amaxes):
    """A history that has cast matrices of those amaxes."""
    history = reference.Delayed(DELAYED)
    for amax in amaxes:
        history.cast(matrix(amax))
    return history


def test_the_first_cast_is_that_of_current_scaling():
    x = matrix(0.02)
    history = reference.Delayed(DELAYED)
    q, expected = history.cast(x), reference.quantize(x, CURRENT)
    assert np.array_equal(q.rowwise_data, expected.rowwise_data)
    assert q.rowwise_scale_inv == expected.rowwise_scale_inv
    assert q.tensor_amax == expected.tensor_amax
    assert history.present == history.next == multiplier(0.02)


def test_growing_and_shrinking():
    """A cast lags one step behind; what it cannot hold saturates."""
    history = run([1])
    q = history.cast(matrix(4))
    assert history.present == multiplier(1)
    assert q.tensor_amax == 4
    assert q.rowwise_data[0, 0] == 0x7E
    assert q.rowwise_scale_inv == np.float32(1) / multiplier(1)
    assert history.next == multiplier(4)
    history.cast(matrix(0.5))
    assert history.present == history.next == multiplier(4)


@pytest.mark.parametrize(("steps", "largest"), [(1, 9), (2, 9), (1024, 9), (1025, 1)])
def test_the_window_is_1024_long(steps, largest):
    assert run([9] + [1] * (steps - 1)).next == multiplier(largest)


def test_infinity_freezes_the_multiplier_until_it_leaves():
    history = run([2, np.inf])
    assert history.next == multiplier(2)
    for _ in range(1022):
        history.cast(matrix(8))
    assert history.next == multiplier(2)
    history.cast(matrix(8))  # the 2 left before; the infinity is the oldest
    assert history.next == multiplier(2)
    history.cast(matrix(8))
    assert history.next == multiplier(8)


def test_zeros_tell_nothing():
    history = run([0])
    assert history.present == history.next == 1
    assert run([0, 0, 3]).next == multiplier(3)
    assert run([3, 0, 0]).next == multiplier(3)
    assert run([np.nan]).next == 1  # a NaN counts for no amax


def test_a_loaded_state_casts_as_before_and_remembers_nothing():
    history = run([1, 4])
    x = matrix(4)
    before, kept = list(history.amaxes), history.next
    assert history.again(x).rowwise_scale_inv == np.float32(1) / multiplier(1)
    assert (list(history.amaxes), history.next) == (before, kept)


def test_tiny_amaxes():
    assert run([1e-40]).next == FLT_MAX
