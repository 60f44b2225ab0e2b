"""Which versions of torch narrowcast works with, and whether this is one. It uses private names of
FSDP2, and narrowcast._C is compiled with the headers of one version; so a version counts once the
tests have run with it.
"""

import importlib
import os
import re
import warnings
from pathlib import Path

import torch  # brings the libraries that narrowcast._C is linked to

OLDEST, NEWEST = (2, 11), (2, 15)
SWITCH = "NARROWCAST_ANY_TORCH"

_BUILT_WITH = Path(__file__).with_name("built_with_torch.txt")  # the build writes it beside _C
_AGAIN = (
    "build narrowcast again with this one (in the source tree: make build; installed: pip install "
    "--no-build-isolation --force-reinstall --no-deps and the source tree)"
)


def series(version: str) -> tuple[int, int]:
    """(2, 15) of 2.15.0+cu132, (0, 0) of what is no version. Releases of a series have one ABI."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_known(version: str) -> None:
    """ImportError, in one sentence, for a version of torch that narrowcast does not know; a warning
    instead with the switch.
    """
    if OLDEST <= series(version) <= NEWEST:
        return
    known = f"narrowcast works with torch {_text(OLDEST)} to {_text(NEWEST)}"
    if os.environ.get(SWITCH, "0") in ("", "0"):
        raise ImportError(
            f"{known}, whose private names of FSDP2 it knows, and this is torch {version}: install "
            f"one of those, or set {SWITCH}=1 to try this one"
        )
    warnings.warn(
        f"{known}; torch {version} is tried because {SWITCH} is set, and what has changed in it "
        "may fail or be wrong",
        stacklevel=2,
    )


def check_built(version: str, built_with: str) -> None:
    """ImportError, in one sentence, if narrowcast._C was compiled with another series of torch."""
    if series(version) != series(built_with):
        raise ImportError(
            f"narrowcast was built with torch {built_with}, and this is torch {version}: {_AGAIN}, "
            f"or install torch {_text(series(built_with))}"
        )


def _text(series: tuple[int, int]) -> str:
    return ".".join(map(str, series))


def _load() -> None:
    """Loads narrowcast._C. ImportError, in one sentence, if it cannot be."""
    check_known(torch.__version__)
    if _BUILT_WITH.exists():
        check_built(torch.__version__, _BUILT_WITH.read_text().strip())
    try:
        importlib.import_module("narrowcast._C")
    except ImportError as error:
        raise ImportError(
            f"narrowcast._C cannot be loaded with torch {torch.__version__} ({error}): {_AGAIN}"
        ) from None


_load()
