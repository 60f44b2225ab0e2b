"""Graphs of torch.compile have a weight's value and its bytes. What they write, later readers see,
though a graph counts its writes before it asks for the tensors of a weight, and none after.
"""

import pytest
import torch

from by_hand import (
    FORMATS,
    batch,
    by_hand,
    converted,
    reads_its_bytes,
    same,
    train,
    values,
    weights,
)

BACKENDS = ["aot_eager", "inductor"]


def _halved(weight):
    return weight.mul_(0.5)


def test_products():
    format = FORMATS[1]
    model = converted(format)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        for write in (lambda w: w, lambda w: w.mul_(0.5), lambda w: w.data.mul_(0.5)):
            write(weights(model)[0])
            assert torch.equal(compiled(batch(0)), model(batch(0)))


def _product_of_rows(x, rows):
    return x @ rows[64:].t() + (x @ rows.t()).sum() + rows.sum()


def test_parts():
    weight = weights(converted(FORMATS[1]))[0]
    compiled = torch.compile(_product_of_rows, dynamic=False, backend="aot_eager")
    for part in (weight, weight[128:384], weight[:, :].view(512, 256)):
        with torch.no_grad():
            assert torch.equal(compiled(batch(0), part), _product_of_rows(batch(0), part))


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes(backend):
    model = converted(FORMATS[0])
    halved = torch.compile(_halved, backend=backend)
    compiled = torch.compile(model[0], backend="aot_eager")
    with torch.no_grad():
        for _ in range(3):
            halved(model[0].up.weight)
            assert reads_its_bytes(model, FORMATS[0])
            halved(model[0].up.weight)
            halved(model[0].up.weight)
            assert torch.equal(compiled(batch(0)), model[0](batch(0)))


def test_a_step():
    """As the same step, compiled, of plain weights."""
    models = converted(FORMATS[0]), by_hand(FORMATS[0])
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        optimizer.step = torch.compile(optimizer.step, backend="inductor")
        model.losses = train(model, [optimizer])
    assert models[0].losses == models[1].losses
    assert same(*map(values, models))
    assert reads_its_bytes(models[0], FORMATS[0])
