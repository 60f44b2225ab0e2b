"""The folder that `narrowcast build` fills: its name, and that one process at a time fills it."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from narrowcast.command.toolchain import BuildError

# What CMake and ninja take for something else in a path; and make, besides.
_REFUSED, _REFUSED_BY_MAKE = ';"\\$*?[]|', "#%:"
_TELL_EVERY = 10  # seconds
_LOCK = "lock"  # in build/, from the first build on, however that ends


def make(folder: Path, tool: str) -> None:
    """Makes the folder. BuildError if that cannot be, or if its name has what the build tool (of
    CMake's name `tool`) cannot read.
    """
    _check_name(folder, tool)
    if _is_foreign(folder):
        raise BuildError(
            f"{folder / 'build'} was made by another CMake project, whose settings would be lost: "
            "name another folder with -o"
        )
    try:
        # Whatever the umask, others may not write: nc.load refuses a folder where they may.
        folder.mkdir(mode=0o775, parents=True, exist_ok=True)
        (folder / "build").mkdir(exist_ok=True)
        writable = os.access(folder, os.W_OK | os.X_OK)
    except OSError as error:
        raise BuildError(
            f"the folder {folder} cannot be made ({error.strerror}): name another with -o"
        ) from None
    if not writable:
        raise BuildError(f"the folder {folder} cannot be written to: name another with -o")


def _is_foreign(folder: Path) -> bool:
    """Whether another process configures a project there."""
    build = folder / "build"
    return (build / "CMakeCache.txt").exists() and not (build / _LOCK).exists()


def _check_name(folder: Path, tool: str) -> None:
    try:
        path = folder.resolve()
    except (OSError, RuntimeError):  # links that go round in a circle
        raise BuildError(f"the folder {folder} cannot be found: name another with -o") from None
    refused = _REFUSED + (_REFUSED_BY_MAKE if tool == "Unix Makefiles" else "")
    wrong = next((c for c in str(path) if c in refused or not _is_plain(c)), None)
    if wrong is not None:
        raise _unreadable(path, f"{_named(wrong)} in its name", tool)
    if any(part.endswith(" ") for part in path.parts):
        raise _unreadable(path, "a space at the end of a name", tool)


def _unreadable(path: Path, what: str, tool: str) -> BuildError:
    return BuildError(
        f"the folder {str(path)!r} has {what}, which CMake and its tool ({tool}) cannot read: name "
        "another with -o"
    )


def _is_plain(character: str) -> bool:
    """No control character, and no byte that is not UTF-8, for which Python has a surrogate."""
    return character >= " " and character != "\x7f" and not "\ud800" <= character <= "\udfff"


def _named(character: str) -> str:
    names = {"\n": "a line break", "\t": "a tab", "\\": "a backslash", '"': "a double quote"}
    if character in names:
        return names[character]
    if "\udc80" <= character <= "\udcff":
        return f"a byte that is not UTF-8 (0x{ord(character) - 0xDC00:02x})"
    return f"the character {character!r}"


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Waits until no other build works in the folder, and keeps others waiting. The system takes
    the lock back when this process ends, however it ends.
    """
    with open(folder / "build" / _LOCK, "a+", encoding="utf-8") as lock:
        _wait_for(lock, folder)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _wait_for(lock, folder: Path) -> None:
    start, tell_after = time.monotonic(), 0
    while True:
        try:
            return fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waited = time.monotonic() - start
        except OSError as error:
            print(f"{folder} cannot be locked ({error.strerror}): no other build may use it now")
            return None
        if waited >= tell_after:
            lock.seek(0)
            process = lock.read().strip() or "unknown"
            print(
                f"waiting for another build in {folder} (process {process}), {waited:.0f} s",
                flush=True,
            )
            tell_after += _TELL_EVERY
        time.sleep(0.1)
