"""docs/benchmarks/: the pages' tables and the plots show the figures of measured.json."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import pages

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "docs" / "benchmarks"
MEASURED = json.loads((FOLDER / "measured.json").read_text(encoding="utf-8"))


def figures(cells):
    return [float(re.match(r"-?[\d.]+", cell)[0]) for cell in cells]


def table(page, row):
    """The figures of the table that begins with this row, by the name in a row's first cell."""
    rows = [r for r in pages.tables(page) if len(r) == row and re.match(r"`\w+`", r[0])]
    return {re.match(r"`(\w+)`", r[0])[1]: r[1:] for r in rows}


@pytest.mark.parametrize(("key", "columns"), [("dequantized", 6), ("optimizer", 7)])
def test_tables_have_the_measured_figures(key, columns):
    shown = {name: figures(cells) for name, cells in table(FOLDER / "README.md", columns).items()}
    left_out = ("format", "passes")
    assert shown == {
        row["format"]: [value for name, value in row.items() if name not in left_out]
        for row in MEASURED[key]
    }


def test_shares_are_those_of_the_page_about_products():
    page = (ROOT / "docs" / "matmul.md").read_text(encoding="utf-8")
    for row in MEASURED["scaled"]:
        for key in {"compiled", "eager"} & row.keys():
            assert re.search(rf"\| {key} \| [\d,]+ \| {row[key]:.3f} \|", page), row["weights"]


def test_links_are_those_of_the_page_about_networks():
    """In the same order: link, weights, gradients, tokens/s, and both shares."""
    rows = [row for row in pages.tables(ROOT / "docs" / "network.md") if len(row) == 6]
    shown = [figures(cell.replace(",", "") for cell in row[3:]) for row in rows if "," in row[3]]
    keys = ("tokens_per_s", "of_bf16", "of_bf16_in_bf16")
    assert shown == [[row[key] for key in keys] for row in MEASURED["network"]]


@pytest.mark.parametrize("plot", ["speed.svg", "optimizer.svg", "peak_memory.svg", "network.svg"])
def test_plots_are_of_these_figures(plot, drawn):
    words = [
        re.findall(r"<text[^>]*>([^<]*)</text>", (f / plot).read_text()) for f in (drawn, FOLDER)
    ]
    assert len(words[0]) > 20
    assert words[0] == words[1], "run `python tools/draw_benchmarks.py`"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("drawn")
    script = ROOT / "tools" / "draw_benchmarks.py"
    subprocess.run([sys.executable, str(script), str(folder)], check=True, timeout=300)
    return folder
