"""docs/adding-a-format.md is true: a reader's steps, taken from the page itself.

Its fenced blocks are run in their order, in a folder of their own. `toml` and `python` blocks are
files that the reader saves (named by `format = ` and by the first comment); `sh` blocks are typed;
a `text` block is what the commands before it print, where `...` stands for anything. What comes
under "In the source tree" is run in a copy of the tree, without whose other formats `make test` is
quick.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ.get("NARROWCAST_BUILD", ROOT / "build"))
PAGE = ROOT / "docs/adding-a-format.md"
IN_TREE = "\n## In the source tree"

# The reader's programs are those of this Python.
PROGRAMS = {
    "python": 'exec {python} "$@"',
    "narrowcast": 'exec {python} -m narrowcast "$@"',
    "torchrun": 'exec {python} -m torch.distributed.run "$@"',
}
# How a process may die behind its script's last line: a thread of gloo's that still lets go of
# tensors wants an interpreter that has ended (ProcessGroupGloo::runLoop, PyEval_AcquireThread). On
# a busy machine one in a hundred scripts that train plain weights does; such a run counts as none.
TORCH_ENDED_BADLY = "terminate called without an active exception"
# What `make` does in the copy of the tree: the rule of its own Makefile, with the generator that is
# built already; of the tests, those of the generated format.
MAKE = r"""
make() {{
  if [ "$1" = regenerate ]; then
    command make regenerate VENV=none PYTHON={python} BUILD={build} configure=true
  else
    "{python}" tools/regenerate.py "{build}/codegen/narrowcast-codegen" --check
    find generated -mindepth 1 -maxdepth 1 -type d -not -name "$FORMAT" -exec rm -r {{}} +
    cmake -S . -B build -DNARROWCAST_CODEGEN=OFF -DNARROWCAST_BINDINGS=OFF \
      -DNARROWCAST_CUDA=OFF -DNARROWCAST_AVX=OFF >/dev/null
    cmake --build build --parallel --target "format_$FORMAT" "golden_$FORMAT" >/dev/null
    ctest --test-dir build -R golden --no-tests=error
  fi
}}
"""


def blocks(text):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def pattern(expected):
    return re.escape(expected.rstrip()).replace(re.escape("..."), ".*?")


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Runs shell text as the reader would, and returns what it prints."""
    if not (BUILD / "codegen/narrowcast-codegen").exists():
        pytest.skip(f"needs the generator, in {BUILD}")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name, text in PROGRAMS.items():
        program = programs / name
        program.write_text("#!/bin/sh\n" + text.format(python=sys.executable) + "\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    for name in ("MAKEFLAGS", "NARROWCAST_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if not torch.cuda.is_available():  # what nothing here can run is compiled in haste, to PTX
        monkeypatch.setenv("CUDAARCHS", "90a-virtual")
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Xcicc -O1")

    def typed(commands, folder):
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(commands, folder):
        answer = typed(commands, folder)
        if answer.returncode != 0 and TORCH_ENDED_BADLY in answer.stdout:
            answer = typed(commands, folder)
        assert answer.returncode == 0, (
            f"{commands}\nended with {answer.returncode}:\n{answer.stdout}"
        )
        return answer.stdout

    return run


@pytest.mark.slow
def test_outside_the_tree(reader, tmp_path):
    folder = tmp_path / "reader"
    folder.mkdir()
    page = PAGE.read_text(encoding="utf-8").split(IN_TREE)[0]
    checked, printed = 0, ""
    for language, text in blocks(page):
        if language == "sh":
            printed = reader(text, folder)
        elif language == "text":
            assert re.fullmatch(pattern(text), printed.rstrip(), re.DOTALL), printed
            checked += 1
        else:
            file_of(language, text, folder).write_text(text)
    name = format_of(page)
    assert not (ROOT / "spec" / f"{name}.toml").exists(), "the page's format must be a new one"
    assert (folder / "formats" / f"{name}.so").exists()
    assert checked >= 6


def file_of(language, text, folder):
    """The path that a block is saved as."""
    if language == "toml":
        return folder / f"{format_of(text)}.toml"
    assert language == "python", f"a block of {language} is nothing to run"
    return folder / re.match(r"# (\w+\.py)\n", text)[1]


def format_of(text):
    return re.search(r'^format\s*= "(\w+)"', text, re.MULTILINE)[1]


def tree_of(folder):
    """Every file of a folder with its bytes."""
    return {
        path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.slow
def test_in_the_tree(reader, tmp_path):
    tree, page = tmp_path / "tree", PAGE.read_text(encoding="utf-8")
    ignore = shutil.ignore_patterns(
        "build", "build-*", "__pycache__", ".git", ".venv*", ".*_cache", "demo", "dist"
    )
    shutil.copytree(ROOT, tree, ignore=ignore, symlinks=True)
    before = tree_of(tree)
    spec = next(text for language, text in blocks(page) if language == "toml")
    name = format_of(spec)
    (tmp_path / f"{name}.toml").write_text(spec)
    make = f"FORMAT={name}\n" + MAKE.format(python=sys.executable, build=BUILD)
    commands = blocks(page.split(IN_TREE)[1])[0][1]
    regenerate, test = commands.split("make test")
    reader(make + regenerate, tree)

    new = set(tree_of(tree)) - set(before)
    edited = {path for path in before if tree_of(tree)[path] != before[path]}
    index = Path("generated", "README.md")
    assert edited == {index}, "other files were edited than the table of all formats"
    assert f"({name}/page.md)" in (tree / index).read_text(encoding="utf-8")
    assert Path("tests/codegen/golden", f"{name}.txt") in new
    generated = {path.name for path in new if path.parent == Path("generated", name)}
    for file in re.findall(r"`(\w+\.\w+)`", page.split("| generated |")[1].split("\n## ")[0]):
        assert file in generated, f"the page's list of generated files has {file}"
    assert len(new) == 2 + len(generated)
    assert "100% tests passed" in reader(f"{make}make test{test}", tree)
