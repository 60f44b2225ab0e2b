"""Who may know whom: what each folder may include, and that no format is named in code."""

import re

import pytest

from sources import CMAKE, CPP, ROOT, code_of, files, includes

# Project folders whose headers a folder may include.
MAY_INCLUDE = {
    "bindings": {"bindings", "runtime"},
    "codegen": {"codegen", "runtime"},
    "generated": {"generated", "runtime"},
    "runtime": {"runtime"},
}
PROJECT = {*MAY_INCLUDE, "examples", "spec", "tests"}
TORCH = re.compile(r"^(torch|ATen|c10|pybind11|Python\.h)\b")
CUDA = re.compile(r"^(cuda|cub/|thrust/|nv/|cooperative_groups)")


def layer_faults(path, folder):
    for number, included in includes(path):
        where = f"{path}:{number} includes {included}"
        first = included.split("/")[0]
        if "/" in included and first in PROJECT - MAY_INCLUDE[folder]:
            yield f"{where}: {folder}/ may include {sorted(MAY_INCLUDE[folder])} alone"
        if TORCH.match(included) and folder != "bindings":
            yield f"{where}: bindings/ alone knows torch and Python"
        if CUDA.match(included) and folder == "codegen":
            yield f"{where}: codegen/ does not know CUDA"
        if CUDA.match(included) and path.suffix in {".hpp", ".h"}:
            yield f"{where}: headers for nvcc alone end in .cuh"
        if included.endswith(".cuh") and path.suffix not in {".cu", ".cuh"}:
            yield f"{where}: .cuh headers are for nvcc alone"


@pytest.mark.parametrize("folder", MAY_INCLUDE)
def test_includes_stay_in_their_layer(folder):
    paths = files(CPP, [folder])
    assert paths, f"{folder}/ has no sources: this test looks in the wrong place"
    faults = [fault for path in paths for fault in layer_faults(path, folder)]
    assert not faults, "\n".join(faults)


# A name on its own or within a longer one, as a variable or a target would have it; not part of
# another word.
NAMES = sorted(path.stem for path in (ROOT / "spec").glob("*.toml"))
NAMED = re.compile(rf"(?<![A-Za-z0-9])({'|'.join(map(re.escape, NAMES))})(?![A-Za-z0-9])")


def names_in(path):
    for number, line in enumerate(code_of(path).splitlines(), 1):
        for match in NAMED.finditer(line):
            yield f"{path}:{number}: {match[0]}"


def test_no_format_is_named_in_code():
    assert len(NAMES) >= 15
    paths = files(CPP | CMAKE | {".py", ".pyi"}, ["bindings", "codegen", "runtime"])
    paths += files(CMAKE, ["cmake", "generated"])
    assert {path.suffix for path in paths} >= CPP | {".py", ".txt", ".cmake"}
    theirs = "bindings/python/narrowcast/registry/layouts.py"  # the names that readers know
    faults = [fault for path in paths if str(path) != theirs for fault in names_in(path)]
    assert not faults, "code may not name a format:\n" + "\n".join(faults)


@pytest.mark.parametrize(
    ("suffix", "text", "named"),
    [
        (".cpp", "// {}\nint x;  /* {} */", False),
        (".cpp", 'auto s = "{}";', True),
        (".cuh", "int {}_tile;", True),
        (".hpp", 'R"cc(  // {} )cc"', True),
        (".py", '"""{}"""\nx = 1  # {}', False),
        (".py", "x = '{}'", True),
        (".txt", "# {}\nadd_library(a b)", False),
        (".cmake", "set(formats {})", True),
    ],
)
def test_a_name_is_found_in_code_and_not_in_comments(tmp_path, suffix, text, named):
    for name in NAMES:
        path = tmp_path / f"source{suffix}"
        path.write_text(text.replace("{}", name), encoding="utf-8")
        assert bool([*names_in(path)]) == named, name


def test_python_package_stands_alone():
    """The package imports torch, safetensors and the standard library; never what only the tests
    install. The folder of its name alone imports a library that a user brings along, and the file
    that draws imports matplotlib.
    """
    import ast
    import sys

    always = {*sys.stdlib_module_names, "torch", "safetensors", "narrowcast"}
    for path in files({".py"}, ["bindings"]):
        own = {path.parent.name} & {"megatron", "torchtitan"}
        drawing = {"matplotlib"} if path.name == "chart.py" else set()
        allowed = always | own | drawing
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                modules = [node.module]
            else:
                continue
            for module in modules:
                assert module.split(".")[0] in allowed, f"{path}:{node.lineno} imports {module}"
