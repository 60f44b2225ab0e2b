"""The examples run: the whole demo in a few steps, and its judgement."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
pytest.importorskip("matplotlib")
pytest.importorskip("tqdm")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    """Of each rank, because other tests run beside it."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def demo(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import demo

    return demo


def test_demo(demo, tmp_path):
    small = ["--width", "128", "--layers", "1", "--time", "64", "--batch", "4", "--steps", "3"]
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--out", str(tmp_path), *small]
    result = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert result.returncode == 0, result.stdout + result.stderr
    assert (tmp_path / "losses.png").stat().st_size > 10_000
    assert (tmp_path / "table.txt").read_text() in result.stdout
    runs = [json.loads((tmp_path / f"{name}.json").read_text()) for name in demo.RUNS]
    assert [run["matmul"] for run in runs] == [
        "dequantized",
        "dequantized",
        "scaled",
        "dequantized",
    ]
    assert all(len(run["losses"]) == 3 for run in runs)
    first = [run["losses"][0] for run in runs]
    assert max(first) - min(first) < 0.1, "the runs do not begin with the same weights"
    weights = [run["weight_bytes_per_rank"] for run in runs]
    assert weights == sorted(weights, reverse=True)
    if runs[0]["ranks"] > 1:
        gathered = [run["gathered_bytes_per_step"] for run in runs]
        assert gathered == sorted(gathered, reverse=True)


def test_make_demo_builds_what_it_trains(demo):
    formats = {options[1] for options in demo.RUNS.values()} - {demo.PLAIN}
    command = ["make", "-C", str(EXAMPLES.parent), "--dry-run", "demo", "VENV=none"]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    assert f'-DNARROWCAST_BUILD_FORMATS="{";".join(sorted(formats))}"' in shown


def test_a_build_of_some_formats_refuses_a_name_that_is_none(tmp_path):
    off = [f"-DNARROWCAST_{part}=OFF" for part in ("BINDINGS", "TESTS", "CODEGEN", "CUDA")]
    command = ["cmake", "-S", EXAMPLES.parent, "-B", tmp_path, *off]
    command += ["-DNARROWCAST_BUILD_FORMATS=nvfp4;mxfp8"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode != 0
    assert "NARROWCAST_BUILD_FORMATS names mxfp8" in result.stderr


@pytest.mark.parametrize(
    ("distance", "near"),
    [(0.0, True), (-0.01, True), (0.5, False), (-0.5, False), (float("nan"), False)],
)
def test_judgement(demo, distance, near):
    results = {name: {"bits_per_byte": 2.5 + distance} for name in demo.RUNS}
    assert demo.judge(results | {demo.PLAIN: {"bits_per_byte": 2.5}}) == near


@pytest.mark.parametrize("name", ["plain", "mxfp4"])
def test_scaled_products_need_a_format_that_names_some(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train

    monkeypatch.setattr(sys, "argv", ["train.py", "--format", name, "--matmul", "scaled"])
    with pytest.raises(SystemExit) as ended:
        train.options()
    assert ended.value.code == 2
    assert capsys.readouterr().err.endswith(f", not {name}\n")


def test_a_failed_run_ends_the_demo_with_a_sentence(tmp_path):
    command = [
        sys.executable,
        str(EXAMPLES / "demo.py"),
        "--out",
        str(tmp_path),
        "--text",
        "nowhere",
        "--ranks",
        "1",
    ]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode != 0
    assert "the plain run failed" in result.stderr


def training(out, *options):
    """A run of the example, of one rank, in a process that is killed alone."""
    one = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    small = ["--width", "32", "--layers", "1", "--time", "16", "--batch", "2", "--device", "cpu"]
    format = ["--format", "nvfp4", "--steps", "12", "--text", str(EXAMPLES / "train.py")]
    command = [sys.executable, str(EXAMPLES / "train.py"), *small, *format, "--out", str(out)]
    environment = {**os.environ, **one, **rendezvous}
    return subprocess.Popen([*command, *options], env=environment, stderr=subprocess.PIPE)


def ended(process):
    _, error = process.communicate(timeout=300)
    assert process.returncode == 0, error.decode()


def test_a_run_that_is_killed_while_it_saves_goes_on(tmp_path):
    """From the last checkpoint that is complete, to the same end to the bit."""
    whole, first = tmp_path / "whole.json", tmp_path / "first.json"
    options = ["--save-every", "1", "--checkpoints", str(tmp_path / "kept")]
    uninterrupted, killed = training(whole), training(first, *options)
    saving = tmp_path / "kept" / "step-00000005"
    while killed.poll() is None and not saving.exists():
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert not first.exists()
    assert saving.exists()
    complete = [path.parent.name for path in (tmp_path / "kept").glob("*/.metadata")]
    assert "step-00000004" in complete
    ended(uninterrupted)
    ended(training(first, *options))
    one, other = (json.loads(path.read_text()) for path in (whole, first))
    assert len(other["losses"]) in (7, 8)
    assert other["losses"] == one["losses"][-len(other["losses"]) :]
    assert other["bits_per_byte"] == one["bits_per_byte"]


def test_megatron(tmp_path):
    pytest.importorskip("megatron.core", reason="megatron-core is not installed")
    small = ["--width", "64", "--layers", "1", "--time", "32", "--batch", "4", "--device", "cpu"]
    train = [sys.executable, str(EXAMPLES / "megatron_gpt.py"), *small]
    saved = ["--ranks", "2", "--steps", "3", "--baseline", "--overlap", "--save"]
    loaded = ["--ranks", "1", "--steps", "5", "--format", "nvfp4", "--load"]
    for options in (saved, loaded):
        command = [*train, *options, str(tmp_path / "checkpoint")]
        result = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "bytes of weights gathered a step" in result.stdout
        assert ("against bf16" in result.stdout) == ("--baseline" in options)
    assert "nvfp4 step 3" in result.stdout + result.stderr
