"""docs/architecture.md names every module, for a reader looks there for what it is about."""

import re
from pathlib import Path

from sources import CPP, ROOT, files

FOLDERS = ("bindings", "codegen", "runtime")
# What the page names together: a folder's files, those of one tile, the two machines of a module.
TOGETHER = re.compile(r"codegen/(emit|picture)/|/cuda_code_|_(cpu|cuda)\.\w+$|/__\w+__\.py$")


def test_every_module_is_named():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = {Path(words).stem for words in re.findall(r"`([\w./]+)`", page)}
    modules = [path for path in files({*CPP, ".py"}, FOLDERS) if not TOGETHER.search(str(path))]
    assert len(modules) > 200
    assert [str(path) for path in modules if path.stem not in named] == []
