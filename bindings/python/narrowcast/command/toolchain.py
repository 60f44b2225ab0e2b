"""What `narrowcast check` and `narrowcast build` work with: the generator, the runtime's sources,
CMake and a compiler. Each is found, or a sentence says what is missing and what to do.
"""

import os
import shutil
import sys
from pathlib import Path

_PACKAGE = Path(__file__).parent.parent


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
    if not os.access(path, os.X_OK):
        raise BuildError(f"the generator cannot be run: chmod +x {path}")
    return path


def sources() -> Path:
    """The CMake project that a plugin is compiled by."""
    return (_PACKAGE / "source").resolve()


def specs() -> Path:
    """The specs of the formats that come with narrowcast."""
    return _PACKAGE / "spec"


def cmake() -> str:
    return _program("cmake", "Install CMake 3.25 or newer (Debian: cmake; or pip install cmake)")


def build_tool() -> str:
    """CMake's name for the build tool that is here."""
    if _find("ninja"):
        return "Ninja"
    _program("make", "Install ninja (Debian: ninja-build) or make")
    return "Unix Makefiles"


def cxx_compiler() -> str:
    """The C++ compiler: $CXX, or the system's."""
    if wanted := os.environ.get("CXX"):
        if whole := _find(wanted):
            return os.path.abspath(whole)
        program, *options = wanted.split() or [""]
        if not (found := _find(program)):
            raise BuildError(f"CXX={wanted}: there is no such program. Set it to a C++ compiler")
        return ";".join([os.path.abspath(found), *options])  # a list of CMake's
    for name in ("c++", "g++", "clang++"):
        if found := _find(name):
            return found
    raise BuildError(
        "there is no C++ compiler (c++, g++, clang++). Install one that knows C++20 (Debian: g++), "
        "or name yours: CXX=/path/to/compiler"
    )


def cuda_compiler() -> str | None:
    """nvcc: $CUDACXX, or the one on the path or where CUDA is usually installed."""
    if wanted := os.environ.get("CUDACXX"):
        if not (found := _find(wanted)):
            raise BuildError(f"CUDACXX={wanted}: there is no such program. Set it to nvcc")
        return os.path.abspath(found)
    usual = Path(os.environ.get("CUDA_HOME", "/usr/local/cuda"), "bin", "nvcc")
    return _find("nvcc") or _find(str(usual))


def _find(name: str) -> str | None:
    """On the path, or beside the running Python, where pip puts programs."""
    return shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))


def _program(name: str, advice: str) -> str:
    found = _find(name)
    if found is None:
        raise BuildError(f"there is no {name}, which compiles a plugin's files. {advice}")
    return found
