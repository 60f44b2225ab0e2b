"""The model of larger machines, in cases where the answer is plain."""

import importlib
import json
import math
import sys
from pathlib import Path

import pytest

TREE = Path(__file__).parents[3]
BENCH = TREE / "tests" / "bench"
ROW = {
    "mode": "bf16", "ranks": 2, "layers": 3, "width": 1024, "vocabulary": 4096, "seq": 512,
    "batch": 2, "link": "fast", "gradient_format": "mxfp8_e5m2", "optimizer_ms": 5.0,
}  # fmt: skip
BLOCK, ROOT = 13 * 1024**2, 2 * 1024 * 4096
MODES = {"bf16": (2, 4), "bf16+b": (2, 2), "bf16+r": (2, 1.03125), "nc:mxfp8_e4m3": (1.03125, 4)}


@pytest.fixture(scope="module")
def model():
    sys.path.insert(0, str(BENCH))
    yield importlib.import_module("link_model")
    sys.path.remove(str(BENCH))


@pytest.mark.parametrize("mode", MODES)
def test_no_wire(model, mode):
    link = model.Link(math.inf, 8)
    assert model.step_ms(ROW | {"mode": mode}, 70, link) == pytest.approx(70 + 5)


@pytest.mark.parametrize("mode", MODES)
def test_no_compute(model, mode):
    """All bytes, one after the other, and a hop to each of the others for each collective."""
    gathered, reduced = MODES[mode]
    sent = 3 * BLOCK * (2 * gathered + reduced) + ROOT * (2 + reduced)
    link = model.Link(2, ranks=4, hop_ms=0.5)
    expected = sent * 3 / 4 / 2e6 + (1 + 3 + 3 + 3 + 1) * 3 * 0.5 + 5
    assert model.step_ms(ROW | {"mode": mode}, 0, link) == pytest.approx(expected)


def test_what_much_compute_does_not_hide(model):
    """What comes before the first block, and the reductions of the last and of the root."""
    exposed = (2 * ROOT + 2 * BLOCK + 4 * BLOCK + 4 * ROOT) / 2 / 1e6
    assert model.step_ms(ROW, 1e4, model.Link(1, 2)) == pytest.approx(1e4 + exposed + 5)


def test_nodes(model):
    """A ring enters a node once, by the cards of all; an all-to-all for each of its ranks."""
    link = model.Link(1, ranks=16, hop_ms=0.5, node=8)
    assert link.ms(8e6) == pytest.approx(0.5 + 15 / 16)
    assert link.ms(8e6, all_to_all=True) == pytest.approx(0.5 + 8 * 8 / 16)
    assert model.Link(1, ranks=8, node=8).ms(8e6) == 0
    slower = model.Link(1, ranks=16, node=8, all_to_all_gb_per_s=0.5)
    assert slower.ms(8e6) == pytest.approx(15 / 16)
    assert slower.ms(8e6, all_to_all=True) == pytest.approx(8 * 8 / 16 / 0.5)


def checked(model, slow, modes):
    rows = [ROW | {"mode": mode, "link": "host"} for mode in modes]
    times = {model.key(row): 60 for row in rows}
    rows = [row | {"ms": model.step_ms(row, 60, slow)} for row in rows]
    return model.check(rows, times, slow.hop_ms)


def test_two_speeds_of_a_link(model):
    """Rows of both kinds tell them; then predictions take their share, of the nearest link."""
    found = checked(model, model.Link(5, 2, 0.02, all_to_all_gb_per_s=3), MODES)
    for row in found:
        assert row["gb_per_s"] == pytest.approx(5, rel=0.005)
        assert row["all_to_all_gb_per_s"] == pytest.approx(3, rel=0.005)
        assert row["ratio"] == pytest.approx(1, rel=0.005)
    other = found[0] | {"gb_per_s": 50, "all_to_all_gb_per_s": 45}
    assert model.all_to_all_share(8, [other, *found]) == pytest.approx(0.6, rel=0.01)
    assert model.all_to_all_share(40, [other, *found]) == pytest.approx(0.9)


@pytest.mark.parametrize("modes", [["bf16", "bf16+b"], ["bf16+r"]])
def test_one_speed_of_a_link(model, modes):
    found = checked(model, model.Link(5, 2, 0.02), modes)
    assert all(row["gb_per_s"] == pytest.approx(5, rel=0.005) for row in found)
    assert all(row["all_to_all_gb_per_s"] is None for row in found)
    assert model.all_to_all_share(8, found) == 1


def test_measured_links(model):
    """The model is within 10 % of the steps that docs/network.md shows."""
    text = (TREE / "docs" / "benchmarks" / "measured.json").read_text(encoding="utf-8")
    shape = {"layers": 6, "width": 4096, "vocabulary": 32000, "seq": 4096}
    about = ROW | shape | {"gradient_format": "mxfp8_e4m3"}
    rows = [about | row for row in json.loads(text)["network"]]
    fast = [row for row in rows if row["link"] == "fast"]
    link = model.Link(300, 2, 0.02)
    times = {model.key(row): model.compute_ms(row, link) for row in fast}
    found = model.check([row for row in rows if row["link"] != "fast"], times, 0.02)
    assert len(found) == 11
    assert all(0.9 < row["ratio"] < 1.1 for row in found)


def test_program(model, tmp_path, monkeypatch, capsys):
    """It finds the speed of a link that it has made up, and marks what lies beyond."""
    fast, slow = model.Link(300, 2, 0.02), model.Link(5, 2, 0.02)
    rows = []
    for number, mode in enumerate(MODES):
        row = ROW | {"mode": mode}
        rows.append(row | {"ms": model.step_ms(row, 60 + number, fast)})
        rows.append(row | {"ms": model.step_ms(row, 60 + number, slow), "link": "host"})
    measured, written = tmp_path / "measured", tmp_path / "written"
    measured.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = ["link_model.py", measured, "--json", written, "--gbit", "10,50,400"]
    monkeypatch.setattr(sys, "argv", [str(one) for one in arguments])
    model.main()
    found = [json.loads(line) for line in written.read_text().splitlines()]
    checked, predicted = found[: len(MODES)], found[len(MODES) :]
    assert "~" in capsys.readouterr().out
    for row in checked:
        assert row["gb_per_s"] == pytest.approx(5, rel=0.005)
        assert row["ratio"] == pytest.approx(1, rel=0.005)
    assert len(predicted) == len(MODES) * 3 * 9
    times = {}
    for row in predicted:
        times.setdefault((row["mode"], row["gpus"]), []).append(row["ms"])
        within = row["gpus"] == 2 and row["gbit_per_s"] >= 50
        assert row["extrapolated"] == (not within)
        assert (row["of_baseline"] == 1) == (row["mode"] == "bf16")
    # Faster links never cost more.
    assert all(ms == sorted(ms, reverse=True) and ms[0] > ms[-1] for ms in times.values())


def test_picture(model, tmp_path):
    pytest.importorskip("matplotlib")
    row = {"mode": "bf16+r", "gbit_per_s": 50, "of_baseline": 1.0}
    rows = [row | {"gpus": 2, "extrapolated": False}, row | {"gpus": 8, "extrapolated": True}]
    drawn = tmp_path / "model.png"
    importlib.import_module("link_model_picture").draw(rows, drawn)
    assert drawn.read_bytes().startswith(b"\x89PNG")
