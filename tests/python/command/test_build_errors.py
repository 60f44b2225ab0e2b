"""What narrowcast build and check refuse: one sentence, without a traceback, that says why."""

from pathlib import Path

import pytest

import narrowcast as nc
from building import NAME, QUICK, SPEC, write
from narrowcast.command import build, toolchain
from narrowcast.command.cli import main

pytestmark = pytest.mark.usefixtures("generator")


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
    assert f"the name {format} is taken by a format that comes with narrowcast" in error
    assert nc.format(format).path in error
    assert not (tmp_path / "out").exists()


def test_one_name_twice(spec, tmp_path, capsys):
    (tmp_path / "again").mkdir()
    again = write(tmp_path / "again", SPEC)
    error = error_of(capsys, "build", spec, again, "-o", tmp_path / "out")
    assert f"{spec} and {again} are both named {NAME}" in error


def test_a_folder_that_cannot_be_made(spec, tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    for folder in (file, file / "below"):
        assert f"the folder {folder} cannot be made" in error_of(
            capsys, "build", spec, "-o", folder
        )


@pytest.mark.parametrize(
    ("missing", "advice"),
    [
        ("generator", "libtomlplusplus-dev"),
        ("cmake", "pip install cmake"),
        ("compiler", "CXX=/path/to/compiler"),
        ("make", "ninja-build"),
        ("nvcc", "CUDACXX=/path/to/nvcc"),
    ],
)
def test_what_is_missing_is_named(spec, tmp_path, capsys, monkeypatch, missing, advice):
    find = toolchain._find
    absent = {"cmake": ["cmake"], "compiler": ["c++", "g++", "clang++"], "make": ["ninja", "make"]}
    gone = absent.get(missing, [])
    monkeypatch.setattr(toolchain, "_find", lambda name: None if name in gone else find(name))
    monkeypatch.delenv("CXX", raising=False)
    if missing == "generator":
        monkeypatch.setattr(toolchain, "_PACKAGE", tmp_path)
    if missing == "nvcc":
        monkeypatch.setattr(toolchain, "cuda_compiler", lambda: None)
    arguments = ("--gpu", "on") if missing == "nvcc" else QUICK
    assert advice in error_of(capsys, "build", spec, "-o", tmp_path / "out", *arguments)


def test_a_compiler_that_is_named_and_not_there(spec, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("CXX", "/nowhere/c++")
    assert "CXX=/nowhere/c++" in error_of(capsys, "build", spec, "-o", tmp_path / "out", *QUICK)


def test_a_compiler_that_fails(spec, tmp_path, capsys, monkeypatch):
    """What it printed is shown, and where all of it is."""
    compiler = tmp_path / "c++"
    compiler.write_text("#!/bin/sh\necho out of order >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    error = error_of(capsys, "build", spec, "-o", tmp_path / "out", *QUICK)
    assert "out of order" in error
    assert str(tmp_path / "out/build/log.txt") in error


@pytest.mark.parametrize("command", ["check", "build"])
def test_a_generator_that_dies(spec, tmp_path, capsys, monkeypatch, command):
    """Its end is told, with what to do; nothing else was printed."""
    generator = tmp_path / "generator"
    monkeypatch.setattr(toolchain, "generator", lambda: generator)
    arguments = [command, spec, *(("-o", tmp_path / "out") if command == "build" else ())]
    for name, advice in (("SEGV", "please report it"), ("KILL", "memory may have run out")):
        generator.write_text(f"#!/bin/sh\nkill -{name} $$\n")
        generator.chmod(0o755)
        error = error_of(capsys, *arguments)
        assert f"the generator was ended by SIG{name} (" in error
        assert advice in error
    generator.write_text("not a program")
    assert f"{generator} cannot be run" in error_of(capsys, *arguments)


def test_a_golden_test_that_dies(spec, tmp_path, monkeypatch, capsys):
    built = ("build", spec, "-o", tmp_path / "out", *QUICK)
    monkeypatch.setattr(build._Project, "configure", lambda self: None)
    program = tmp_path / f"out/build/generated/golden_{NAME}"

    def compile(self, formats, kinds):
        program.parent.mkdir(parents=True)
        program.write_text("#!/bin/sh\nkill -ILL $$\n")
        program.chmod(0o755)

    monkeypatch.setattr(build._Project, "compile", compile)
    error = error_of(capsys, *built)
    assert f"the golden test of {NAME} was ended by SIGILL" in error
    assert "for another processor" in error


# ---- what was there before ----


@pytest.mark.slow
def test_a_damaged_plugin_is_made_anew(spec, tmp_path, capsys):
    """It looks newer than all that it is made from."""
    out = tmp_path / "out"
    assert main(["build", *QUICK, str(spec), "-o", str(out)]) == 0
    plugin = out / f"{NAME}.so"
    whole = plugin.read_bytes()
    plugin.write_bytes(whole[:-1000])
    capsys.readouterr()
    assert main(["build", *QUICK, str(spec), "-o", str(out)]) == 0
    assert f"{plugin} cannot be loaded, and is made anew" in capsys.readouterr().out
    assert plugin.read_bytes() == whole


def test_plugins_are_looked_at_without_a_process(tmp_path, monkeypatch, capsys):
    """Python alone takes seconds to start with torch, and there may be many plugins."""
    monkeypatch.setattr(build.processes, "run", None)
    whole = Path(nc.format(nc.formats()[0]).path).read_bytes()
    turned = whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:]
    files = {"whole": whole, "cut": whole[:-1000], "turned": turned, "empty": b""}
    for name, text in files.items():
        (tmp_path / f"{name}.so").write_bytes(text)
    (tmp_path / "dangling.so").symlink_to(tmp_path / "nothing")
    project = build._Project(tmp_path, "off", baseline=True)
    for name in (*files, "dangling", "absent"):
        project.drop_damaged(name)
    assert [path.name for path in tmp_path.iterdir()] == ["whole.so"]
    assert capsys.readouterr().out.count("cannot be loaded, and is made anew") == 4


def test_the_build_folder_of_another_project(spec, tmp_path, capsys):
    (tmp_path / "build").mkdir()
    cache = tmp_path / "build" / "CMakeCache.txt"
    cache.write_text("MY_OPTION:STRING=42\n")
    error = error_of(capsys, "build", *QUICK, spec, "-o", tmp_path)
    assert "was made by another CMake project" in error
    assert cache.read_text() == "MY_OPTION:STRING=42\n"
    assert sorted(tmp_path.glob("build/*")) == [cache]


@pytest.mark.slow
def test_a_build_that_could_not_be_set_up_is_tried_again(spec, tmp_path, capsys, monkeypatch):
    """CMake leaves its cache there, as in the folder of another project."""
    out = tmp_path / "out"
    monkeypatch.setenv("CXX", "false")
    error_of(capsys, "build", *QUICK, spec, "-o", out)
    assert (out / "build" / "CMakeCache.txt").exists()
    monkeypatch.delenv("CXX")
    assert main(["build", *QUICK, str(spec), "-o", str(out)]) == 0


def test_a_folder_that_links_to_itself(spec, tmp_path, capsys):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert "name another with -o" in error_of(capsys, "build", *QUICK, spec, "-o", loop)


# ---- arguments ----


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["build", "x.toml", "-o", ""], "it is empty: name a folder"),
        (["show", "nvfp4", "--shape", "99999999999999999999x1"], "more elements than any memory"),
        (["show", "nvfp4", "--shape", "9223372036854775806x9223372036854775806"], "any memory"),
    ],
)
def test_arguments_that_make_no_sense(capsys, arguments, words):
    with pytest.raises(SystemExit):
        main(arguments)
    assert words in capsys.readouterr().err


def test_a_spec_that_is_given_twice(spec, capsys):
    assert main(["check", str(spec), str(spec)]) == 0
    assert capsys.readouterr().out == f"{spec}: no errors\n"


def test_a_spec_whose_name_begins_with_a_dash(spec, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "-x").mkdir()
    (tmp_path / "-x" / spec.name).write_text(spec.read_text())
    assert main(["check", "--", f"-x/{spec.name}"]) == 0


def test_check_says_that_a_name_is_taken(tmp_path, capsys, format):
    spec = write(tmp_path, SPEC | {"format": format})
    assert main(["check", str(spec)]) == 0
    assert "comes with narrowcast, so build refuses it" in capsys.readouterr().out
    assert main(["check", str(toolchain.specs() / f"{format}.toml")]) == 0
    assert "refuses" not in capsys.readouterr().out


def test_ctrl_c(spec, capsys, monkeypatch):
    def interrupted(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(build, "_generate", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["check", str(spec)])
    assert ended.value.code == 130
    assert capsys.readouterr().err == "narrowcast: interrupted\n"


def test_compilers_as_environments_name_them(monkeypatch, tmp_path):
    compiler = toolchain.cxx_compiler()
    spaced = tmp_path / "a b" / "g++"
    spaced.parent.mkdir()
    spaced.symlink_to(compiler)
    for wanted, expected in (
        (str(spaced), str(spaced)),
        (f"{compiler} -DX=1", f"{compiler};-DX=1"),
    ):
        monkeypatch.setenv("CXX", wanted)
        assert toolchain.cxx_compiler() == expected
    monkeypatch.setenv("CUDACXX", str(tmp_path / "nvcc"))
    with pytest.raises(toolchain.BuildError, match=r"there is no such program\. Set it to nvcc"):
        toolchain.cuda_compiler()
