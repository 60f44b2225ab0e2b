"""Which versions of megatron-core narrowcast.megatron works with."""

import importlib
import importlib.util
import runpy
from pathlib import Path

# Its layers are subclassed and one of their private methods is overridden, so a version counts only
# once the tests have run with one of its releases.
SUPPORTED = "0.16"
TESTED = "0.16.1"


def check() -> None:
    """ImportError, in one sentence, unless megatron-core can be imported in a supported version."""
    version = installed()
    if version is None:
        raise ImportError(
            "narrowcast.megatron needs megatron-core, which is not installed: "
            f"pip install megatron-core=={TESTED}"
        )
    if not version.startswith(SUPPORTED + "."):
        raise ImportError(
            f"narrowcast.megatron works with megatron-core {SUPPORTED}.x (tested with {TESTED}), "
            f"and {version} is installed: pip install megatron-core=={TESTED}"
        )
    try:
        importlib.import_module("megatron.core")
    except ImportError as error:
        raise ImportError(
            f"narrowcast.megatron needs megatron-core, and {version}, which is installed, cannot "
            f"be imported ({error}): install what it lacks"
        ) from None


def installed() -> str | None:
    """The version of the megatron-core that would be imported, or None: read from its file, because
    one for another Python or torch may not get as far as telling.
    """
    try:
        found = importlib.util.find_spec("megatron")
    except ValueError:  # a module of that name without a spec
        found = None
    for folder in (found and found.submodule_search_locations) or ():
        path = Path(folder) / "core" / "package_info.py"
        if path.is_file():
            return runpy.run_path(str(path)).get("__version__", "of no version")
    return None
