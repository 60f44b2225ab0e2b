"""The packages of narrowcast have an order: each imports only from those above it, so no two import
each other, and a reader can take them one after another.
"""

import ast

import pytest

from sources import ROOT

PACKAGE = ROOT / "bindings" / "python" / "narrowcast"

# From the ground up. fsdp/ stands on flat/, whose reduction of shared blocks its casts use.
ORDER = [
    "pages",
    "registry",
    "ranks",
    "tensor",
    "master",
    "flat",
    "fsdp",
    "operators",
    "matmul",
    "optimizer",
    "muon",
    "optim",
    "parallel",
    "checkpoint",
    "conversion",
    "publishing",
]
ADAPTERS = ["benchmark", "command", "megatron", "torchtitan"]  # which nothing imports
MODULES = {"_C", "__init__", "__main__", "stack_frames", "torch_version"}


def imported(tree):
    """The names of narrowcast that code imports, also within functions; not those that only
    annotations need.
    """
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imported(node)


def arrows():
    """(file, package, package that it imports) of all imports between packages."""
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        own = place.parts[0] if len(place.parts) > 1 else place.stem
        for name in imported(ast.parse(path.read_text(encoding="utf-8"))):
            first, *rest = name.split(".")
            if first == "narrowcast" and rest and rest[0] != own:
                yield str(place), own, rest[0]


def test_every_package_has_a_place():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(folders - {*ORDER, *ADAPTERS}) == []
    assert sorted({path.stem for path in PACKAGE.glob("*.py")} - MODULES) == []


@pytest.mark.parametrize("package", [*ORDER, *ADAPTERS])
def test_a_package_imports_from_those_above_it(package):
    allowed = {*MODULES, *(ORDER if package in ADAPTERS else ORDER[: ORDER.index(package)])}
    below = [f"{path} imports {to}" for path, own, to in arrows() if own == package]
    assert [line for line in below if line.rpartition(" ")[2] not in allowed] == []


def test_modules_outside_of_packages_import_none():
    for path, own, to in arrows():
        if own in MODULES - {"__init__", "__main__"}:
            assert to in MODULES, f"{path} imports {to}"
