"""What `narrowcast check` and `narrowcast build` work with: the generator, the runtime's sources,
and the programs that CMake needs.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent
SOURCES = (_PACKAGE / "source").resolve()  # the CMake project that a plugin is compiled by
SPECS = _PACKAGE / "spec"  # of the formats that come with narrowcast

# A compiler may print in any encoding.
TEXT = {"encoding": "utf-8", "errors": "replace"}


class BuildError(Exception):
    """A plugin that cannot be built, for a reason that a user can mend. The text says how."""


def generator() -> Path:
    """The generator that this installation has. BuildError if it was installed without one."""
    path = _PACKAGE / "bin" / "narrowcast-codegen"
    if not path.exists():
        raise BuildError(
            f"this installation has no generator ({path}), because toml++ was not there when it "
            "was made. Install toml++ (Debian, Ubuntu: libtomlplusplus-dev; Fedora: "
            "tomlplusplus-devel) and then narrowcast once more"
        )
    return path


def environment() -> dict[str, str]:
    """That of the programs: they are looked for on the path, beside the running Python, where pip
    puts cmake and ninja, and where CUDA is usually installed.
    """
    cuda = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    places = [os.environ.get("PATH", os.defpath), os.path.dirname(sys.executable), f"{cuda}/bin"]
    return os.environ | {"PATH": os.pathsep.join(places)}


def find(program: str) -> str | None:
    return shutil.which(program, path=environment()["PATH"])


def cmake() -> str:
    """BuildError that names all that is missing, of this and what it needs."""
    compilers = (os.environ.get("CXX") or "c++", "g++", "clang++")
    needs = {"cmake": ("cmake",), "ninja or make": ("ninja", "make"), "C++ compiler": compilers}
    missing = [name for name, programs in needs.items() if not any(map(find, programs))]
    if missing:
        raise BuildError(
            f"there is no {', no '.join(missing)}, which building a format takes: install CMake "
            "3.25 or newer and Ninja (pip install cmake ninja), and GCC 12 or newer or Clang"
        )
    return find("cmake")


def run(*command: str | Path) -> subprocess.CompletedProcess:
    """Runs a program to its end, and returns what it printed. BuildError if a signal ended it."""
    done = subprocess.run(command, capture_output=True, env=environment(), **TEXT)
    if done.returncode < 0:
        raise BuildError(f"{command[0]} was ended by signal {-done.returncode}: run it once more")
    return done
