"""Text to train on, as bytes: Python's standard library, or files of one's own."""

import sysconfig
from pathlib import Path

import torch


def standard_library() -> list[Path]:
    """The .py files of this Python's standard library, without what was installed beside it."""
    root = Path(sysconfig.get_path("stdlib"))
    skipped = {"site-packages", "dist-packages", "test", "tests", "__pycache__"}
    return sorted(
        path
        for path in root.rglob("*.py")
        if not skipped.intersection(path.relative_to(root).parts)
    )


def read(folder: str | None = None, held_out: int = 10) -> tuple[torch.Tensor, torch.Tensor]:
    """(training bytes, held-out bytes), both uint8. Every `held_out`-th file is kept from training.

    `folder`: files to read in place of the standard library, or one file, whose end is held out.
    """
    if folder is None:
        files = standard_library()
    else:
        path = Path(folder)
        files = sorted(p for p in [path, *path.rglob("*")] if p.is_file())
    if not files:
        raise SystemExit(f"{folder or 'the standard library'}: no files to train on")
    texts = [path.read_bytes() for path in files]
    if len(texts) == 1:
        cut = len(texts[0]) * (held_out - 1) // held_out
        texts = [texts[0][cut:], texts[0][:cut]]
    return _bytes(t for i, t in enumerate(texts) if i % held_out), _bytes(texts[::held_out])


def _bytes(texts) -> torch.Tensor:
    return torch.frombuffer(bytearray(b"".join(texts)), dtype=torch.uint8)


def windows(text: torch.Tensor, count: int, time: int, generator: torch.Generator):
    """`count` random stretches of the text: (inputs, targets), int64 [count, time]."""
    if len(text) <= time:
        raise SystemExit(f"{len(text)} tokens of text have no window of {time}: give a longer text")
    starts = torch.randint(len(text) - time, (count, 1), generator=generator)
    stretch = text[starts + torch.arange(time + 1)].long()
    return stretch[:, :-1], stretch[:, 1:]
