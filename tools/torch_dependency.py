"""What a wheel depends on, for pyproject.toml: the series of torch that its extension modules are
compiled for, whose ABIs they have; numpy, where torch warns if it is absent; and safetensors, which
reads published weights.
"""

import os
import runpy
from importlib import metadata


def dynamic_metadata(settings, project) -> dict[str, list[str]]:
    """Called by scikit-build-core, in the environment that the wheel is built in."""
    folders = os.environ.get("NARROWCAST_TORCHES")
    if folders:
        files = [f"{folder}/version.py" for folder in folders.split(";")]
        versions = [runpy.run_path(file)["__version__"] for file in files]
    else:
        versions = [torch.version for torch in metadata.distributions(name="torch")]
    return {"dependencies": [torch_of(versions), "numpy", "safetensors>=0.5"]}


def torch_of(versions: list[str]) -> str:
    """The requirement that the series of these versions meet, and no others. Of none, for a source
    archive: any.
    """
    if not versions:
        return "torch"
    built = sorted(tuple(map(int, version.split(".")[:2])) for version in versions)
    (major, oldest), (_, newest) = built[0], built[-1]
    missing = set(range(oldest, newest)) - {minor for _, minor in built}
    holes = [f"!={major}.{minor}.*" for minor in sorted(missing)]
    return "torch" + ",".join([f">={major}.{oldest}", *holes, f"<{major}.{newest + 1}"])


def dynamic_wheel(settings) -> dict[str, bool]:
    """A source archive says nothing of torch: wheels made of it may be for any."""
    return {"dependencies": True}
