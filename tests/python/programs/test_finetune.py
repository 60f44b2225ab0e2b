"""examples/finetune.py trains, goes on where it was on other ranks, and transformers reads its
model with the same loss; its mistakes are one sentence.
"""

import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed.checkpoint as dcp

for package in ("matplotlib", "tqdm", "transformers"):
    pytest.importorskip(package, reason=f"{package} is not installed")

EXAMPLES = Path(__file__).parents[3] / "examples"
PROGRAM = str(EXAMPLES / "finetune.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SMALL = ["--device", "cpu", "--batch", "2", "--length", "16", "--data", PROGRAM]


@pytest.fixture
def finetune(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import finetune

    return finetune


def trained(folder, *options, launcher=()):
    """What a run prints."""
    command = [sys.executable, *launcher, PROGRAM, *SMALL, "--out", str(folder), *options]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def losses(folder, step):
    """Those of a checkpoint."""
    state = {"losses": []}
    dcp.load(state, checkpoint_id=folder / "checkpoints" / f"step-{step:08d}", no_dist=True)
    return state["losses"]


def test_one_process_then_two_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # of each rank, because other tests run beside it
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    folder = tmp_path / "run"
    trained(folder, "--steps", "2")
    shown = trained(folder, "--steps", "4", "--resume", launcher=TORCHRUN)
    assert len(losses(folder, 4)) == 4
    assert losses(folder, 4)[:2] == losses(folder, 2)
    trained_loss, read_loss = shown.split("held-out loss: ")[1].split(" in training, ")
    assert read_loss.startswith(f"{trained_loss} as transformers reads it")
    assert (folder / "loss.png").stat().st_size > 10_000
    assert (folder / "exported" / "config.json").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--out", str(EXAMPLES)], "name another folder, or go on with --resume"),
        (["--format", "mxfp4", "--matmul", "scaled"], "mxfp4 has no scaled products"),
    ],
)
def test_options_that_cannot_be(finetune, options, sentence, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [PROGRAM, *options])
    with pytest.raises(SystemExit):
        finetune.options()
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_models_that_cannot_be_loaded(finetune, tmp_path, monkeypatch):
    finetune.transformers.LlamaForCausalLM(finetune.TINY).save_pretrained(tmp_path / "model")
    for name, sentence in (
        ("nowhere", r"--model \S+nowhere cannot be loaded: [^\n]+"),
        ("model", r"\S+model has no tokenizer: name a model that has one with --tokenizer"),
    ):
        monkeypatch.setattr(sys, "argv", [PROGRAM, "--model", str(tmp_path / name)])
        with pytest.raises(SystemExit, match=f"^{sentence}$"):
            finetune.load(finetune.options())
