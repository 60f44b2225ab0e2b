"""generated/ and the golden bytes from spec/: code and facts by the generator, pages by
narrowcast.pages, the C++ formatted by clang-format.

    python tools/regenerate.py GENERATOR [--check]

Writes what changed, and removes what was made of specs that are gone. `--check` writes nothing, and
fails if something would change.

Without clang-format 14, C++ is compared without spaces, line breaks and the marks that a broken
comment or string has more; what differs even so is written as the generator made it.
"""

import importlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
GENERATED, GOLDEN = Path("generated"), Path("tests/codegen/golden")  # from ROOT
CPP = (".cpp", ".hpp")

sys.dont_write_bytecode = True  # nothing is left beside the package's sources
sys.path.insert(0, str(ROOT / "bindings/python/narrowcast"))
pages = importlib.import_module("pages")  # without the package, which need not be built


def main() -> int:
    generator, *options = sys.argv[1:]
    check = options == ["--check"]
    weights, states = (
        sorted(path.relative_to(ROOT) for path in (ROOT / "spec").glob(pattern))
        for pattern in ("*.toml", "states/*.toml")
    )
    specs = [*weights, *states]
    missing = [
        path for spec in weights if not (ROOT / (path := GOLDEN / f"{spec.stem}.txt")).exists()
    ]
    if check and missing:
        return _fail(f"{missing[0]}: no golden bytes yet")
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder)
        command = [Path(generator).absolute(), "--in-tree", "--golden", GOLDEN, "-o", made, *specs]
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if done.returncode != 0:
            return done.returncode
        print("".join(re.findall(r"froze .*\n", done.stdout)), end="")
        _add_pages(made)
        formatted = _format(made)
        files = {p.relative_to(made): p.read_text("utf-8") for p in made.rglob("*") if p.is_file()}
    changed = [path for path, text in files.items() if not _is_there(path, text, formatted)]
    stale = [path for path in _made_of_specs() if path not in files]
    for path in sorted(changed):
        print("not fresh:" if check else "wrote", GENERATED / path)
        if not check:
            (ROOT / GENERATED / path).parent.mkdir(exist_ok=True)
            (ROOT / GENERATED / path).write_text(files[path], encoding="utf-8")
    for path in sorted(stale):
        print("stale:" if check else "removed", GENERATED / path)
        if not check:
            _remove(ROOT / GENERATED / path)
    if changed and not formatted:
        print("no clang-format 14 here (tools/requirements.txt has it): C++ is not formatted")
    return _fail(f"{GENERATED} is not what the specs make") if check and changed + stale else 0


def _fail(what: str) -> int:
    print(f"error: {what}; run `make regenerate`", file=sys.stderr)
    return 1


def _add_pages(made: Path) -> None:
    folders = sorted(path.parent for path in made.glob("*/facts.json"))
    for folder in folders:
        pages.write(folder)
    facts = [json.loads((folder / "facts.json").read_text("utf-8")) for folder in folders]
    (made / "README.md").write_text(pages.index(facts), encoding="utf-8")


def _format(made: Path) -> bool:
    """Formats the C++ as .clang-format says. False where there is no clang-format of the version
    that the tree is formatted with.
    """
    beside = Path(sys.executable).parent / "clang-format"
    for program in filter(shutil.which, (str(beside), "clang-format-14", "clang-format")):
        version = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
        if "version 14." in version:
            style = f"--style=file:{ROOT / '.clang-format'}"
            cpp = [path for path in made.rglob("*") if path.suffix in CPP]
            subprocess.run([program, "-i", style, *cpp], check=True)
            return True
    return False


def _is_there(path: Path, text: str, formatted: bool) -> bool:
    """Whether the tree has the file with this text."""
    if not (ROOT / GENERATED / path).is_file():
        return False
    there = (ROOT / GENERATED / path).read_text("utf-8")
    if formatted or path.suffix not in CPP:
        return there == text
    return re.sub(r'[\s"/]', "", there) == re.sub(r'[\s"/]', "", text)


def _made_of_specs() -> list[Path]:
    """The files in folders of formats that say so. Others, and links, are somebody's."""
    found = []
    for path in (ROOT / GENERATED).glob("*/*"):
        plain = path.is_file() and not path.is_symlink() and not path.parent.is_symlink()
        spec = f"states/{path.stem}" if path.parent.name == "states" else path.parent.name
        if plain and f"Made from spec/{spec}.toml;" in path.read_text("utf-8")[:1000]:
            found.append(path.relative_to(ROOT / GENERATED))
    return found


def _remove(path: Path) -> None:
    path.unlink()
    if not any(path.parent.iterdir()):
        path.parent.rmdir()


if __name__ == "__main__":
    sys.exit(main())
