"""A step that an exception of a signal's handler ends, wherever it comes: it is done or not begun,
and bytes are a cast of the masters, or known to be stale.
"""

import random
import signal

import pytest
import torch

import narrowcast as nc
import ranks
from interrupting import Interrupt, interrupted_at
from models import GATHERS, Model, assert_quantized, local_rows, loss_of, one_of_each, same, shard
from second_mode import CONVERTED

TESTED_FORMATS = one_of_each(lambda f: (f.gather, f.tensor_amax, f.amax))
SPANNING = [name for name in GATHERS if nc.format(name).tensor_amax]


def small_model(format, device):
    torch.manual_seed(0)
    return nc.convert(Model(64), format).to(device)


def give_gradients(model, step):
    for number, p in enumerate(model.parameters()):
        generator = torch.Generator().manual_seed(1000 * step + number)
        gradient = torch.randn(p.shape, generator=generator)
        p.grad = gradient.to(p.device)


def value(p):
    local = p.detach()
    return local.master if isinstance(local, CONVERTED) else local


class Watch:
    """What a step may have done to a model's parameters: all of it, or nothing."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.values = [value(p).clone() for p in model.parameters()]
        self.steps = self.counts()

    def counts(self):
        states = (self.optimizer.state.get(p, {}) for p in self.model.parameters())
        return [float(state.get("step", 0)) for state in states]

    def assert_all_or_nothing(self):
        assert torch.is_grad_enabled()
        parameters = [*self.model.parameters()]
        moved = [not same(a, value(p)) for a, p in zip(self.values, parameters, strict=True)]
        counted = [after - before for before, after in zip(self.steps, self.counts(), strict=True)]
        assert moved in ([True] * len(moved), [False] * len(moved)), moved
        assert counted == [float(one) for one in moved]
        for name, p in self.model.named_parameters():
            if isinstance(p, CONVERTED):
                p.dequantize()  # makes stale bytes
                assert_quantized(p.detach().cpu(), p.master.cpu(), name)
        return moved[0]


@pytest.mark.parametrize("first", [False, True])
def test_at_every_line(format, device, first):
    model = small_model(format, device)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    give_gradients(model, 0)
    optimizer.step()
    line, done = 0, set()
    while True:
        if first:
            optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        give_gradients(model, line)
        watch = Watch(model, optimizer)
        hit = interrupted_at(line, optimizer.step)
        done.add(watch.assert_all_or_nothing())
        if not hit:
            break
        line += 13 if first else 1  # the first step makes state and tables: thousands of lines
    assert line > 10
    assert done == {True, False}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of this kind here")
def test_real_signals(format, device):
    def handle(*_):
        raise Interrupt

    model = small_model(format, device)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    give_gradients(model, 0)
    optimizer.step()
    draw, before, done = random.Random(1), signal.signal(signal.SIGALRM, handle), []
    try:
        for step in range(400):
            give_gradients(model, step)
            watch = Watch(model, optimizer)
            try:
                latest = 3e-4 if step % 8 else 2e-2  # after the step, on a busy machine too
                signal.setitimer(signal.ITIMER_REAL, draw.uniform(1e-6, latest))
                optimizer.step()
                while True:  # until the signal comes
                    pass
            except Interrupt:
                done.append(watch.assert_all_or_nothing())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert len(done) == 400
    assert set(done) == {True, False}


def interrupted_ranks(mesh, format):
    """A step of all ranks is interrupted at one line after another: the ranks have done it or not
    begun it, and the next forward has bytes of one amax.
    """
    device, line, every = mesh.device_type, 0, []
    model = shard(small_model(format, device), mesh, reshard_after_forward=True)
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    while not every or every[-1][0]:
        loss_of(model, line, device).backward()
        if line % 2:
            with torch.no_grad():
                model.head.weight.copy_(1.5 * model.head.weight)
        if line == 0:
            optimizer.step()
        before = [value(p.to_local()).clone() for p in model.parameters()]
        hit = interrupted_at(line, optimizer.step)
        after = [value(p.to_local()) for p in model.parameters()]
        moved = {not same(one, other) for one, other in zip(before, after, strict=True)}
        assert len(moved) == 1, line
        every.append((hit, *moved))
        optimizer.zero_grad()
        with torch.no_grad():
            loss_of(model, line, device)
        for name, p in model.named_parameters():
            local = p.to_local()
            if not isinstance(local, CONVERTED):
                continue
            if local.history is not None:
                assert_quantized(local.detach().cpu(), local.master.cpu(), name)
                continue
            whole = nc.quantize(p.full_tensor().float().cpu(), format)
            assert same(local.amax, whole.amax), (name, line)
            assert same(local.dequantize(), local_rows(whole.dequantize(), p, mesh)), name
        line += 1
    return every


@pytest.mark.parametrize("spanning", SPANNING)
def test_on_all_ranks(spanning, device):
    every, other = ranks.run(2, device, interrupted_ranks, spanning)
    assert every == other
    assert len(every) > 20
    assert {moved for hit, moved in every if hit} == {True, False}
