"""nc.summary, and how many bytes a QuantizedTensor says it has."""

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from internals import is_unaligned, payloads_of_group
from models import BUFFERS, build, loss_of, one_of_each, shard
from weights import quantized

FORMAT = "mxfp8_e4m3"


class Tied(nn.Module):
    """An embedding that is the head's weight too, as in GPT-2."""

    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(96, 64)
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.frozen = nn.Linear(64, 32).requires_grad_(False)
        self.other = nn.Linear(64, 32, bias=False)
        self.lm_head = nn.Linear(64, 96, bias=False)
        self.lm_head.weight = self.wte.weight


def test_what_was_converted_and_why_not():
    model = nc.convert(Tied(), FORMAT, filter=["layers.*", "frozen"])
    summary = nc.summary(model)
    found = {one.name: one for one in summary.parameters}
    assert [one.name for one in summary.quantized] == [
        *(f"layers.{n}.weight" for n in range(3)),
        "frozen.weight",
    ]
    assert found["layers.0.weight"].format == FORMAT
    assert found["layers.0.weight"].shape == (64, 64)
    reasons = {one.name: one.reason for one in summary.plain}
    assert reasons["wte.weight"] == "shared by wte.weight (Embedding) and lm_head.weight (Linear)"
    assert reasons["other.weight"] == "left out"
    assert reasons["layers.0.bias"] == "one dimension"
    assert [found[f"{name}.weight"].trainable for name in ("frozen", "other")] == [False, True]
    weight = model.layers[0].weight
    assert found["layers.0.weight"].stored == quantized(weight).nbytes
    assert found["layers.0.weight"].masters == 4 * 64 * 64
    assert found["frozen.weight"].masters == 0
    assert found["wte.weight"].stored == 4 * 96 * 64
    assert summary.masters == 3 * 4 * 64 * 64
    assert summary.stored == sum(one.stored for one in summary.parameters)
    assert summary.gathered == 0


def test_the_table():
    lines = str(nc.summary(nc.convert(Tied(), FORMAT))).splitlines()
    assert " ".join(lines[0].split()) == "parameter shape kept as stored masters gathered a step"
    assert any(
        line.split()[:5] == ["layers.*.weight", "3", "of", "64x64", FORMAT] for line in lines
    )
    assert any("shared by wte.weight (Embedding) and lm_head.weight" in line for line in lines)
    assert any(line.startswith("frozen.weight") and "frozen  " in line for line in lines)
    assert lines[-1].startswith("all")
    assert "of the elements quantized" in lines[-1]
    assert len(lines) == 8


def gathers(mesh, format):
    """As the payloads of a group are: of every gather, from all ranks, without their padding."""
    differences = []
    for reshard, recompute in ((True, False), (False, False), (True, True)):
        model = shard(build(format, recompute=recompute), mesh, reshard_after_forward=reshard)
        loss_of(model, 0).backward()
        before = {one.name: one for one in nc.summary(model).parameters}
        name = "blocks.0.up.weight"
        payloads = payloads_of_group(model.blocks[0].up.weight)[: 2 if reshard else 1]
        sent = sum(p.nbytes for of_all in payloads for own in of_all for p in own) * mesh.size()
        group = [one for one in before.values() if one.name.startswith("blocks.0.") and one.format]
        assert len(group) == len(payloads[0])
        differences.append(sum(one.gathered for one in group) / sent)
        assert before[name].stored == quantized(model.blocks[0].up.weight.to_local()).nbytes
        bias = before["blocks.0.up.bias"]
        assert bias.gathered == (2 if reshard else 1) * 4 * bias.shape[0]
    if nc.format(format).gather == "by pass":
        differences.append(gathered_with_divided_blocks(mesh, format))
    return differences


def gathered_with_divided_blocks(mesh, format):
    model = nn.Sequential(nn.Linear(256, 200, bias=False), nn.Linear(200, 8))
    nc.convert(model, format, filter="0")
    for module in (model[0], model):
        fully_shard(module, mesh=mesh)
    model(torch.ones(2, 256)).sum().backward()
    assert is_unaligned(model[0].weight)
    sent = sum(p.nbytes for own in payloads_of_group(model[0].weight) for p in own[0])
    return nc.summary(model).parameters[0].gathered / (sent * mesh.size())


def of_both_passes(f):
    """Whether they gather as much."""
    return f.gather, f.rowwise.wire_bits == f.columnwise.wire_bits


@pytest.mark.parametrize("name", one_of_each(of_both_passes))
def test_gathered(name):
    for ratio in ranks.run(2, "cpu", gathers, name)[0]:
        assert 0.98 < ratio <= 1.001


def test_bytes_of_a_tensor(format):
    weight = nc.quantize(torch.randn(256, 256), format)
    buffers = [getattr(weight, name) for name in (*BUFFERS, "history")]
    assert weight.nbytes == sum(one.nbytes for one in buffers if one is not None)
    assert weight.element_size() == 4
    part = weight[:128]
    assert part.nbytes == part.clone().nbytes


@pytest.mark.parametrize(
    ("make", "bytes_each"),
    [
        (nc.optim.AdamW, 8),
        (torch.optim.AdamW, 8),
        (nc.optim.Lion, 4),
        (lambda every: nc.optim.AdamW(every, state_dtype=torch.bfloat16), 4),
        (lambda every: nc.optim.AdamW(every, state_dtype="int8_root"), 2 + 2 * 4 / 128),
    ],
)
def test_an_optimizers_state(make, bytes_each):
    """Of a matrix by its dtype or format; a vector keeps float32."""
    model = nc.convert(nn.Linear(256, 128), FORMAT)
    optimizer = make(model.parameters())
    assert nc.summary(model, optimizer).state == 0
    model(torch.ones(1, 256)).sum().backward()
    optimizer.step()
    summary = nc.summary(model, optimizer)
    assert summary.parameters[0].state == 128 * 256 * bytes_each
    assert summary.state == sum(one.state for one in summary.parameters)
    assert str(summary).splitlines()[0].endswith("state")
    assert nc.summary(model).state == 0
