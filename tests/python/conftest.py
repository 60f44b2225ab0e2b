"""What every test may ask for."""

import os
from pathlib import Path

import pytest
import torch

import building
import markers
import ranks
from models import DEVICES, STORAGES
from narrowcast.command import build

# torch.compile's C++ on a CPU: without a trial compilation for each of its vector extensions, and
# without processes of its own that compile, the first of a process takes 19 seconds instead of 39.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# CMake's, where a test compiles a plugin: the bytes are the same.
SOONER = Path(__file__).parent / "support/compile_sooner.cmake"
os.environ.setdefault("CMAKE_TOOLCHAIN_FILE", str(SOONER))

# Tests that run beside each other share the processors: threads of OpenMP that wait for one that
# does not run turn on it.
if workers := int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", 0)):
    torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // workers))


def pytest_generate_tests(metafunc):
    """`format`: a format for each way of storing, or those that the module names. What the bytes
    of each format are is tested in conformance/, for every one.
    """
    if "format" in metafunc.fixturenames:
        metafunc.parametrize("format", getattr(metafunc.module, "TESTED_FORMATS", STORAGES))


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    for item in items:
        markers.mark(item)
    if markers.QUICK:
        kept = markers.quick(items)
        config.hook.pytest_deselected(items=[one for one in items if one not in set(kept)])
        items[:] = kept


def pytest_collection_finish(session):
    ranks.forget_what_is()


def pytest_runtest_teardown(item, nextitem):
    if nextitem is not None and nextitem.path != item.path:
        ranks.forget_what_is()


@pytest.fixture(params=DEVICES)
def device(request):
    return request.param


@pytest.fixture
def generator():
    """The path of the code generator, which an installed package may lack."""
    try:
        return build.generator()
    except build.BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def spec(tmp_path):
    """The path of a file that holds building.SPEC."""
    return building.write(tmp_path, building.SPEC)
