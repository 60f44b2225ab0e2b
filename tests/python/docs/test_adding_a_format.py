"""docs/adding-a-format.md is true: a reader's steps, taken from the page itself.

Its fenced blocks are run in their order, in a folder of their own (page_reader). What comes under
"In the source tree" is run in a copy of the tree, without whose other formats `make test` is quick.
"""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

import page_reader
from page_reader import blocks, format_of

ROOT = Path(__file__).parents[3]
BUILD = Path(os.environ.get("NARROWCAST_BUILD", ROOT / "build"))
PAGE = ROOT / "docs/adding-a-format.md"
IN_TREE = "\n## In the source tree"

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


@pytest.fixture
def reader(tmp_path, monkeypatch):
    """Runs shell text as the reader would, and returns what it prints."""
    if not (BUILD / "codegen/narrowcast-codegen").exists():
        pytest.skip(f"needs the generator, in {BUILD}")
    return page_reader.reader(tmp_path / "programs", monkeypatch)


@pytest.mark.slow
def test_outside_the_tree(reader, tmp_path):
    folder = tmp_path / "reader"
    folder.mkdir()
    page = PAGE.read_text(encoding="utf-8").split(IN_TREE)[0]
    checked = page_reader.follow(page, folder, reader)
    name = format_of(page)
    assert not (ROOT / "spec" / f"{name}.toml").exists(), "the page's format must be a new one"
    assert (folder / "formats" / f"{name}.so").exists()
    assert checked >= 6


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

    after = tree_of(tree)
    new = set(after) - set(before)
    edited = {path for path in before if after[path] != before[path]}
    index = Path("generated", "README.md")
    assert edited == {index}, "other files were edited than the table of all formats"
    assert f"({name}/page.md)" in (tree / index).read_text(encoding="utf-8")
    assert Path("tests/codegen/golden", f"{name}.txt") in new
    generated = {path.name for path in new if path.parent == Path("generated", name)}
    for file in re.findall(r"`(\w+\.\w+)`", page.split("| generated |")[1].split("\n## ")[0]):
        assert file in generated, f"the page's list of generated files has {file}"
    assert len(new) == 2 + len(generated)
    assert "100% tests passed" in reader(f"{make}make test{test}", tree)
