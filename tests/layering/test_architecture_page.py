"""docs/architecture.md says what every folder is about."""

import re

from sources import CPP, ROOT, files

FOLDERS = ("bindings", "codegen", "runtime")


def test_every_folder_is_named():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(?:\w+/)*(\w+)/`", page)) | set(
        re.findall(r"^#+ (\w+)/$", page, re.M)
    )
    folders = {path.parent.name for path in files({*CPP, ".py"}, FOLDERS)} - {"narrowcast"}
    assert len(folders) > 20
    assert sorted(folders - named) == []
