"""What a format's page says, read back for the tests."""

from pathlib import Path

import reference

ROOT = Path(__file__).parents[3]
GENERATED = ROOT / "generated"
SHAPE = 300, 520  # of the matrix that pages show
NAMES = sorted(path.stem for path in (ROOT / "spec").glob("*.toml"))
FORMATS = {name: reference.load_format(ROOT / "spec" / f"{name}.toml") for name in NAMES}
USAGES = ("rowwise", "columnwise")


def tables(path):
    """The rows of all tables of a page, as lists of cells, heads and rules left out."""
    lines = path.read_text(encoding="utf-8").splitlines()
    rows = []
    for above, line in zip(["", *lines], lines, strict=False):
        is_rule = set(line) <= set("|-") and line.startswith("|")
        if is_rule:
            rows.pop()
        elif line.startswith("|"):
            rows.append([cell.strip() for cell in line.strip("|").split("|")])
        assert not is_rule or above.startswith("|"), f"{path}: a rule without a head"
    return rows


def facts(name):
    """The two-column table of a page."""
    rows = tables(GENERATED / name / "page.md")
    return {row[0]: row[1] for row in rows if len(row) == 2}
