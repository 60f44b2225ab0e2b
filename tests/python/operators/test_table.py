"""The operator table: docs/operators.md is printed from it, and each cell does what it says."""

import pickle
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import narrowcast as nc
from models import unit
from narrowcast.operators import page
from narrowcast.operators.table import ROWS
from narrowcast.tensor.dispatch import OPERATORS
from operator_examples import EXAMPLES

TESTED_FORMATS = nc.formats()
PAGE = Path(__file__).parents[3] / "docs/operators.md"


def test_the_page_is_fresh():
    assert PAGE.read_text() == page.text(ROWS), (
        "docs/operators.md is stale: run `python -m narrowcast operators > docs/operators.md`"
    )


def test_every_row_runs():
    """Each operator of the table is in one row and has a handler, and each row an example here."""
    entered = [operator for row in ROWS for operator in row.operators]
    assert len(entered) == len(set(entered))
    assert set(entered) <= set(OPERATORS)
    assert set(EXAMPLES) == set(ROWS)


@pytest.fixture(scope="module", autouse=True)
def one_rank():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.title)
def test_cells(format, row):
    f = nc.format(format)
    example = EXAMPLES[row]
    u = unit(format)
    q = nc.quantize(torch.randn(3 * u, 2 * u, generator=torch.Generator().manual_seed(0)), f)
    before = q.dequantize()
    outcome = row.rule(f)
    if outcome.kind == "error":
        with pytest.raises(NotImplementedError, match=f"matrix in {format}: "):
            example(q, u)
        assert torch.equal(q.dequantize(), before)
        return
    got, expected = example(q, u), example(before, u)
    if outcome.kind == "read":
        for asks in (got.clone, lambda: got.rowwise_data, lambda: pickle.dumps(got), got.zero_):
            with pytest.raises(NotImplementedError, match=f"matrix in {format}: .* has no bytes"):
                asks()
    if isinstance(got, nc.QuantizedTensor):
        got = got.dequantize()
    assert torch.equal(got, expected)
    assert torch.equal(q.dequantize(), before)


# Shape and copy operations of which torch would make a plain tensor, and functions that would read
# the memory that a wrapper has not: apply_ ends the process, and a DLPack capsule points nowhere.
REFUSED = {
    "cat with plain": lambda q: torch.cat([q, torch.ones(1, 64)]),
    "cat with another format": lambda q: torch.cat([q, other_format(q)]),
    "stack with plain": lambda q: torch.stack([torch.ones(64, 64), q]),
    "stack of columns": lambda q: torch.stack([q, q], dim=1),
    "index": lambda q: q[[0, 1]],
    "mask": lambda q: q[torch.ones(64, 64, dtype=torch.bool)],
    "repeat": lambda q: q.tile(2, 1),
    "unsqueeze_": lambda q: q.unsqueeze_(0),
    "numpy": lambda q: q.numpy(),
    "apply_": lambda q: q.apply_(abs),
    "map_": lambda q: torch.ones(64, 64).map_(q, max),
    "dlpack": torch.from_dlpack,
}


def other_format(q):
    return nc.quantize(torch.ones(64, 64), next(f for f in nc.formats() if f != q.format.name))


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_decoded_silently(name):
    q = nc.quantize(torch.ones(64, 64), nc.formats()[0])
    with pytest.raises(
        NotImplementedError, match=f"64x64 matrix in {q.format.name}: .*dequantize|view"
    ):
        REFUSED[name](q)


def test_stack(format):
    """cat along a new first dimension."""
    u = unit(format)
    q = nc.quantize(torch.randn(2 * u, u, generator=torch.Generator().manual_seed(0)), format)
    stacked = torch.stack([q, q])
    assert isinstance(stacked, nc.QuantizedTensor)
    assert stacked.shape == (2, 2 * u, u)
    assert torch.equal(stacked.dequantize(), torch.stack([q.dequantize(), q.dequantize()]))


def test_a_shape_that_does_not_fit():
    q = nc.quantize(torch.ones(64, 64), nc.formats()[0])
    with pytest.raises(ValueError, match=r"copy_ of a tensor of shape \(3, 2\) into .*\(64, 64\)"):
        q.copy_(torch.ones(3, 2))


@pytest.mark.parametrize("master", [False, True])
def test_a_saved_flat_view_keeps_its_matrix(format, master):
    q = nc.quantize(torch.randn(64, 32, generator=torch.Generator().manual_seed(0)), format)
    if master:
        linear = nn.Linear(32, 64, bias=False)
        q = nc.convert(linear, format).weight.detach()
    flat = q.view(-1)
    inner, context = flat.__tensor_flatten__()
    tensors = {name: getattr(flat, name) for name in inner}
    unflattened = type(q).__tensor_unflatten__(tensors, context, flat.shape, flat.stride())
    for same in pickle.loads(pickle.dumps(flat)), unflattened:
        assert same.shape == flat.shape
        assert same.is_flat
        assert torch.equal(same.view(64, 32).dequantize(), q.dequantize())
        assert torch.equal(
            same.view(64, 32).dequantize(usage="columnwise"), q.dequantize(usage="columnwise")
        )
        assert not master or torch.equal(same.view(64, 32).master, q.master)
