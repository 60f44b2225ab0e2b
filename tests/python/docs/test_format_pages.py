"""The generated pages tell the truth: their numbers against numpy, plugins and gathers."""

import math

import numpy as np
import pytest
import torch

import narrowcast as nc
import pages
import reference
from narrowcast import _C
from pages import FORMATS, NAMES, USAGES

SIDE = 256


def scrambled(x):
    x = np.asarray(x, np.uint32)
    x = (x ^ x >> np.uint32(16)) * np.uint32(0x7FEB352D)
    x = (x ^ x >> np.uint32(15)) * np.uint32(0x846CA68B)
    return x ^ x >> np.uint32(16)


@pytest.fixture(scope="module")
def sample():
    """The pages' matrix, made here with numpy's logarithm."""
    pairs = np.arange(SIDE * SIDE)
    words = scrambled(np.stack([2 * pairs + 1, 2 * pairs + 2], axis=1))
    uv = (words.astype(np.float64) + 0.5) / 2.0**31 - 1
    s = (uv**2).sum(axis=1)
    kept = uv[s < 1] * np.sqrt(-2 * np.log(s[s < 1]) / s[s < 1])[:, None]
    return kept.reshape(-1)[: SIDE * SIDE].astype(np.float32).reshape(SIDE, SIDE)


def test_the_sample_is_normal(sample):
    ordered = np.sort(sample.reshape(-1).astype(np.float64))
    expected = np.array([0.5 * math.erfc(-x / math.sqrt(2)) for x in ordered])
    seen = (np.arange(ordered.size) + 0.5) / ordered.size
    assert np.abs(seen - expected).max() < 1.63 / math.sqrt(ordered.size)  # Kolmogorov, 1 %


@pytest.mark.parametrize("name", NAMES)
def test_errors_are_those_of_the_reference(name, sample):
    fmt, facts = FORMATS[name], pages.facts(name)
    quantized = reference.quantize(sample, fmt)
    x = sample.astype(np.float64)
    for usage in USAGES:
        error = reference.dequantize(quantized, fmt, sample.shape, usage).astype(np.float64) - x
        relative = math.sqrt((error**2).sum() / (x**2).sum())
        expected = f"{100 * relative:.2f} %, {-20 * math.log10(relative):.1f} dB"
        assert facts[f"relative error on Gaussian data, {usage}"] == expected


def stored_bits(facts):
    """Of rowwise, where the usages differ."""
    both = facts.get("bits an element, one usage as stored")
    return both or facts["bits an element, rowwise as stored"]


def wire_bits(facts):
    both = facts.get("bits an element on the wire")
    return both or facts["bits an element, rowwise on the wire"]


@pytest.mark.parametrize("name", NAMES)
def test_facts_are_those_of_the_plugin(name):
    f, facts = nc.format(name), pages.facts(name)
    assert float(stored_bits(facts)) == pytest.approx(f.bits_per_element, rel=1e-5)
    assert float(wire_bits(facts)) == pytest.approx(f.wire_bits_per_element, rel=1e-5)
    on_the_wire = float(facts.get("bits an element, columnwise on the wire", wire_bits(facts)))
    assert on_the_wire == pytest.approx(f.columnwise.wire_bits, rel=1e-5)
    assert int(facts["row step"]) == f.row_step
    assert facts["gather"] == f.gather


def gathered(f, both):
    """The usages and the payload's bytes of each pass (forward, backward), on one rank."""
    bytes = _C.Buffers.allocate(f, *pages.SHAPE, USAGES, torch.device("cpu"))
    gather = _C.WeightGather(bytes, *pages.SHAPE[:1], pages.SHAPE[0], 1, both)
    gather.use_send_buffer(torch.empty(gather.send_bytes, dtype=torch.uint8), 0)
    unpacked = torch.empty(gather.unpacked_bytes, dtype=torch.uint8)
    gather.receive_into(gather.payloads(False), unpacked)
    answers = []
    for backward in (False, True):
        usages = gather.gathered(backward).usages
        size = sum(payload.numel() for payload in gather.payloads(backward))
        answers.append((usages[0] if len(usages) == 1 else "both", size))
    return answers


@pytest.mark.parametrize("name", NAMES)
def test_phases_are_those_of_the_gathers(name):
    f = nc.format(name)
    rows = [row for row in pages.tables(pages.GENERATED / name / "page.md") if len(row) == 4]
    phases = {row[0].split(" ")[0]: (row[1], int(row[3])) for row in rows if "`" not in row[0][:1]}
    by_pass, both = (gathered(f, both) for both in (False, True))
    for backward, phase in ((False, "forward"), (True, "backward")):
        said, size = phases[phase]
        assert (said.split(";")[0], size) == by_pass[backward]
    for phase in ("a", "kept"):
        said, size = phases[phase]
        usages, expected = both[True]
        assert said.startswith(usages)
        assert size == expected


# ---- the index ----


def test_the_index_compares_all_formats():
    rows = {row[0]: row[1:] for row in pages.tables(pages.GENERATED / "README.md")}
    assert list(rows) == [f"[`{name}`]({name}/page.md)" for name in NAMES]
    for name, row in zip(NAMES, rows.values(), strict=True):
        facts, fmt = pages.facts(name), FORMATS[name]
        _, _, blocks_, bits, wire, gather, row_step, passes, error, decibels = row
        assert row[0] == fmt.element.name
        assert row[1] == facts["scale"]
        assert blocks_.split(" and ")[0] == facts["rowwise block"]
        assert blocks_.split(" and ")[-1] == facts["columnwise block"]
        assert bits == stored_bits(facts)
        assert wire == wire_bits(facts)
        assert gather == facts["gather"]
        assert row_step == facts["row step"]
        assert passes == facts["passes of an optimizer step"]
        assert f"{error}, {decibels}" == facts["relative error on Gaussian data, rowwise"]


def test_a_page_shows_facts_shapes_phases_and_rules():
    def page(name):
        return (pages.GENERATED / name / "page.md").read_text(encoding="utf-8")

    for line in (
        "| row step | 16 |",
        "| `columnwise_data` | uint8 | (520, 150) | 78000 |",
        "| `amax` | float32 | (1,) | 4 |",
        "| forward | rowwise | 4.03125 | 78627 |",
        "| a cut | **exact**: cuts at multiples of 16 rows, 16 columns |",
        "| values into a part | **error**: without a master, ",
    ):
        assert line in page("nvfp4")
    assert "`history`" not in page("nvfp4")
    assert "| `history` | float32 | (1026,) | 4104 |" in page("fp8_e4m3_delayed")
    assert "amax` | float32" not in page("mxfp8_e4m3")
    assert "| backward | columnwise | 8.25 | 161200 |" in page("mxfp8_e4m3")
