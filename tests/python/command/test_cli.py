"""The command line: narrowcast list, and narrowcast show."""

import os
import subprocess
import sys

import pytest
import torch

import narrowcast as nc
from narrowcast.__main__ import main


def test_list(capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:2] == ["format", "bits"]
    end = lines.index("")
    assert [line.split()[0] for line in lines[end + 2 :]] == nc.state_formats()
    lines = lines[1:end]
    assert [line.split()[0] for line in lines] == nc.formats()
    for line in lines:
        f = nc.format(line.split()[0])
        assert f.path in line
        assert f.gather in line
        assert f.element in line


def test_a_reader_that_leaves():
    """`narrowcast list | head` may end before everything is written."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "narrowcast", "list"]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=300)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (1, b"")


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"narrowcast {nc.__version__}, torch {torch.__version__}\n"


def test_show_every_format(capsys, format):
    assert main(["show", format, "--shape", "128x256"]) == 0
    shown = capsys.readouterr().out
    f = nc.format(format)
    for fact in (f.summary, f.reference, f.path, f"{f.bits_per_element:.6g}", "row step"):
        assert fact in shown
    assert "rowwise: a scale for each" in shown
    assert "columnwise: a scale for each" in shown
    matmul = f.matmul and [
        f.matmul.input,
        f.matmul.forward.kind,
        f.matmul.forward.machines,
    ]
    assert all(word in shown for word in matmul or ["scaled products   none"])


def test_show_bytes(capsys):
    """Shapes and sizes are those of docs/numerics.md's example, 300 x 520."""
    assert main(["show", "nvfp4", "--shape", "300x520"]) == 0
    shown = capsys.readouterr().out
    for words in (
        "data    300x260 uint8, 78,000 bytes",
        "scales  384x36 uint8, 13,824 bytes, 300x33 of them used",
        "data    520x150 uint8, 78,000 bytes",
        "scales  640x20 uint8, 12,800 bytes, 520x19 of them used",
        "| 0,1 0,0 | 0,3 0,2 |",
        "| 1,0 0,0 | 3,0 2,0 |",
        "| 0-15,0  | 16-31,0 |",
    ):
        assert words in shown


@pytest.mark.parametrize(
    ("name", "shape", "drawn"),
    [
        (
            *("nvfp4", "4x2"),
            "| 0,1 0,0 | / | 1,1 1,0 | / | 2,1 2,0 | / . / | 0,0-1 | / | 1,0-1 | / | 2,0-1 | / ."
            " / | 1,0 0,0 | 3,0 2,0 | / | 1,1 0,1 | 3,1 2,1 | / | 0-3,0 | / | 0-3,1 |",
        ),
        (
            *("fp8_block128", "2x129"),
            "| 0,0 | 0,1 | 0,2 | 0,3 | .. / | 1,0 | 1,1 | 1,2 | 1,3 | .. / "
            "| 0-1,0-127 | 0-1,128   | / | 0,0 | 1,0 | / | 0,1 | 1,1 | / | 0,2 | 1,2 | / . / "
            "| 0-1,0-127 | / | 0-1,128   |",
        ),
        ("fp8_e4m3", "0x8", "| all | / | all |"),
    ],
)
def test_show_draws_what_is_there(capsys, name, shape, drawn):
    """No element beyond the matrix, no scale of padding, and dots only where more follows."""
    assert main(["show", name, "--shape", shape]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert " / ".join(line for line in lines if line.startswith(("|", "."))) == drawn


def test_shape_that_cannot_be_held(capsys):
    assert main(["show", "nvfp4", "--shape", "33x64"]) == 0
    assert "cannot hold a 33x64 matrix columnwise" in capsys.readouterr().out


def test_errors(capsys):
    assert main(["show", "nvfp5"]) == 1
    assert "did you mean nvfp4" in capsys.readouterr().err
    for arguments in ([], ["show"], ["show", "nvfp4", "--shape", "300"], ["dance"]):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        assert exit_.value.code == 2
    assert "'300' is not ROWSxCOLUMNS" in capsys.readouterr().err
