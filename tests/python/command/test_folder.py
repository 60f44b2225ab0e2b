"""The folder that narrowcast build fills: names that it may have, two builds at once; and specs
that are no files.
"""

import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from narrowcast.command import folder, toolchain
from narrowcast.command.cli import main

pytestmark = pytest.mark.usefixtures("generator")

SPEC = Path(__file__).parents[2] / "codegen/bad/name_is_the_file_name.toml"
QUICK = ("--baseline", "--gpu", "off", "--no-test")
HOLD = """
import sys, time
from pathlib import Path
from narrowcast.command import folder
with folder.alone_in(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


def write(parent, name):
    """A spec without errors."""
    parent.mkdir(exist_ok=True)
    path = parent / f"{name}.toml"
    text = SPEC.read_text()
    path.write_text(text.replace(text.split('"')[1], name, 1))
    return path


def python(*arguments, **more):
    piped = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, *map(str, arguments)], **(piped | more))


def error_of(capsys, *arguments):
    assert main([*map(str, arguments)]) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "named"),
    [
        ("a;b", "the character ';'"),
        ('a"b', "a double quote"),
        ("a\\b", "a backslash"),
        ("a\nb", "a line break"),
        ("a${b}", "the character '$'"),
        ("a*", "the character '*'"),
        ("a[1]", "the character '['"),
        ("a|b", "the character '|'"),
        ("a\tb", "a tab"),
        ("a\udce9", "a byte that is not UTF-8 (0xe9)"),
        ("a ", "a space at the end of a name"),
    ],
)
def test_a_folder_that_cmake_cannot_read(tmp_path, capsys, name, named):
    spec = write(tmp_path, "mine")
    for output in (tmp_path / name, tmp_path / name / "below"):
        error = error_of(capsys, "build", spec, "-o", output, *QUICK)
        assert f"{str(output)!r} has {named}" in error
        assert "name another with -o" in error
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("character", "#%:")
def test_a_folder_that_make_cannot_read(tmp_path, capsys, monkeypatch, character):
    find = toolchain._find
    monkeypatch.setattr(toolchain, "_find", lambda name: None if name == "ninja" else find(name))
    spec = write(tmp_path, "mine")
    error = error_of(capsys, "build", spec, "-o", tmp_path / f"a{character}b", *QUICK)
    assert f"the character {character!r} in its name, which CMake and its tool (Unix" in error


@pytest.mark.slow
def test_two_builds_at_once(tmp_path):
    """Each makes its format, one after the other; a third finds what both have made."""
    if shutil.which("cmake") is None:
        pytest.skip("needs cmake")
    output = tmp_path / "out"
    specs = [write(tmp_path, name) for name in ("one", "two")]
    builds = [python("-m", "narrowcast", "build", spec, "-o", output, *QUICK) for spec in specs]
    printed = [build.communicate(timeout=500) for build in builds]
    assert [build.returncode for build in builds] == [0, 0], printed
    waiting = [f"waiting for another build in {output} (process" in text for text, _ in printed]
    assert sum(waiting) == 1, printed
    assert {path.name for path in output.glob("*.so")} == {"one.so", "two.so"}


def test_a_lock_is_taken_back_when_its_process_dies(tmp_path, capsys):
    (tmp_path / "build").mkdir()
    holder = python("-c", HOLD, tmp_path)
    assert holder.stdout.readline() == "held\n", holder.communicate()
    waiter = python("-c", HOLD, tmp_path)
    told = waiter.stdout.readline()
    assert told == f"waiting for another build in {tmp_path} (process {holder.pid}), 0 s\n"
    holder.send_signal(signal.SIGKILL)
    assert waiter.stdout.readline() == "held\n"
    for process in (holder, waiter):
        process.kill()
        process.communicate()
    with folder.alone_in(tmp_path):
        assert capsys.readouterr().out == ""


def test_specs_that_are_no_files(tmp_path, capsys):
    """A named pipe would be waited for, a device has no end."""
    pipe = tmp_path / "pipe.toml"
    os.mkfifo(pipe)
    start = time.monotonic()
    for command in (("check",), ("build", "-o", tmp_path / "out")):
        error = error_of(capsys, *command, pipe, "/dev/zero", tmp_path)
        assert f"{pipe}: error: cannot be read: it is not a file" in error
        assert "/dev/zero: error: cannot be read: it is not a file" in error
        assert f"{tmp_path}: error: cannot be read: it is a folder" in error
    assert time.monotonic() - start < 10


def test_two_specs_of_one_name(tmp_path, capsys):
    first, second = (write(tmp_path / parent, "mine") for parent in ("a", "b"))
    error = error_of(capsys, "check", first, second)
    assert f"{second}:1:" in error
    assert f'format "mine" is that of {first}, too' in error
    error = error_of(capsys, "build", first, second, "-o", tmp_path / "out")
    assert f"{first} and {second} are both named mine" in error


def test_what_cannot_be_printed(tmp_path):
    spec = write(tmp_path, "mine")
    with open("/dev/full", "w") as full:
        check = python("-m", "narrowcast", "check", spec, stdout=full)
        assert (
            check.communicate(timeout=120)[1]
            == "narrowcast: standard output: No space left on device\n"
        )
        assert check.returncode == 1


def test_what_cannot_be_written(tmp_path):
    """A limit stands for a full disk: no file takes a byte."""
    command = "build", write(tmp_path, "mine"), "-o", tmp_path / "out", *QUICK
    build = python("-m", "narrowcast", *command, preexec_fn=without_files)
    error = build.communicate(timeout=120)[1]
    assert error.endswith(f" or a file in {tmp_path / 'out'}: File too large\n")
    assert build.returncode == 1


def without_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))


def test_a_spec_of_any_name_and_bytes(tmp_path, capsys):
    """Neither is UTF-8."""
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.toml")
    Path(path).write_bytes(b'format = "caf\xe9"\n')
    error = error_of(capsys, "check", path)
    assert ":1:14: error: byte 0xe9 is not UTF-8" in error
