"""A reader who does what a page says, block by block, in their order.

`toml`, `python` and `cpp` blocks are files that the reader saves (named by `format = ` and by the
first comment); `sh` blocks are typed; a `text` block is what the commands before it print, where
`...` stands for anything.
"""

import os
import re
import subprocess
import sys

import torch

# The reader's programs are those of this Python.
PROGRAMS = {
    "python": 'exec {python} "$@"',
    "narrowcast": 'exec {python} -m narrowcast "$@"',
    "torchrun": 'exec {python} -m torch.distributed.run "$@"',
}
# How a process may die behind its script's last line: a thread of gloo's that still lets go of
# tensors wants an interpreter that has ended (ProcessGroupGloo::runLoop, PyEval_AcquireThread). On
# a busy machine one in a hundred scripts that train plain weights does; such a run counts as none.
TORCH_ENDED_BADLY = "terminate called without an active exception"


def blocks(text):
    """(language, text) of each fenced block."""
    return re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def format_of(text):
    return re.search(r'^format\s*= "(\w+)"', text, re.MULTILINE)[1]


def reader(programs, monkeypatch, **others):
    """Runs shell text in a folder as the reader would, and returns what it prints. `programs`: a
    folder, which is made, of the reader's programs: PROGRAMS, with others in their place.
    """
    programs.mkdir()
    for name, text in (PROGRAMS | others).items():
        program = programs / name
        program.write_text("#!/bin/sh\n" + text.format(python=sys.executable) + "\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    for name in ("MAKEFLAGS", "NARROWCAST_PLUGINS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    if not torch.cuda.is_available():  # what nothing here can run is compiled in haste, to PTX
        monkeypatch.setenv("CUDAARCHS", "90a-virtual")
        monkeypatch.setenv("NVCC_APPEND_FLAGS", "-Xcicc -O1")

    def typed(commands, folder):
        return subprocess.run(
            ["bash", "-euo", "pipefail", "-c", commands],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(commands, folder):
        answer = typed(commands, folder)
        if answer.returncode != 0 and TORCH_ENDED_BADLY in answer.stdout:
            answer = typed(commands, folder)
        assert answer.returncode == 0, (
            f"{commands}\nended with {answer.returncode}:\n{answer.stdout}"
        )
        return answer.stdout

    return run


def follow(page, folder, run):
    """Does what a page's text says, in a folder; returns how many outputs were as it says."""
    checked, printed = 0, ""
    for language, text in blocks(page):
        if language == "sh":
            printed = run(text, folder)
        elif language == "text":
            assert re.fullmatch(_pattern(text), printed.rstrip(), re.DOTALL), printed
            checked += 1
        else:
            _file_of(language, text, folder).write_text(text)
    return checked


def _pattern(expected):
    return re.escape(expected.rstrip()).replace(re.escape("..."), ".*?")


def _file_of(language, text, folder):
    """The path that a block is saved as."""
    if language == "toml":
        return folder / f"{format_of(text)}.toml"
    assert language in ("python", "cpp"), f"a block of {language} is nothing to run"
    return folder / re.match(r"(?:#|//) (\w+\.(?:py|hpp))\b", text)[1]
