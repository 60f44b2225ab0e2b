"""A user's formats and optimizer rules, outside the source tree: specs read, generated, compiled
and tested, and rules compiled for formats.

In the folder that `build` fills: <format>.so, or of a rule <rule>.so (for plain parameters) and
<rule>.<format>.so, which nc.load_plugin takes; generated/<format>/, to be read; and build/, by
which unchanged sources are not compiled again.
"""

import difflib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from narrowcast import pages, registry

_PACKAGE = Path(__file__).parent.parent
_SOURCES = (_PACKAGE / "source").resolve()  # the CMake project that a plugin is compiled by
_SPECS = _PACKAGE / "spec"  # of the formats that come with narrowcast

# A compiler may print in any encoding.
_TEXT = {"encoding": "utf-8", "errors": "replace"}

_COMPILED = re.compile(
    r"Building (?:CXX|CUDA) object \S*/(?:format_(\w+)|plain_rule)-kernels-(\w+)\.dir/"
)
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


def build(
    specs: Sequence[str],
    output: Path,
    gpu: str,
    baseline: bool,
    no_test: bool,
    rules: Sequence[Path] = (),
) -> bool:
    """Makes <output>/<format>.so from each spec, and tests it. Prints progress, and errors on
    standard error. False if a spec is wrong; BuildError, with what to do, if something is missing,
    does not compile, or does not make the golden bytes. One build at a time fills a folder.

    specs      files; where there are rules also names of formats that come with narrowcast
    gpu        kernels for the GPU: "on", "off", or "auto", where nvcc is
    baseline   of the CPU's instruction sets the baseline alone
    no_test    the golden test of each is neither compiled nor run
    rules      headers NAME.hpp of an optimizer's rule. For each <output>/NAME.so, which updates
               plain parameters, and <output>/NAME.<format>.so are made, in the formats' place
    """
    start = time.monotonic()
    if headers := [one for one in specs if one.endswith(".hpp")]:
        raise BuildError(f"{headers[0]}: the header of a rule stands after --rule")
    if not specs and not rules:
        raise BuildError("nothing is named to build: a spec, or the header of a rule after --rule")
    for header in rules:
        _check_rule(header)
    _check_names(spec for spec in specs if not rules or spec.endswith(".toml"))
    specs = [_spec_of(name) for name in specs] if rules else specs
    formats = [Path(spec).stem for spec in specs]
    if specs and not _generate("-o", output / "generated", *specs):
        return False
    if states := [one for one in formats if (output / f"generated/states/{one}.hpp").exists()]:
        raise BuildError(
            f'{", ".join(states)}: of kind "state", whose code is in every plugin. Put the spec '
            "into spec/states/ of narrowcast's sources, run `make regenerate`, and install them"
        )
    stems = [header.stem for header in rules]
    for name in stems:
        if stems.count(name) > 1 or (output / f"generated/{name}/format.hpp").exists():
            raise BuildError(
                f"{name}: the name of two rules, or of a rule and a format in {output}"
            )
    for name in formats:
        pages.write(output / "generated" / name)
        print(f"{name}: generated {output / 'generated' / name}")
    for rule in rules:
        _remove_older(output, rule, formats)
    for rule in rules or [None]:
        project = _Project(output.resolve(), rule)
        project.configure(gpu, baseline)
        project.compile(formats, ("format",) if no_test else ("format", "golden"))
        for name in project.files(formats):
            print(f"{name}: built {output / name}.so")
        faulty = [] if no_test else [name for name in formats if not project.test(name)]
        if faulty:
            raise BuildError(
                f"{', '.join(faulty)}: other bytes than the spec means. The fault is not in the "
                "spec, but in narrowcast or in the compiler: please report it, with both versions"
            )
    counts = {"rule": len(rules), "format": len(formats)}
    made = [f"{count} {what}{'s' * (count != 1)}" for what, count in counts.items() if count]
    print(f"{', '.join(made)}, {time.monotonic() - start:.1f} s. To load:")
    print(f"  NARROWCAST_PLUGINS={output}, or narrowcast.load_plugin({str(output)!r}) in Python")
    return True


def _check_names(specs: Iterable[str]) -> None:
    """BuildError if a user's spec has the name of a format that comes with narrowcast."""
    shipped = {path.stem for path in registry.shipped_plugins()}
    if taken := shipped.intersection(Path(spec).stem for spec in specs):
        raise BuildError(
            f"{', '.join(sorted(taken))}: a format of this name comes with narrowcast, and bytes "
            "belong to a name. Give yours another, in the file and as the file's name"
        )


def _spec_of(name: str) -> str:
    """The path of the spec that a name or a path means. BuildError if there is none."""
    if name.endswith(".toml"):
        return name
    spec = _SPECS / f"{name}.toml"
    if spec.exists():
        return str(spec)
    if (_SPECS / "states" / spec.name).exists():
        raise BuildError(f"{name}: a state format, whose code is in every plugin: leave it out")
    every = [path.stem for path in _SPECS.glob("*.toml")]
    near = [one for one in every if one.startswith(name)]
    near = sorted(near) or difflib.get_close_matches(name, every)
    hint = f"; did you mean {' or '.join(near)}?" if near else "."
    raise BuildError(
        f"{name}: no format of this name comes with narrowcast{hint} A format of your own is named "
        f"by its spec, {name}.toml"
    )


def _check_rule(header: Path) -> None:
    """BuildError if there is no such header, or its name cannot be a rule's."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*\.hpp", header.name):
        raise BuildError(
            f"{header}: the header of a rule is called as the rule, NAME.hpp, where NAME has a-z, "
            "0-9 and underscores"
        )
    if not header.is_file():
        raise BuildError(f"{header}: there is no such file; --rule takes the header of a rule")
    if (_SOURCES / "runtime/rules" / header.name).exists():
        raise BuildError(
            f"{header.stem}: a rule of this name comes with narrowcast. Give yours another: kName, "
            "the namespace and the file's name"
        )


def _remove_older(output: Path, header: Path, formats: Sequence[str]) -> None:
    """Removes plugins that an older header was compiled to, of formats that are not built now: one
    rule would take different steps in different formats.
    """
    for file in sorted(output.glob(f"{header.stem}.*.so")):
        is_made = file.name in {f"{header.stem}.{name}.so" for name in formats}
        if not is_made and file.stat().st_mtime < header.stat().st_mtime:
            file.unlink()
            print(
                f"{file.stem}: removed {file}, because {header} has changed since. Name its format"
            )


def _generate(*arguments: str | Path) -> bool:
    """Runs the generator, whose errors are made for users. Its list of written files is not. Specs
    may name the formats that come with narrowcast.
    """
    answer = run(generator(), "--known", _SPECS, *arguments)
    print(answer.stderr, end="", file=sys.stderr, flush=True)
    return answer.returncode == 0


class _Project:
    """The CMake project in `folder`/build that compiles `folder`/generated to `folder`/*.so, and
    in a folder below it with the rule of a header alone.
    """

    def __init__(self, folder: Path, rule: Path | None = None):
        self.folder, self.build, self.rule = folder, folder / "build", rule
        if rule is not None:
            self.build /= f"rule_{rule.stem}"
        self.cmake = cmake()

    def files(self, formats: Sequence[str]) -> list[str]:
        """The names of the files that it makes, without .so."""
        if self.rule is None:
            return [*formats]
        return [self.rule.stem, *(f"{self.rule.stem}.{name}" for name in formats)]

    def configure(self, gpu: str, baseline: bool) -> None:
        """Says which machines the plugins will be for. CMake finds compilers ($CXX, $CUDACXX)."""
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "NARROWCAST_GENERATED": str(self.folder / "generated"),
            "NARROWCAST_PLUGIN_DIR": str(self.folder),
            "NARROWCAST_CUDA": gpu.upper(),
            "NARROWCAST_AVX": "OFF" if baseline else "ON",
            "NARROWCAST_RULE": str(self.rule.absolute()) if self.rule else "",
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
        targets += ["plain_rule"] if self.rule else []
        command = [self.cmake, "--build", str(self.build), "--parallel", str(os.cpu_count() or 1)]
        command += ["--target", *targets]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **_TEXT}
        start, lines = time.monotonic(), []
        with subprocess.Popen(command, env=environment(), **piped) as process:
            for line in process.stdout:
                lines.append(line)
                if compiled := _COMPILED.search(line):
                    seconds = time.monotonic() - start
                    name = self.files([compiled[1]] if compiled[1] else [])[-1]
                    print(f"  {seconds:6.1f} s  {name} for {compiled[2]}", flush=True)
        if process.returncode != 0:
            raise self._failed("a plugin does not compile", "".join(lines))

    def test(self, name: str) -> bool:
        """Runs the format's golden test. Prints what it checked, or what differs."""
        program = self.build / "generated" / f"golden_{name}"
        answer = run(program, self.folder / f"{self.files([name])[-1]}.so")
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
