"""Which versions of torch narrowcast works with, and whether this is one. It uses private names of
FSDP2, and narrowcast._C is compiled with the headers of one version; so a version counts once the
tests have run with it. A build has a narrowcast._C for each version that it was made for, in
folders named torch_2_11 and the like.
"""

import importlib
import os
import re
import warnings
from pathlib import Path

import torch  # brings the libraries that narrowcast._C is linked to

import narrowcast

OLDEST, NEWEST = (2, 11), (2, 15)
SWITCH = "NARROWCAST_ANY_TORCH"

_AGAIN = (
    "build narrowcast again with this one (in the source tree: make build; installed: pip install "
    "--no-build-isolation --force-reinstall --no-deps and the source tree)"
)


def series(version: str) -> tuple[int, int]:
    """(2, 15) of 2.15.0+cu132, (0, 0) of what is no version. Releases of a series have one ABI."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def check_known(version: str) -> None:
    """ImportError for a version of torch that narrowcast does not know; a warning instead with the
    switch.
    """
    if OLDEST <= series(version) <= NEWEST:
        return
    oldest, newest = ("{}.{}".format(*one) for one in (OLDEST, NEWEST))
    problem = f"narrowcast works with torch {oldest} to {newest}, and this is torch {version}"
    if os.environ.get(SWITCH, "0") in ("", "0"):
        raise ImportError(f"{problem}: install one of those, or set {SWITCH}=1 to try this one")
    warnings.warn(f"{problem}, which is tried because {SWITCH} is set", stacklevel=2)


def load() -> None:
    """Loads the narrowcast._C of this series of torch. ImportError if it cannot be, or if there is
    none.
    """
    version = torch.__version__
    check_known(version)
    package = Path(__file__).parent
    folder = package / "torch_{}_{}".format(*series(version))
    if not folder.is_dir():
        built = sorted(path.name[6:].replace("_", ".") for path in package.glob("torch_*_*"))
        raise ImportError(
            f"narrowcast was built for torch {', '.join(built) or '(none)'}, and this is torch "
            f"{version}: {_AGAIN}"
        )
    narrowcast.__path__.insert(0, str(folder))
    try:
        importlib.import_module("narrowcast._C")
    except ImportError as error:
        raise ImportError(
            f"narrowcast._C cannot be loaded with torch {version} ({error}): {_AGAIN}"
        ) from None


load()
