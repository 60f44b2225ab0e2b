"""A user's formats, outside the source tree: their specs read, generated, compiled and tested.

In the folder that `build` fills: <format>.so, which nc.load_plugin takes; generated/<format>/, to
be read; and build/, by which an unchanged format is not compiled again.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from narrowcast import pages, registry

_PACKAGE = Path(__file__).parent.parent
_SOURCES = (_PACKAGE / "source").resolve()  # the CMake project that a plugin is compiled by
_SPECS = _PACKAGE / "spec"  # of the formats that come with narrowcast

# A compiler may print in any encoding.
_TEXT = {"encoding": "utf-8", "errors": "replace"}

_COMPILED = re.compile(r"Building (?:CXX|CUDA) object \S*/format_(\w+)-kernels-(\w+)\.dir/")
_MACHINES = re.compile(r"narrowcast: ([CG]PU) kernels for (.+)")
_LAST_LINES = 40


class BuildError(Exception):
    """A plugin that cannot be built, because of a fault that a user can mend. The text says how."""


def check(specs: Sequence[str]) -> bool:
    """Reads specs; prints every error on standard error, and what is right. True if all are."""
    if not _generate("--check-specs", *specs):
        return False
    for spec in specs:
        print(f"{spec}: no errors")
    return True


def build(specs: Sequence[str], output: Path, gpu: str, baseline: bool, no_test: bool) -> bool:
    """Makes <output>/<format>.so from each spec, and tests it. Prints progress, and errors on
    standard error. False if a spec is wrong; BuildError, with what to do, if something is missing,
    does not compile, or does not make the golden bytes. One build at a time fills a folder.

    gpu        kernels for the GPU: "on", "off", or "auto", where nvcc is
    baseline   of the CPU's instruction sets the baseline alone
    no_test    the golden test of each is neither compiled nor run
    """
    start = time.monotonic()
    formats = [Path(spec).stem for spec in specs]
    shipped = {path.stem for path in registry.shipped_plugins()}
    if taken := shipped.intersection(formats):
        raise BuildError(
            f"{', '.join(sorted(taken))}: a format of this name comes with narrowcast, and bytes "
            "belong to a name. Give yours another, in the file and as the file's name"
        )
    if not _generate("-o", output / "generated", *specs):
        return False
    if states := [one for one in formats if (output / f"generated/states/{one}.hpp").exists()]:
        raise BuildError(
            f'{", ".join(states)}: of kind "state", whose code is in every plugin. Put the spec '
            "into spec/states/ of narrowcast's sources, run `make regenerate`, and install them"
        )
    for name in formats:
        pages.write(output / "generated" / name)
        print(f"{name}: generated {output / 'generated' / name}")
    project = _Project(output.resolve())
    project.configure(gpu, baseline)
    project.compile(formats, ("format",) if no_test else ("format", "golden"))
    for name in formats:
        print(f"{name}: built {output / name}.so")
    faulty = [] if no_test else [name for name in formats if not project.test(name)]
    if faulty:
        raise BuildError(
            f"{', '.join(faulty)}: other bytes than the spec means. The fault is not in the spec, "
            "but in narrowcast or in the compiler: please report it, with both versions"
        )
    count = f"{len(formats)} format{'s' * (len(formats) != 1)}"
    print(f"{count}, {time.monotonic() - start:.1f} s. To load:")
    print(f"  NARROWCAST_PLUGINS={output}, or narrowcast.load_plugin({str(output)!r}) in Python")
    return True


def _generate(*arguments: str | Path) -> bool:
    """Runs the generator, whose errors are made for users. Its list of written files is not. Specs
    may name the formats that come with narrowcast.
    """
    answer = run(generator(), "--known", _SPECS, *arguments)
    print(answer.stderr, end="", file=sys.stderr, flush=True)
    return answer.returncode == 0


class _Project:
    """The CMake project in `folder`/build that compiles `folder`/generated to `folder`/*.so."""

    def __init__(self, folder: Path):
        self.folder, self.build = folder, folder / "build"
        self.cmake = cmake()

    def configure(self, gpu: str, baseline: bool) -> None:
        """Says which machines the plugins will be for. CMake finds compilers ($CXX, $CUDACXX)."""
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "NARROWCAST_GENERATED": str(self.folder / "generated"),
            "NARROWCAST_PLUGIN_DIR": str(self.folder),
            "NARROWCAST_CUDA": gpu.upper(),
            "NARROWCAST_AVX": "OFF" if baseline else "ON",
        }
        for part in ("BINDINGS", "CODEGEN", "TESTS", "WERROR"):
            settings[f"NARROWCAST_{part}"] = "OFF"
        # What CMake remembers of compilers may be of another day.
        command = [self.cmake, "--fresh", "-S", str(_SOURCES), "-B", str(self.build)]
        command += ["-G", "Ninja" if find("ninja") else "Unix Makefiles"]
        answer = run(*command, *(f"-D{key}={value}" for key, value in settings.items()))
        if answer.returncode != 0:
            raise self._failed("the build cannot be set up", answer.stdout + answer.stderr)
        machines = " and ".join(f"the {m[1]} ({m[2]})" for m in _MACHINES.finditer(answer.stdout))
        print(f"compiling for {machines}", flush=True)

    def compile(self, formats: Sequence[str], kinds: Sequence[str]) -> None:
        """Prints a line for each kernel file, with the seconds since the start."""
        targets = [f"{kind}_{name}" for kind in kinds for name in formats]
        command = [self.cmake, "--build", str(self.build), "--parallel", str(os.cpu_count() or 1)]
        command += ["--target", *targets]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **_TEXT}
        start, lines = time.monotonic(), []
        with subprocess.Popen(command, env=environment(), **piped) as process:
            for line in process.stdout:
                lines.append(line)
                if compiled := _COMPILED.search(line):
                    seconds = time.monotonic() - start
                    print(f"  {seconds:6.1f} s  {compiled[1]} for {compiled[2]}", flush=True)
        if process.returncode != 0:
            raise self._failed("a plugin does not compile", "".join(lines))

    def test(self, name: str) -> bool:
        """Runs the format's golden test. Prints what it checked, or what differs."""
        program = self.build / "generated" / f"golden_{name}"
        answer = run(program, self.folder / f"{name}.so")
        print(answer.stdout, end="")
        print(answer.stderr, end="", file=sys.stderr)
        return answer.returncode == 0

    def _failed(self, what: str, output: str) -> BuildError:
        log = self.build / "log.txt"
        log.write_text(output, encoding="utf-8")
        last = "\n".join(output.splitlines()[-_LAST_LINES:])
        return BuildError(f"{what}. The end of what was printed (the whole: {log}):\n{last}")


# ---- the generator, and the programs that CMake needs ----


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
    """The path of CMake. BuildError that names every missing program, CMake's compilers too."""
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
    """Runs a program to its end, and returns its output. BuildError if a signal ended it."""
    done = subprocess.run(command, capture_output=True, env=environment(), **_TEXT)
    if done.returncode < 0:
        raise BuildError(f"{command[0]} was ended by signal {-done.returncode}: run it once more")
    return done
