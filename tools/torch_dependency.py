"""What a wheel depends on, for pyproject.toml: the series of torch that its extension module is
compiled with, whose ABI it has; numpy, where torch warns if it is absent; and safetensors, which
reads published weights.
"""

from importlib import metadata


def dynamic_metadata(settings, project) -> dict[str, list[str]]:
    """Called by scikit-build-core, in the environment that the wheel is built in."""
    major, minor = metadata.version("torch").split(".")[:2]
    return {"dependencies": [f"torch=={major}.{minor}.*", "numpy", "safetensors>=0.5"]}


def dynamic_wheel(settings) -> dict[str, bool]:
    """A source archive says nothing of torch: wheels made of it may be for any."""
    return {"dependencies": True}
