"""Builds the wheel that is published, for the Python that runs this: with the bindings for several
torches, and for every x86-64 Linux whose glibc is not older than the name of the file says.

Usage: python tools/wheel.py [--torch 2.11 2.12] [--build FOLDER] [--output FOLDER] [-D NAME=VALUE]

It fetches a torch of each series from the package index, and keeps the headers, which are the same
for every Python, and the libraries to link. The plugins, which know no Python and no torch, are
compiled once for a build folder.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("c10", "torch", "torch_cpu", "torch_python", "gomp")  # that _C is linked to
# Those that torch brings. auditwheel would copy them into the wheel.
TORCHS_OWN = [f"lib{name}.so*" for name in (*LIBRARIES, "cudart")]


def run(module: str, *words: str | Path, **environment: str) -> None:
    """Runs a module of this Python. What it prints says why it failed."""
    programs = os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]])
    command = [sys.executable, "-m", module, *map(str, words)]
    done = subprocess.run(command, env=os.environ | {"PATH": programs} | environment)
    if done.returncode != 0:
        sys.exit(f"wheel.py: {module} {words[0]} failed")


def torch_folder(series: str, build: Path) -> Path:
    """torch's headers, its version and the libraries to link."""
    folder = build / f"torch-{series}"
    if folder.exists():
        return folder / "torch"
    build.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=build) as scratch:
        options = ("--no-deps", "--only-binary=:all:", "--dest", scratch)
        run("pip", "download", *options, f"torch=={series}.*")
        (archive,) = Path(scratch).glob("torch-*.whl")
        with zipfile.ZipFile(archive) as packed:
            kept = ["torch/version.py"]
            for name in packed.namelist():
                library = name.removeprefix("torch/lib/lib").partition(".so")[0]
                if name.startswith("torch/include/") or library in LIBRARIES:
                    kept.append(name)
            packed.extractall(Path(scratch) / "kept", kept)
        (Path(scratch) / "kept").rename(folder)
    return folder / "torch"


def has_gpu_kernels(wheel: Path) -> bool:
    with zipfile.ZipFile(wheel) as packed:
        plugins = [name for name in packed.namelist() if name.startswith("narrowcast/plugins/")]
        return any(b"libcudart" in packed.read(name) for name in plugins)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--torch", nargs="+", required=True, help="series of torch, 2.11 and so on")
    parser.add_argument("--build", type=Path, default=ROOT / "build-wheel")
    parser.add_argument("--output", type=Path, default=ROOT / "dist")
    parser.add_argument("-D", dest="settings", action="append", default=[], help="of CMake")
    options = parser.parse_args()

    build = options.build.resolve()
    folders = [torch_folder(series, build) for series in options.torch]
    settings = ["NARROWCAST_GPUS=every", "NARROWCAST_MANYLINUX=ON", "NARROWCAST_UNITY=ON"]
    settings += options.settings
    with tempfile.TemporaryDirectory() as scratch:
        run(
            *("pip", "wheel", ROOT, "--no-deps", "--no-build-isolation", "--wheel-dir", scratch),
            *("-v", f"--config-settings=build-dir={build}"),
            *(f"--config-settings=cmake.define.{setting}" for setting in settings),
            NARROWCAST_TORCHES=";".join(map(str, folders)),
        )
        (wheel,) = Path(scratch).glob("*.whl")
        exclude = [f"--exclude={library}" for library in TORCHS_OWN]
        run("auditwheel", "repair", "--wheel-dir", options.output, *exclude, wheel)
        if not has_gpu_kernels(wheel):
            print("warning: this wheel has no GPU kernels, because there is no nvcc, or by -D")


if __name__ == "__main__":
    main()
