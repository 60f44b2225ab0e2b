"""tools/regenerate.py, which `make regenerate` runs: in a copy of what it reads and writes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GENERATOR = Path(os.environ.get("NARROWCAST_BUILD", ROOT / "build")) / "codegen/narrowcast-codegen"
READ = ("tools", "spec", "generated", "tests/codegen/golden", "bindings/python/narrowcast/pages")
NAME = "nvfp4"


@pytest.fixture
def tree(tmp_path):
    if not GENERATOR.exists():
        pytest.skip(f"needs the generator, {GENERATOR}")
    for folder in READ:
        shutil.copytree(ROOT / folder, tmp_path / folder)
    shutil.copy(ROOT / ".clang-format", tmp_path)
    return tmp_path


def run(tree, *options, **environment):
    answer = subprocess.run(
        [sys.executable, tree / "tools/regenerate.py", GENERATOR, *options],
        env=os.environ | environment,
        capture_output=True,
        text=True,
    )
    return answer.returncode, answer.stdout, answer.stderr


def test_the_committed_files_are_fresh(tree):
    assert run(tree, "--check") == (0, "", "")
    assert run(tree) == (0, "", "")


def test_what_changed_is_written_and_what_is_stale_removed(tree):
    folder = tree / "generated" / NAME
    before = (folder / "cast.hpp").read_text()
    times = (folder / "gather.hpp").stat().st_mtime_ns
    origin = f"// Made from spec/{NAME}.toml; edit that."
    (folder / "cast.hpp").write_text(before + "edited")
    (folder / "page.md").unlink()
    (folder / "old.hpp").write_text(origin)
    (folder / "notes.txt").write_text("by hand")
    (tree / "generated/by_hand").mkdir()
    (tree / "generated/by_hand/copy.hpp").write_text(origin)  # made of another format's spec
    (folder / "link.hpp").symlink_to("old.hpp")

    written, removed = [f"generated/{NAME}/{file}" for file in ("cast.hpp", "page.md")], "old.hpp"
    status, printed, error = run(tree, "--check")
    fresh = [f"not fresh: {path}" for path in written]
    assert printed.splitlines() == [*fresh, f"stale: generated/{NAME}/{removed}"]
    assert status == 1
    assert error == "error: generated is not what the specs make; run `make regenerate`\n"
    assert (folder / "old.hpp").exists()
    assert not (folder / "page.md").exists()

    status, printed, error = run(tree)
    wrote = [f"wrote {path}" for path in written]
    assert printed.splitlines() == [*wrote, f"removed generated/{NAME}/{removed}"]
    assert (status, error) == (0, "")
    assert (folder / "cast.hpp").read_text() == before
    assert (folder / "gather.hpp").stat().st_mtime_ns == times
    assert (folder / "notes.txt").exists()
    assert (folder / "link.hpp").is_symlink()
    assert (tree / "generated/by_hand/copy.hpp").exists()


def test_a_spec_that_is_gone_takes_its_folder_along(tree):
    for spec in (tree / "spec").glob("*.toml"):
        if spec.stem not in ("mxfp4", "mxint8", "mxfp8_e4m3", "mxfp8_e5m2"):
            spec.unlink()
    (tree / "tests/codegen/golden/mxint8.txt").unlink()
    status, _, error = run(tree, "--check")
    golden = "tests/codegen/golden/mxint8.txt"
    assert status == 1
    assert error == f"error: {golden}: no golden bytes yet; run `make regenerate`\n"
    status, printed, _ = run(tree)
    assert status == 0
    assert f"froze {golden}\n" in printed
    assert f"removed generated/{NAME}/cast.hpp\n" in printed
    assert not (tree / "generated" / NAME).exists()
    assert NAME not in (tree / "generated/README.md").read_text(encoding="utf-8")
    assert run(tree, "--check") == (0, "", "")


def test_without_clang_format_line_breaks_do_not_count(tree, tmp_path):
    """The program is looked for beside Python and on the path."""
    alone = tmp_path / "alone"
    alone.mkdir()
    python = alone / "python"
    python.symlink_to(Path(sys.executable).resolve())
    command = [python, tree / "tools/regenerate.py", GENERATOR]
    environment = {"PATH": str(alone)}

    def check(*options):
        return subprocess.run([*command, *options], env=environment, capture_output=True, text=True)

    assert check("--check").returncode == 0
    cast = tree / "generated" / NAME / "cast.hpp"
    cast.write_text(cast.read_text().replace("struct", "class"))
    answer = check("--check")
    assert answer.returncode == 1
    assert f"not fresh: generated/{NAME}/cast.hpp" in answer.stdout
    assert "no clang-format 14 here" in answer.stdout
    assert check().returncode == 0
    assert "struct Sequence" in cast.read_text()
