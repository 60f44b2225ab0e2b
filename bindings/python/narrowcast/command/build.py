"""Formats of one's own, outside the source tree: their specs read, generated, compiled and tested.

In the folder that `build` fills: <format>.so, which nc.load takes; generated/<format>/, to be read;
and build/, by which an unchanged format is not compiled again.
"""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from narrowcast import _C, pages, registry
from narrowcast.command import folder, processes, toolchain
from narrowcast.command.toolchain import BuildError

_COMPILED = re.compile(r"Building (?:CXX|CUDA) object \S*/format_(\w+)-kernels-(\w+)\.dir/")
_MACHINES = re.compile(r"narrowcast: ([CG]PU) kernels for (.+)")
_LAST_LINES = 40
_OPTIONS = ("--check-specs", "-o")  # of the generator
_CANNOT_LOAD = 3  # the exit status of a golden test: runtime/golden/test_main.hpp


def check(specs: Sequence[str]) -> bool:
    """Reads specs; prints every error on standard error, and what is right. True if all are."""
    specs = _once(specs)
    if not _generate("--check-specs", *specs):
        return False
    shipped = {path.stem for path in registry.shipped_plugins()}
    for spec in specs:
        own = toolchain.specs() / Path(spec).name
        print(f"{spec}: no errors")
        if Path(spec).stem in shipped and not os.path.samefile(spec, own):
            print(f"{spec}: a format of this name comes with narrowcast, so build refuses it")
    return True


def build(specs: Sequence[str], output: Path, gpu: str, baseline: bool, no_test: bool) -> bool:
    """Makes <output>/<format>.so from each spec, and tests it. Prints progress, and errors on
    standard error. False if a spec is wrong; BuildError, with what to do, if something is missing,
    does not compile, or does not make the golden bytes.

    gpu        kernels for the GPU: "on", "off", or "auto", where nvcc is
    baseline   of the CPU's instruction sets the baseline alone
    no_test    the golden test of each is neither compiled nor run
    """
    start = time.monotonic()
    specs = _once(specs)
    formats = _formats_of(specs)
    if not _generate("--check-specs", *specs):
        return False
    folder.make(output, toolchain.build_tool())
    with folder.alone_in(output):
        if not _generate("-o", output / "generated", *specs):
            return False
        _compile(formats, output, gpu, baseline, no_test)
    count = f"{len(formats)} format{'s' * (len(formats) != 1)}"
    print(f"{count}, {time.monotonic() - start:.1f} s. To load:")
    print(f"  {_variable(output)}narrowcast.load({str(output)!r}) in Python")
    return True


def _variable(output: Path) -> str:
    """How an environment names the folder; nothing where its name has what separates folders."""
    return "" if os.pathsep in str(output) else f"NARROWCAST_PLUGINS={output}, or "


def _compile(formats: Sequence[str], output: Path, gpu: str, baseline: bool, no_test: bool) -> None:
    for name in formats:
        pages.write(output / "generated" / name)
        print(f"{name}: generated {output / 'generated' / name}")
    project = _Project(output.resolve(), gpu, baseline)
    project.configure()
    for name in formats:
        project.drop_damaged(name)
    project.compile(formats, ("format",) if no_test else ("format", "golden"))
    for name in formats:
        print(f"{name}: built {output / name}.so")
    faulty = [] if no_test else [name for name in formats if not project.test(name)]
    if faulty:
        raise BuildError(
            f"{', '.join(faulty)}: other bytes than the spec means. The fault is not in the spec, "
            "but in narrowcast or in the compiler: please report it, with both versions"
        )


def _once(specs: Sequence[str]) -> list[str]:
    """Each file once, however often it is named."""
    return list({os.path.realpath(spec): spec for spec in specs}.values())


def _formats_of(specs: Sequence[str]) -> list[str]:
    """The specs' formats, which are named as their files. BuildError for a name that is taken."""
    shipped = {path.stem: path for path in registry.shipped_plugins()}
    files: dict[str, str] = {}
    for spec in specs:
        name = Path(spec).stem
        if name in shipped:
            raise BuildError(
                f"{spec}: the name {name} is taken by a format that comes with narrowcast "
                f"({shipped[name]}). Bytes belong to a name: give yours another, in the file and "
                "as the file's name"
            )
        if name in files:
            raise BuildError(f"{files[name]} and {spec} are both named {name}: rename one of them")
        files[name] = spec
    return list(files)


def _generate(*arguments: str | Path) -> bool:
    """Runs the generator, whose errors are made for users. Its list of written files is not. Specs
    may name the formats that come with narrowcast.
    """
    # What begins with a dash is an option to the generator, unless it is a path.
    words = [*arguments]
    for place, word in enumerate(words):
        if str(word).startswith("-") and word not in _OPTIONS:
            words[place] = os.path.join(os.curdir, word)
    answer = processes.run(toolchain.generator(), "--known", toolchain.specs(), *words)
    print(answer.stderr, end="", file=sys.stderr, flush=True)
    if died := processes.death(answer.returncode):
        raise BuildError(f"the generator {died}")
    return answer.returncode == 0


class _Project:
    """The CMake project in `folder`/build that compiles `folder`/generated to `folder`/*.so."""

    def __init__(self, folder: Path, gpu: str, baseline: bool):
        self.folder, self.build, self.gpu, self.baseline = folder, folder / "build", gpu, baseline
        self.cmake = toolchain.cmake()

    def configure(self) -> None:
        """Says which machines the plugins will be for."""
        tool, settings = toolchain.build_tool(), self._settings()
        command = [self.cmake, "-S", str(toolchain.sources()), "-B", str(self.build), "-G", tool]
        command += [f"-D{key}={value}" for key, value in settings.items()]
        # CMake remembers compilers and sources: where they are others now, it starts afresh.
        stamp, made_with = self.build / "made_with.json", json.dumps(command)
        if not stamp.exists() or stamp.read_bytes() != made_with.encode():
            command.append("--fresh")
        answer = processes.run(*command)
        if answer.returncode != 0:
            raise self._failed("the build cannot be set up", answer.stdout + answer.stderr, answer)
        stamp.write_text(made_with, encoding="utf-8")
        machines = " and ".join(f"the {m[1]} ({m[2]})" for m in _MACHINES.finditer(answer.stdout))
        print(f"compiling for {machines}{self._why_no_gpu(machines)}", flush=True)

    def drop_damaged(self, name: str) -> None:
        """Removes a plugin that nc.load would refuse: whatever has damaged it, it looks new. It is
        read and not loaded, for a plugin stays loaded, and this one is to be made anew.
        """
        plugin = self.folder / f"{name}.so"
        if not plugin.exists() and not plugin.is_symlink():
            return
        if _C.plugin_fault(os.fsencode(plugin)):
            print(f"{name}: {plugin} cannot be loaded, and is made anew")
            plugin.unlink()

    def compile(self, formats: Sequence[str], kinds: Sequence[str]) -> None:
        """Prints a line for each kernel file, with the seconds since the start."""
        targets = [f"{kind}_{name}" for kind in kinds for name in formats]
        command = [self.cmake, "--build", str(self.build), "--parallel", str(os.cpu_count() or 1)]
        command += ["--target", *targets]
        piped = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, **processes.TEXT}
        start, lines = time.monotonic(), []
        with subprocess.Popen(command, **piped) as process:
            for line in process.stdout:
                lines.append(line)
                if compiled := _COMPILED.search(line):
                    seconds = time.monotonic() - start
                    print(f"  {seconds:6.1f} s  {compiled[1]} for {compiled[2]}", flush=True)
        if process.returncode != 0:
            raise self._failed("a plugin does not compile", "".join(lines), process)

    def test(self, name: str) -> bool:
        """Runs the format's golden test. Prints what it checked, or what differs."""
        program = self.build / "generated" / f"golden_{name}"
        answer = processes.run(program, self.folder / f"{name}.so")
        print(answer.stdout, end="")
        print(answer.stderr, end="", file=sys.stderr)
        if died := processes.death(answer.returncode):
            raise BuildError(f"the golden test of {name} {died}")
        if answer.returncode == _CANNOT_LOAD:
            raise BuildError(
                f"{name}: the plugin was damaged while it was tested. Build it once more"
            )
        return answer.returncode == 0

    def _settings(self) -> dict[str, str]:
        settings = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_COMPILER": toolchain.cxx_compiler(),
            "NARROWCAST_GENERATED": str(self.folder / "generated"),
            "NARROWCAST_PLUGIN_DIR": str(self.folder),
            "NARROWCAST_CUDA": self.gpu.upper(),
            "NARROWCAST_AVX": "OFF" if self.baseline else "ON",
        }
        for part in ("BINDINGS", "CODEGEN", "TESTS", "WERROR"):
            settings[f"NARROWCAST_{part}"] = "OFF"
        nvcc = toolchain.cuda_compiler()
        if self.gpu == "on" and nvcc is None:
            raise BuildError("there is no nvcc for the GPU kernels. Name it: CUDACXX=/path/to/nvcc")
        if self.gpu != "off" and nvcc is not None:
            settings["CMAKE_CUDA_COMPILER"] = nvcc
        return settings

    def _why_no_gpu(self, machines: str) -> str:
        if "GPU" in machines or self.gpu == "off":
            return ""
        nvcc = toolchain.cuda_compiler()
        return f"; no GPU kernels: {f'{nvcc} does not work here' if nvcc else 'there is no nvcc'}"

    def _failed(self, what: str, output: str, process) -> BuildError:
        log = self.build / "log.txt"
        log.write_text(output, encoding="utf-8")
        last = "\n".join(output.splitlines()[-_LAST_LINES:])
        if died := processes.death(process.returncode):
            what += f": {process.args[0]} {died}"
        return BuildError(f"{what}. The end of what was printed (the whole: {log}):\n{last}")
