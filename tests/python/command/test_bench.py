"""The command line: narrowcast bench, in a size at which its times mean nothing."""

import json
import sys

import pytest
import torch

import narrowcast as nc
from narrowcast import benchmark
from narrowcast.__main__ import main
from narrowcast.benchmark import rows as benchmarked
from narrowcast.benchmark import weights

# What a library is named, its module and class, the bytes of an element's moments, and options.
LIBRARIES = {
    "there": ("torch.optim", "Adam", 8, {"foreach": True}),
    "missing": ("no_such_library", "AdamW", 2, {}),
}
SMALL = "bench", "--device", "cpu", "--millions", "0.01", "--rounds", "2"


@pytest.fixture(autouse=True)
def libraries(monkeypatch):
    monkeypatch.setattr(benchmarked, "_OTHERS", {"adamw": LIBRARIES})


@pytest.fixture
def run(tmp_path):
    """Runs the command; the rows that it has written."""

    def run(*arguments):
        file = tmp_path / "rows.jsonl"
        assert main([*SMALL, *arguments, "--json", str(file)]) == 0
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]

    return run


def test_rows(run, capsys):
    """torch's, another library's, then each rule with each state that it takes."""
    rows = run("--formats", "mxfp8_e4m3")
    shown = capsys.readouterr()
    names = [row["optimizer"] for row in rows]
    torchs, own = ["torch.optim.AdamW", "torch.optim.Muon", "there"], names[3:]
    assert names[:3] == torchs and "missing is left out: no_such_library is not" in shown.err
    rules = {"AdamW": 3, "Lion": 2, "SGD": 2, "Muon": 2}
    assert own == [f"nc.optim.{name}" for name, states in rules.items() for _ in range(states)]
    assert [row["state"] for row in rows[3:6]] == ["float32", "bfloat16", *nc.state_formats()]
    lines = shown.out.splitlines()
    for row, line in zip(rows, lines[1:], strict=False):
        assert line.split()[-1] == f"{row['host_us']:.0f}" and f"{row['ms']:.3f}" in line
        assert 0 < row["ms_25"] <= row["ms"] <= row["ms_75"] and row["host_us"] > 0
        assert row["parameters"] == 7 * 128**2
        beside = rows[1 if row["optimizer"].endswith("Muon") else 0]
        assert row["of_torch"] == pytest.approx(row["ms"] / beside["ms"])
        if row["bytes"] is not None:
            copied = row["bytes"] * row["parameters"] / (1e6 * row["copy_gb_per_s"])
            assert row["of_copy"] == pytest.approx(copied / row["ms"])
    assert "114,688 parameters each" in shown.out


def test_bytes_by_formula(run):
    """Value read and written 8, gradient 2, moments read and written, codes written: of mxfp8 two
    usages of 1 + 1/32 bytes, of nvfp4 two of 1/2 + 1/16, and the value once more to cast it.
    """
    states = "float32,bfloat16,int8_root"
    rows = run("--formats", "mxfp8_e4m3,nvfp4", "--states", states, "--rules", "adamw,sgd")
    found = {(row["optimizer"][9:], row["format"], row["state"]): row for row in rows[2:]}
    mx, nv, root = 2 + 2 / 32, 1 + 2 / 16, 1 + 4 / 128
    expected = {
        ("AdamW", "mxfp8_e4m3", "float32"): (12 + mx, 8 + 2 + 16 + mx),
        ("AdamW", "mxfp8_e4m3", "bfloat16"): (8 + mx, 8 + 2 + 8 + mx),
        ("AdamW", "mxfp8_e4m3", "int8_root"): (4 + 2 * root + mx, 8 + 2 + 4 * root + mx),
        ("AdamW", "nvfp4", "float32"): (12 + nv, 8 + 2 + 16 + 4 + nv),
        ("SGD", "nvfp4", "bfloat16"): (6 + nv, 8 + 2 + 4 + 4 + nv),
    }
    for key, sizes in expected.items():
        assert (found[key]["kept"], found[key]["bytes"]) == pytest.approx(sizes), key
    assert (rows[0]["kept"], rows[0]["bytes"]) == (12, 28)


def test_kept_is_what_is_kept(device):
    """The formula beside what nc.summary counts."""
    made = weights.Weights(1, device)
    for row in benchmarked.all_rows(["mxfp8_e4m3", "nvfp4"], None, None):
        if row.is_own:
            optimizer = row.make(made).__self__
            optimizer.step()
            module = torch.nn.ParameterList(optimizer.param_groups[0]["params"])
            found = nc.summary(module, optimizer)
            kept = (found.stored + found.masters + found.state) / made.count
            assert kept == pytest.approx(row.kept, rel=0.01), row


def test_a_plot(run, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    assert main([*SMALL, "--plot", "picture.text"]) == 1
    assert "--plot picture.text: the name ends in .svg, .png" in capsys.readouterr().err
    picture = tmp_path / "picture.svg"
    rows = run("--formats", "nvfp4", "--rules", "lion", "--plot", str(picture))
    drawn = picture.read_text(encoding="utf-8")
    counts = [drawn.count(f"fill: {colour}") for colour in ("#bbbbbb", "#4477aa")]
    assert counts == [1, len(rows) - 1]
    assert all(f">{row['optimizer']}, {row['format']}, {row['state']}<" in drawn for row in rows)


def test_a_plot_without_matplotlib(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "narrowcast.benchmark.chart", raising=False)
    monkeypatch.delattr(benchmark, "chart", raising=False)
    assert main([*SMALL, "--plot", "picture.svg"]) == 1
    assert "--plot draws by matplotlib: pip install matplotlib" in capsys.readouterr().err


def test_shapes():
    """Whole layers; of fewer parameters smaller sides, in whole blocks."""
    for count in (1e6, 1e8, 218e6, 872e6):
        shapes = weights.shapes_of(count)
        assert sum(rows * columns for rows, columns in shapes) == pytest.approx(count, rel=0.05)
        assert all(n % 128 == 0 for shape in shapes for n in shape)
    assert weights.shapes_of(872e6) == 4 * weights.LAYER


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--formats", "nvfp5"), "there is no format 'nvfp5': did you mean nvfp4"),
        (("--rules", "adam"), "there is no rule 'adam': there are adamw, lion, sgd, muon"),
        (("--states", "int8"), "there is no state 'int8': there are float32, bfloat16, int8_root"),
        (("--rules", "lion", "--states", "int8_root"), "none keeps its state in int8_root"),
        (("--rounds", "0"), "--rounds is at least 1"),
        (("--millions", "0"), "--millions more than 0"),
        (("--json", "no_such_folder/rows"), "no_such_folder/rows"),
    ],
)
def test_errors(capsys, arguments, sentence):
    assert main(["bench", "--device", "cpu", *arguments]) == 1
    assert sentence in capsys.readouterr().err


def test_a_step_that_fails(monkeypatch, capsys):
    """The others are still measured, and the exit status says that one is not."""

    def fail(self):
        raise RuntimeError("no step")

    monkeypatch.setattr(nc.optim.Lion, "step", fail)
    assert main([*SMALL, "--formats", "nvfp4", "--rules", "lion,sgd"]) == 1
    shown = capsys.readouterr()
    assert "nc.optim.Lion, nvfp4, float32 is left out: RuntimeError: no step" in shown.err
    assert "nc.optim.SGD" in shown.out and "nc.optim.Lion" not in shown.out
