"""The benchmarks in Python run, in a size at which their figures mean nothing."""

import importlib
import json
import math
import os
import re
import statistics
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

import narrowcast as nc

BENCH = Path(__file__).parents[3] / "tests" / "bench"
SIZE = ("--layers", "1", "--width", "256", "--vocabulary", "64")


def bench(name, *arguments, json_file=None):
    """Runs a benchmark on the CPU; its standard output, and its rows as JSON."""
    command = [sys.executable, str(BENCH / name), "--device", "cpu", *map(str, arguments)]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    if json_file:
        command += ["--json", str(json_file)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    rows = [json.loads(line) for line in json_file.read_text().splitlines()] if json_file else []
    return result, rows


@pytest.fixture
def programs(monkeypatch):
    """Imports one of the benchmarks' modules."""
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module


def test_train_step(tmp_path):
    ranks = 2
    counts = ("--seq", 16, "--steps", 2, "--warmup", 1, "--rounds", 2, "--ranks", ranks)
    chosen = ("--modes", "nc:mxfp8_e4m3+e")
    result, rows = bench("train_step.py", *SIZE, *counts, *chosen, json_file=tmp_path / "rows")
    plain, quantized = rows
    assert (plain["mode"], quantized["mode"]) == ("bf16+e", "nc:mxfp8_e4m3+e")
    assert plain["shards_gib"] == 0 and plain["of_baseline"] == 1
    for row in rows:
        assert row["mode"] in result.stdout and row["ranks"] == ranks
        assert 0 < row["fastest_ms"] <= row["ms"] <= row["slowest_ms"]
        assert 0 < row["optimizer_ms"] < row["host_ms"] <= row["slowest_ms"]
        assert row["tokens_per_s"] == pytest.approx(2 * 16 / row["ms"] * 1e3)
    assert quantized["of_baseline"] > 0
    # Both usages, 8.25 bits an element each: as much as 13 matrices of 256 x 256 in a block, and
    # the padding of scales.
    unpadded = 2 * 13 * 256 * 256 * 8.25 / 8 / ranks
    assert 1 <= quantized["shards_gib"] * 2**30 / unpadded < 1.01
    assert quantized["pre_all_gather_us"] > 0 and quantized["post_all_gather_us"] > 0
    assert abs(quantized["loss"] - plain["loss"]) < 0.1
    assert abs(plain["loss"] - math.log(64)) < 1
    assert result.stderr.count("ms a step") == 4  # two modes, two rounds
    assert all(row["left_mib"] < 0.1 for row in rows), "a mode's memory has not come back"


def test_steps_that_alternate(tmp_path):
    counts = ("--seq", 16, "--steps", 2, "--warmup", 1, "--rounds", 2, "--ranks", 1)
    chosen = ("--modes", "nc:mxfp8_e4m3+e", "--alternate")
    _, rows = bench("train_step.py", *SIZE, *counts, *chosen, json_file=tmp_path / "rows")
    assert [row["mode"] for row in rows] == ["bf16+e", "nc:mxfp8_e4m3+e"]
    for row in rows:
        assert 0 < row["fastest_ms"] <= row["ms"] <= row["slowest_ms"]
        assert row["of_baseline"] > 0


@pytest.mark.parametrize(
    ("modes", "formats", "chosen"),
    [
        ("nc:nvfp4", None, ["bf16", "nc:nvfp4"]),
        ("bf16,nc:nvfp4+e,nc:nvfp4", "", ["bf16", "bf16+e", "nc:nvfp4+e", "nc:nvfp4"]),
        ("", "mxfp4,nvfp4+e", ["bf16+e", "nc:mxfp4+e", "nc:nvfp4+e"]),
        ("bf16", "all", ["bf16", *(f"nc:{name}" for name in nc.formats())]),
        ("nc:nvfp4+h+v+s", None, ["bf16", "nc:nvfp4+s+v+h"]),
    ],
)
def test_selection(programs, modes, formats, chosen):
    assert [str(mode) for mode in programs("modes").selection(modes, formats)] == chosen


def test_host_time(tmp_path):
    few = ("--samples", 3, "--counts", "2,4,8", "--sizes", 64, "--formats", "mxfp8_e4m3")
    result, rows = bench("host_time.py", *few, json_file=tmp_path / "rows")
    parts = {part: [row for row in rows if row["part"] == part] for part in ("linear", "step")}
    assert [row["matmul"] for row in parts["linear"]] == ["dequantized", "scaled"]
    for row in parts["linear"]:
        assert min(row[key] for key in ("forward_us", "plain_forward_us", "backward_us")) > 0
        assert row["forward_ratio"] == row["forward_us"] / row["plain_forward_us"]
    assert [row["format"] for row in parts["step"]] == ["plain", "mxfp8_e4m3"]
    for row in parts["step"]:
        assert len(row["us"]) == 3 and min(row["us"]) > 0
        at_mean = row["intercept_us"] + row["slope_us"] * statistics.mean(row["counts"])
        assert at_mean == pytest.approx(statistics.mean(row["us"]))
    (quantize,) = (row for row in rows if row["part"] == "quantize")
    assert quantize["us"] > 0
    assert "FusedAdam.step()" in result.stdout and "nc.quantize" in result.stdout


@pytest.mark.parametrize(
    ("kernel", "category"),
    [
        (
            "narrowcast::cuda::tile_kernel<Sequence, UpdateAmaxAction<Rule, true>>",
            "UpdateAmax<Rule, true>",
        ),
        (
            "void narrowcast::cuda::tile_kernel<narrowcast::f::cuda::Sequence, "
            "narrowcast::cuda::CastAction<narrowcast::cuda::Nearest, false>, 8>(nc_launch)",
            "Cast<Nearest, false>",
        ),
        ("narrowcast::cuda::(anonymous namespace)::update_kernel(nc_launch)", "update_kernel"),
        ("void narrowcast::cuda::history_kernel<S<2>, true>(nc_launch)", "history_kernel"),
    ],
)
def test_kernels_are_told_apart(programs, kernel, category):
    assert programs("probes").own({kernel: 3, "ncclDevKernel_AllGather": 2}) == {category: 3}


LEARNING = ("--layers", 1, "--width", 128, "--seq", 32, "--batch", 2, "--held-out", 2)


@pytest.fixture
def learning_report(programs, monkeypatch):
    """The program, in this process."""
    pytest.importorskip("matplotlib")

    def run(*arguments):
        command = [str(BENCH / "learning_report.py"), *map(str, arguments)]
        monkeypatch.setattr(sys, "argv", command)
        return programs("learning_report").main()

    return run


@pytest.fixture(scope="module")
def learned(tmp_path_factory):
    """The file that learning.py has written, its rows, and the standard error."""
    file = tmp_path_factory.mktemp("learning") / "rows.jsonl"
    chosen = ("--modes", "scaled:nvfp4,nc:mxfp8_e4m3", "--steps", 7, "--every", 3)
    result, rows = bench("learning.py", *LEARNING, *chosen, json_file=file)
    return file, rows, result.stderr


def test_learning(learned):
    _, rows, progress = learned
    assert [row["mode"] for row in rows] == ["bf16", "scaled:nvfp4", "nc:mxfp8_e4m3"]
    assert progress.count("of 7 steps") == 3 * 3
    weights = 12 * 128**2
    for row in rows:
        assert len(row["losses"]) == 7 and [step for step, *_ in row["held_out"]] == [3, 6, 7]
        assert all(0 < loss < 10 for loss in row["losses"])
        assert all(0 < bits < 10 for _, bits, _ in row["held_out"])
        assert row["seconds"] == row["held_out"][-1][2] > row["held_out"][0][2]
        assert row["losses"][-1] < row["losses"][0]
        assert row["seconds"] > 0 and row["tokens_per_s"] > 0
        assert row["parameters"] == weights + 2 * 256 * 128 + 3 * 2 * 128
    assert [row["quantized_parameters"] for row in rows] == [0, weights, weights]
    first = [row["losses"][0] for row in rows]
    assert max(first) - min(first) < 0.05, "the runs do not begin with the same weights and text"
    assert len({tuple(row["losses"]) for row in rows}) == 3
    assert {len(row["text_sha256"]) for row in rows} == {64}


def test_learning_on_ranks(tmp_path):
    """Gradients that travel narrow are rounded, and no more."""
    chosen = "--modes", "bf16,bf16+r", "--ranks", 2, "--steps", 7, "--every", 3
    result, rows = bench("learning.py", *LEARNING, *chosen, json_file=tmp_path / "rows")
    assert [(row["mode"], row["ranks"]) for row in rows] == [("bf16", 2), ("bf16+r", 2)]
    assert result.stderr.count("of 7 steps") == 2 * 3  # one rank tells
    plain, narrow = (row["losses"] for row in rows)
    assert plain != narrow and plain == pytest.approx(narrow, abs=0.05)
    assert plain[-1] < plain[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_learning_for_a_time(learning_report, tmp_path, ranks):
    """Modes train for as long as each other, and the page has what each has reached by then."""
    text = tmp_path / "text"
    text.write_bytes(bytes(range(256)) * 50)
    file = tmp_path / "rows.jsonl"
    chosen = "--minutes", 0.02, "--text", text, "--no-compile", "--ranks", ranks
    _, rows = bench("learning.py", *LEARNING, *chosen, json_file=file)
    narrow = "+r" * (ranks > 1)
    assert [row["mode"] for row in rows] == ["bf16+t", f"scaled:fp8_e4m3{narrow}+s"]
    plain, few_bits = rows
    for row in rows:
        steps, _, seconds = zip(*row["held_out"], strict=True)
        assert 1.2 <= row["seconds"] < 20 and [*seconds] == sorted(seconds)
        assert steps[-1] == len(row["losses"]) and steps[-1] % 4 == 0
        assert row["losses"][-1] < row["losses"][0]
    # A float32 value and two moments of each weight, or moments and bytes of some 8 bits each.
    shard = plain["parameters"] / ranks / 2**30
    assert plain["kept_gib"] == pytest.approx(12 * shard, rel=0.01)
    assert few_bits["kept_gib"] == pytest.approx((4 + 2.07 + 1) * shard, rel=0.05)
    assert few_bits["quantized_parameters"] == 12 * 128**2
    assert learning_report(file, "--output", tmp_path) == 0
    page = (tmp_path / "learning.md").read_text(encoding="utf-8")
    assert "in 0.02 minutes of training for each mode" in page
    assert f"| bf16+t | {len(plain['losses'])} |" in page


def test_python_sources(programs, tmp_path, monkeypatch):
    """A text is there once, under the name below the folder that it is installed in."""
    sources = programs("python_sources")
    outer, inner = tmp_path, tmp_path / "site-packages"
    inner.mkdir()
    names = [f"module_{number}.py" for number in range(200)]
    for name in names:
        (inner / name).write_text(f"# {name}\n")
    (outer / "other.py").write_text("# module_7.py\n")
    monkeypatch.setattr(sources, "_roots", lambda: [outer, inner])
    training, held_out = (bytes(part.numpy()).decode().splitlines() for part in sources.read())
    assert sorted(training + held_out) == sorted(f"# {name}" for name in names)
    assert held_out == [f"# {name}" for name in sorted(names) if sources.is_held_out(name)]
    assert 0 < len(held_out) < 20 and training == sorted(training)


def test_learning_report(learning_report, learned, tmp_path):
    file, rows, _ = learned
    assert learning_report(file, "--output", tmp_path / "page") == 0
    picture = (tmp_path / "page" / "learning.png").read_bytes()
    assert picture.startswith(b"\x89PNG") and len(picture) > 10_000
    page = (tmp_path / "page" / "learning.md").read_text(encoding="utf-8")
    plain = rows[0]["held_out"][-1][1]
    for row in rows:
        final = row["held_out"][-1][1]
        above = "-" if row is rows[0] else f"{final - plain:+.4f}"
        assert f"| {row['mode']} | {final:.4f} | {above} |" in page
    assert f"{rows[0]['parameters']:,} parameters" in page and rows[0]["text_sha256"] in page
    assert "python tests/bench/learning.py --device cpu --layers 1" in page
    assert "--json rows.jsonl\n" in page, "the page names a folder of this machine"
    assert "python tests/bench/learning_report.py rows.jsonl --output page\n" in page


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"steps": 8}, "{mode}: steps is 8, and 7 of bf16: these runs cannot be compared"),
        ({}, "{mode} with seed 0 is there twice"),
    ],
)
def test_learning_report_compares_like_with_like(
    learning_report, learned, tmp_path, change, sentence
):
    file, rows, _ = learned
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps(rows[1] | change) + "\n")
    with pytest.raises(SystemExit, match=re.escape(sentence.format(**rows[1]))):
        learning_report(file, other, "--output", tmp_path)
    assert not (tmp_path / "learning.md").exists()


def test_learning_report_of_two_seeds(learning_report, learned, tmp_path):
    file, rows, _ = learned
    other = tmp_path / "other.jsonl"
    higher = [[step, bits + 0.25, seconds] for step, bits, seconds in rows[0]["held_out"]]
    other.write_text(json.dumps(rows[0] | {"seed": 1, "held_out": higher}) + "\n")
    assert learning_report(file, other, "--output", tmp_path) == 0
    page = (tmp_path / "learning.md").read_text(encoding="utf-8")
    assert "those of bf16, 2 of them, end up to 0.2500 bits per byte from each other" in page
    assert f"| bf16, seed 1 | {higher[-1][1]:.4f} | - |" in page


@pytest.mark.parametrize(
    ("done", "rate"),
    [(0, 0.01), (0.0005, 0.01), (0.025, 0.5), (0.05, 1), (0.525, 0.55), (1, 0.1), (1.1, 0.1)],
)
def test_learning_rate(programs, done, rate):
    assert programs("learning_schedule").learning_rate(done, 1.0) == pytest.approx(rate)


@pytest.mark.parametrize(
    ("done", "warm", "rate"), [(0, 0, 0.01), (0.525, 0.5, 0.275), (0.525, 2, 0.55)]
)
def test_learning_rate_of_a_timed_run(programs, done, warm, rate):
    """Its warm-up has a number of steps, and may go on when the cosine has begun."""
    assert programs("learning_schedule").learning_rate(done, 1.0, warm) == pytest.approx(rate)


LEARN = "learning_options"


@pytest.mark.parametrize(
    ("program", "mode", "sentence"),
    [
        ("train_step", "fp16", "'fp16' is not a mode"),
        (LEARN, "scaled:mxfp4", "scaled:mxfp4: mxfp4 names no formats for scaled products"),
        (LEARN, "bf16+s+m", "'bf16+s+m': a suffix stands once, and one alone of +b and +r, and of"),
        (LEARN, "bf16+h", "bf16+h: +v and +h are for quantized weights"),
        (LEARN, "bf16+t", "bf16+t: torch's AdamW updates float32 parameters, which FSDP2 gathers"),
        (LEARN, "bf16+r", "bf16+r: one rank sends no gradients; see --ranks"),
        (LEARN, "nc:nvfp4+e", "nc:nvfp4+e: a mode is bf16, nc:FORMAT or scaled:FORMAT here"),
    ],
)
def test_a_mode_that_a_program_has_not(programs, monkeypatch, capsys, program, mode, sentence):
    monkeypatch.setattr(sys, "argv", [f"{program}.py", "--modes", mode])
    with pytest.raises(SystemExit) as ended:
        programs(program).options()
    assert ended.value.code == 2 and sentence in capsys.readouterr().err


def test_price_of_an_optimizer(programs):
    """Of a step, and of the cast that follows it where the optimizer is not narrowcast's."""
    bench, made = programs("bench"), programs("narrowcast.benchmark.weights").Weights(1, "cpu")
    for name, optimizer in bench.OPTIMIZERS.items():
        price = bench.price_of(
            optimizer, "mxfp8_e4m3", made, lambda work: timeit.timeit(work, number=1)
        )
        assert price > 0, name


@pytest.mark.parametrize("ranks", [1, 2])
def test_muon(tmp_path, ranks):
    small = "--layers", 1, "--width", 128, "--vocabulary", 64, "--rounds", 1, "--ranks", ranks
    _, rows = bench("muon.py", *small, json_file=tmp_path / "rows")
    torchs = ["torch.optim.Muon"] * (ranks == 1)
    assert [row["optimizer"] for row in rows] == ["nc.optim.AdamW", "nc.optim.Muon", *torchs]
    assert rows[1]["products_ms"] > 0 and rows[1]["of_matmul"] > 0


def test_export(tmp_path):
    small = "--formats", "mxfp8_2d", "--width", 256, "--billions", 0, "--rounds", 1
    _, (row,) = bench("bench_export.py", *small, "--folder", tmp_path, json_file=tmp_path / "rows")
    assert row["gb"] * 1e9 == 2 * 256 * 896 * (1 + 1 / 32)
    assert row["export_s"] > 0 and row["load_s"] > 0


def test_where_bytes_lie(tmp_path):
    """The page has what is counted."""
    drawn = tmp_path / "memory.svg"
    options = ("--markdown", "--draw", drawn)
    command = [sys.executable, str(BENCH / "where_bytes_lie.py"), *map(str, options)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stderr
    page = BENCH.parents[1] / "docs" / "memory.md"
    assert result.stdout.strip() in page.read_text(encoding="utf-8")
    assert "<svg" in drawn.read_text(encoding="utf-8")
