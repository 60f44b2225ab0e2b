"""Text of hundreds of megabytes without a network: all Python sources that this Python can import
from its library and from what is installed, tests among them.
"""

import hashlib
import site
import sysconfig
from pathlib import Path

import torch

HELD_OUT = 50  # one file of so many


def read() -> tuple[torch.Tensor, torch.Tensor]:
    """(training bytes, held-out bytes), both uint8. Files are in the order of their names below the
    folder that they are installed in, and each text is there once. The hash of its name decides
    whether a file is held out, so that it is so on every machine.
    """
    files = {path: path.relative_to(root).as_posix() for root in _roots() for path in _below(root)}
    parts, seen = (bytearray(), bytearray()), set()
    for path, name in sorted(files.items(), key=lambda one: (one[1], one[0])):
        text = path.read_bytes()
        if (checksum := hashlib.sha256(text).digest()) not in seen:
            seen.add(checksum)
            parts[is_held_out(name)].extend(text)
    return tuple(torch.frombuffer(part, dtype=torch.uint8) for part in parts)


def is_held_out(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") % HELD_OUT == 0


def _roots() -> list[Path]:
    """Those within others come later: a file's name is that below the last one that has it."""
    named = [sysconfig.get_path(one) for one in ("stdlib", "purelib", "platlib")]
    named += [*site.getsitepackages(), Path(torch.__file__).parents[1]]
    return sorted({Path(one).resolve() for one in named}, key=lambda one: len(one.parts))


def _below(root: Path) -> list[Path]:
    return [path for path in root.rglob("*.py") if path.is_file()]
