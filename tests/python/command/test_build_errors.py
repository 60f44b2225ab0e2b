"""What narrowcast build and check refuse: one sentence, without a traceback, that says why."""

import pytest

from building import NAME, QUICK, SPEC, write
from narrowcast.__main__ import main
from narrowcast.command import build

pytestmark = pytest.mark.usefixtures("generator")
TESTED_FORMATS = ["mxfp8_e4m3", "nvfp4"]


def error_of(capsys, *arguments):
    """What an unsuccessful command says: one sentence, without a traceback."""
    assert main([*map(str, arguments)]) == 1
    error = capsys.readouterr().err
    assert error.startswith("narrowcast: ")
    assert "Traceback" not in error
    return error


def test_a_name_that_is_taken(tmp_path, capsys, format):
    spec = write(tmp_path, SPEC | {"format": format})
    error = error_of(capsys, "build", spec, "-o", tmp_path / "out")
    assert f"{format}: a format of this name comes with narrowcast" in error
    assert not (tmp_path / "out").exists()


def test_a_folder_that_cannot_be_made(spec, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    assert main(["build", str(spec), "-o", str(file / "below")]) == 1
    assert str(file) in capsys.readouterr().err


def test_an_installation_without_the_generator(spec, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(build, "_PACKAGE", tmp_path)
    error = error_of(capsys, "build", spec, "-o", tmp_path / "out", *QUICK)
    assert "libtomlplusplus-dev" in error


@pytest.mark.parametrize(
    ("missing", "sentence"),
    [
        (["cmake"], "there is no cmake, which"),
        (["c++", "g++", "clang++"], "there is no C++ compiler, which"),
        (["cmake", "ninja", "make"], "there is no cmake, no ninja or make, which"),
    ],
)
def test_programs_that_are_missing_are_named(
    spec, tmp_path, capsys, monkeypatch, missing, sentence
):
    find = build.find
    monkeypatch.setattr(build, "find", lambda name: None if name in missing else find(name))
    monkeypatch.delenv("CXX", raising=False)
    error = error_of(capsys, "build", spec, "-o", tmp_path / "out", *QUICK)
    assert sentence in error
    assert "pip install cmake ninja" in error


def test_a_compiler_that_fails(spec, tmp_path, capsys, monkeypatch):
    """What it printed is shown, and where all of it is."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    error = error_of(capsys, "build", spec, "-o", tmp_path / "out", *QUICK)
    assert "out of order" in error
    assert str(tmp_path / "out/build/log.txt") in error


def test_a_golden_test_that_dies(spec, tmp_path, monkeypatch, capsys):
    program = tmp_path / f"out/build/generated/golden_{NAME}"

    def compile(self, formats, kinds):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nkill -ILL $$\n")
        program.chmod(0o755)

    monkeypatch.setattr(build._Project, "configure", lambda self, gpu, baseline: None)
    monkeypatch.setattr(build._Project, "compile", compile)
    error = error_of(capsys, "build", spec, "-o", tmp_path / "out", *QUICK)
    assert f"golden_{NAME} was ended by signal 4" in error
