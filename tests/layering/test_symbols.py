"""Code for one instruction set stays in it.

The linker keeps one copy of a function that several objects define. Were a copy compiled for
AVX-512 to serve the whole program, it would end on every processor without AVX-512; so whatever a
variant defines must carry the variant's namespace in its name.
"""

import os
import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sources import ROOT

BUILD = Path(os.environ.get("NARROWCAST_BUILD", ROOT / "build"))
DATA_OF_THE_COMPILER = ("DW.ref.",)  # the address of the exception handler, not code


@pytest.mark.parametrize("variant", ["avx2", "avx512"])
def test_what_a_variant_defines_carries_its_name(variant):
    if platform.machine() not in {"x86_64", "AMD64"}:
        pytest.skip("variants of the kernels exist on x86-64 alone")
    if not (BUILD / "CMakeCache.txt").exists() or shutil.which("nm") is None:
        pytest.skip(f"needs a build in {BUILD}, and nm")
    objects = [p for p in BUILD.rglob("*.o") if f"-kernels-{variant}.dir" in str(p)]
    assert objects, f"no object files of the variant {variant} in {BUILD}"
    foreign = []
    for path in objects:
        listing = subprocess.run(
            ["nm", "-C", "--defined-only", "--extern-only", str(path)],
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        names = [re.split(r"\s+", line, maxsplit=2)[2] for line in listing.splitlines()]
        assert names, f"{path} defines nothing"
        foreign += [
            f"{path.relative_to(BUILD)}: {name}"
            for name in names
            if f"{variant}::" not in name and not name.startswith(DATA_OF_THE_COMPILER)
        ]
    assert not foreign, "\n".join(foreign)
