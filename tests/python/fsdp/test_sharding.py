"""Shards without processes: what ranks would send and receive, and a step of theirs."""

from types import SimpleNamespace

import pytest
import torch

import narrowcast as nc
from internals import bytes_of, config_of, tensors_of
from models import assert_quantized, assert_same, one_of_each, same, storage, unit
from narrowcast import _C
from narrowcast.optimizer.launches import StepTable, run_step
from narrowcast.tensor import QuantizedTensor
from narrowcast.tensor.gathered import GatheredStore
from narrowcast.tensor.store import UNNAMED
from weights import quantized

TESTED_FORMATS = one_of_each(lambda f: (storage(f), f.buffer_dtype(1)))
WORLDS = [1, 2, 3, 4, 8, 33]
# Ragged and odd columns; many ranks have narrow ones, since what is new with them is empty shards.
SIZES = [(w, columns) for w in WORLDS for columns in (64, 520, 100) if w <= 4 or columns == 100]


def rows_for(format, world):
    """Row counts that can be cut into so many shards: even ones, with a shorter last shard, and
    with an empty one.
    """
    step = nc.format(format).row_step
    group = 4 if nc.format(format).rowwise.element_bits == 6 else 2
    if world > 8 and step > world:
        return [step * world]  # thousands of rows already, and no shard can be empty
    counts = [2 * step * world]
    if world > group:
        counts.append(step * world - group)
    if world > step:
        counts.append(step * (world - 1))
    return counts


def shards_of(weight, world):
    """What fully_shard makes of a frozen weight, rank by rank: a copy of its rows."""
    pieces = list(torch.chunk(weight.detach(), world))
    pieces += [weight.detach()[:0]] * (world - len(pieces))
    return [piece.clone() for piece in pieces]


def gather(shards, weight, both, backward):
    """An all-gather of the shards, and the whole weight made of it."""
    rows, columns = weight.shape
    world, shard_rows = len(shards), len(shards[0])
    senders = [
        _C.WeightGather(bytes_of(shard.clone()), rows, shard_rows, world, both) for shard in shards
    ]
    for sender in senders:
        sender.use_send_buffer(torch.full((sender.send_bytes,), 0xA5, dtype=torch.uint8), 0)
        _C.GatherGroup([sender]).pack(backward)
    sent = [sender.payloads(backward) for sender in senders]
    assert len({tuple(p.numel() for p in payloads) for payloads in sent}) == 1
    received = tuple(torch.cat(payloads) for payloads in zip(*sent, strict=True))
    if world == 1:
        assert len(received) == 1  # FSDP2 copies no other
    receiver = senders[0]  # which has rows, and so the scale of the tensor
    # Memory that FSDP2 has allocated anew.
    unpacked = torch.full((receiver.unpacked_bytes,), 0xA5, dtype=torch.uint8)
    receiver.receive_into(received, unpacked)
    _C.GatherGroup([receiver]).unpack(backward)
    store = GatheredStore(receiver.gathered(backward), config_of(weight), receiver, by_pass=False)
    assert store.bytes.columns == columns
    return QuantizedTensor(store, weight.shape, weight.dtype)


@pytest.mark.parametrize(("world", "columns"), SIZES)
def test_gathered_is_whole(format, world, columns):
    for rows in rows_for(format, world):
        value = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
        weight = nc.quantize(value, format)
        shards = shards_of(weight, world)
        assert sum(len(shard) for shard in shards) == rows
        for both in (False, True):
            for backward in (False, True):
                whole = gather(shards, weight, both, backward)
                if both and nc.format(format).gather == "by pass":
                    assert set(bytes_of(whole).usages) == {"rowwise", "columnwise"}
                whole.decode(torch.float32, "columnwise" if backward else "rowwise")
                assert_quantized(whole, value, (rows, both, backward))
                assert same(whole.tensor_amax, weight.tensor_amax)


@pytest.mark.parametrize("world", [2, 33])
def test_a_missing_usage_is_named(format, world):
    weight = nc.quantize(torch.randn(2 * nc.format(format).row_step * world, 64), format)
    if nc.format(format).gather != "by pass":
        return
    for backward in (False, True):
        whole = gather(shards_of(weight, world), weight, False, backward)
        absent = "rowwise" if backward else "columnwise"
        assert getattr(whole, f"{absent}_data") is None
        with pytest.raises(ValueError, match="recompute=True"):
            whole.dequantize(usage=absent)


def table_of(format, values, stochastic):
    """The optimizer's table of the pieces of a weight, and their states."""
    first = 0
    how = torch.device("cpu"), stochastic, False
    table = _C.UpdateTable("adamw", nc.format(format).plugin, *how)
    states = []
    for index, value in enumerate(values):
        tensor = nc.MasterWeight.of(value.clone(), nc.format(format), UNNAMED)
        moments = [torch.zeros(tensor.shape) for _ in range(2)]
        names = "step", "exp_avg", "exp_avg_sq"
        state = dict(zip(names, (torch.zeros(()), *moments), strict=True))
        table.add(tensor, f"shard {index}", 0, state, 7, first)
        first += tensor.numel()
        states.append((tensor, *moments))
    return table, states


def step(table, amaxes):
    """A step of one table. `amaxes`: how many are reduced; to the largest of them."""
    if amaxes == 0:
        run_step([StepTable(table, None, False)], [])
        return
    memory = torch.zeros(amaxes)
    reduction = SimpleNamespace(reduce=lambda: memory.fill_(memory.max()))
    run_step([StepTable(table, memory, True)], [reduction])


@pytest.mark.parametrize("stochastic", [False, True])
@pytest.mark.parametrize("world", WORLDS[1:])
def test_a_step_on_shards_is_a_step_on_the_whole(format, world, stochastic):
    """One table holds all ranks' shards; the reduction is a maximum over its rows."""
    spans = nc.format(format).tensor_amax
    options = [[1e-2, 0.9, 0.95, 1e-8, 0.1, 1, 1]]
    for rows in rows_for(format, world):
        generator = torch.Generator().manual_seed(rows)
        value = torch.randn(rows, 96, generator=generator)
        shards = [*value.chunk(world)]
        pieces = [value], shards + [value[:0]] * (world - len(shards))
        tables = [table_of(format, some, stochastic) for some in pieces]
        for _ in range(3):
            gradient = torch.randn(rows, 96, generator=generator)
            for table, states in tables:
                begin = 0
                for tensor, *_ in states:
                    tensor.grad = gradient[begin : begin + len(tensor)]
                    begin += len(tensor)
                assert table.prepare(options, None)
                step(table, len(states) if spans else 0)
        (full, *moments), pieces = tables[0][1][0], tables[1][1]
        if not stochastic:
            assert_quantized(full, full.value)
        begin = 0
        for tensor, *parts in pieces:
            end = begin + len(tensor)
            assert same(tensor.value, full.value[begin:end])
            for part, moment in zip(parts, moments, strict=True):
                assert same(part, moment[begin:end])
            tensor, whole = quantized(tensor), quantized(full)
            if begin < end:
                assert_same(tensor, whole[begin:end], what=(rows, begin))
            assert same(tensor.tensor_amax, whole.tensor_amax)  # of an empty shard too
            assert same(tensor.history, whole.history)
            begin = end


def test_a_shard_owns_its_memory(format):
    weight = nc.quantize(torch.randn(2 * unit(format), 64), format)
    theirs = {t.untyped_storage().data_ptr() for t in tensors_of(weight)}
    for shard in shards_of(weight, 2):
        assert not theirs & {t.untyped_storage().data_ptr() for t in tensors_of(shard)}
