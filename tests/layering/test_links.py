"""Links in the documentation lead to files and headings that are there."""

import re

import pytest

from sources import ROOT

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "spec" / "README.md"])
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")


def without_code(page):
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def headings(page):
    """The anchors that GitHub gives a page's headings."""
    text = page.read_text(encoding="utf-8")
    lines = re.findall(r"^#+ (.*)$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in lines}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    dead = []
    for path, anchor in LINK.findall(without_code(page)):
        target = (page.parent / path).resolve() if path else page
        found = target.exists() and (not anchor or anchor in headings(target))
        dead += [] if found else [f"{path}#{anchor}"]
    assert not dead
