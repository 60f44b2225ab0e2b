"""Threads that step one optimizer at once: steps are taken as if one thread had called them all."""

import threading

import pytest
import torch

import narrowcast as nc
from models import Model, assert_quantized, one_of_each, same

TESTED_FORMATS = one_of_each(lambda f: (f.gather, f.tensor_amax, f.amax))
THREADS, STEPS = 4, 25


def build(format, device, **options):
    torch.manual_seed(0)
    model = nc.convert(Model(64), format).to(device)
    for number, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, 0.01 * (number + 1), dtype=torch.float32)
    return model, nc.FusedAdam(model.parameters(), lr=1e-3, **options)


@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_threads(format, device, rounding):
    model, optimizer = build(format, device, rounding=rounding)
    expected, one_after_another = build(format, device, rounding=rounding)
    errors, begin = [], threading.Barrier(THREADS)

    def work():
        try:
            begin.wait()
            for _ in range(STEPS):
                optimizer.step()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for _ in range(THREADS * STEPS):
        one_after_another.step()
    for (name, p), q in zip(model.named_parameters(), expected.parameters(), strict=True):
        state, truth = optimizer.state[p], one_after_another.state[q]
        assert float(state["step"]) == THREADS * STEPS
        for key in ("master", "exp_avg", "exp_avg_sq", "history"):
            assert same(state.get(key), truth.get(key)), (name, key)
        if isinstance(p, nc.QuantizedTensor):
            assert same(p.dequantize(), q.dequantize()), name
            if rounding == "nearest":
                assert_quantized(p.detach().cpu(), p.master.cpu(), name)


def test_threads_that_change_groups(format, device):
    """One thread steps while another replaces state and learning rates."""
    model, optimizer = build(format, device)
    optimizer.make_state()
    done, errors = threading.Event(), []

    def change():
        number = 0
        while not done.is_set():
            number += 1
            optimizer.param_groups[0]["lr"] = 1e-3 / number
            state = optimizer.state[model.head.weight]
            state["exp_avg"] = state["exp_avg"].clone()

    def step():
        try:
            for _ in range(4 * STEPS):
                optimizer.step()
        except RuntimeError as error:
            errors.append(str(error))
        finally:
            done.set()

    threads = [threading.Thread(target=one) for one in (change, step)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all("changes while the step reads it" in error for error in errors)


def test_a_copy_has_its_own(format):
    """An optimizer with a lock can be copied and pickled."""
    import copy
    import pickle

    _, optimizer = build(format, "cpu")
    optimizer.step()
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        other.step()
        counts = {float(state["step"]) for state in other.state.values()}
        assert counts <= {1.0, 2.0}
