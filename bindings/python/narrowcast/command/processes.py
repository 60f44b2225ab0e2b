"""Programs that the command line runs, and how they end."""

import signal
import subprocess
from pathlib import Path

from narrowcast.command.toolchain import BuildError

_STOPPED = "it was stopped: run it once more"
_ADVICE = {
    signal.SIGKILL: "memory may have run out, or it was stopped: run it once more, with less "
    "beside it",
    signal.SIGINT: _STOPPED,
    signal.SIGTERM: _STOPPED,
    signal.SIGHUP: _STOPPED,
    signal.SIGILL: "it was compiled for another processor: build it anew on this machine",
    signal.SIGXCPU: "a limit of time stopped it (ulimit -t)",
    signal.SIGXFSZ: "a limit of the size of files stopped it (ulimit -f)",
}
_FAULT = "the fault is not yours: please report it, with what it was given"

# A compiler may print in any encoding.
TEXT = {"encoding": "utf-8", "errors": "replace"}


def run(*command: str | Path) -> subprocess.CompletedProcess:
    """Runs a program to its end, and returns what it printed. BuildError if it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, **TEXT)
    except OSError as error:
        raise BuildError(f"{command[0]} cannot be run: {error.strerror}") from None


def death(status: int) -> str:
    """Which signal ended a program of that exit status, and what to do; empty if none did."""
    if status >= 0:
        return ""
    number = -status
    names = {one.value: one.name for one in signal.Signals}
    text = signal.strsignal(number) or "unknown"
    advice = _ADVICE.get(number, _FAULT)
    return f"was ended by {names.get(number, f'signal {number}')} ({text}): {advice}"
