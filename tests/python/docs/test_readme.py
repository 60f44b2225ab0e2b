"""The README's program runs as it stands, on two ranks, and for a format that is gathered in
another way, with the model and the data of docs/installing.md; its picture shows the formats'
facts; the files that it names are there.
"""

import re
import subprocess
import sys

import pytest

from page_programs import DOCS, ROOT, programs, run_on_ranks

README = ROOT / "README.md"
INSTALLING = DOCS / "installing.md"
AFTER = """
converted = [p for p in model.parameters() if isinstance(p.to_local(), nc.MasterWeight)]
assert len(converted) == 3
assert all(optimizer.state[p]["step"] == len(batches) for p in model.parameters())
assert loss < 1, loss  # of 32 classes: 3.5 at first
"""


def program():
    (model,), (rest,) = map(programs, (INSTALLING, README))
    assert 'nc.convert(model, "fp8_e4m3", matmul="scaled")' in rest
    return f"{model}\n{rest}"


@pytest.mark.parametrize(
    ("ranks", "name", "is_compiled"), [(2, "fp8_e4m3", True), (1, "mxfp8_e4m3", False)]
)
def test_program(ranks, name, is_compiled, tmp_path):
    environment = {"CUDA_VISIBLE_DEVICES": "", "TORCH_COMPILE_DISABLE": str(int(not is_compiled))}
    text = program().replace("fp8_e4m3", name) + AFTER
    run_on_ranks(tmp_path / "train.py", text, ranks, **environment)


def test_picture_shows_the_facts(tmp_path):
    drawn = tmp_path / "overview.svg"
    command = [sys.executable, str(ROOT / "tools" / "draw_overview.py"), str(drawn)]
    subprocess.run(command, check=True, timeout=300)
    committed = (ROOT / "docs" / "overview.svg").read_text(encoding="utf-8")
    assert committed == drawn.read_text(encoding="utf-8"), "run `python tools/draw_overview.py`"


def test_files_that_it_names_are_there():
    named = re.findall(r"`((?:\w+/)+[\w.]*)`", README.read_text(encoding="utf-8"))
    assert len(named) > 8
    roots = (ROOT, ROOT / "bindings" / "python" / "narrowcast")
    assert [name for name in named if not any((root / name).exists() for root in roots)] == []
