"""Which versions of torch the package accepts, and what it says to the others."""

import copy
import os
import re
import runpy
import subprocess
import sys
import warnings
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from models import GATHERS, assert_same, local_rows, same
from narrowcast import _C, torch_version
from narrowcast.fsdp import sharding, torch_names
from weights import quantized

TESTED_FORMATS = GATHERS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = Path(torch_version.__file__).parent
OTHER = "2.14.0" if torch_version.series(torch.__version__) != (2, 14) else "2.13.0"


@pytest.mark.parametrize(
    ("version", "series"),
    [
        ("2.11.0+cu130", (2, 11)),
        ("2.15.0a0+git1", (2, 15)),
        ("2.9", (2, 9)),
        ("unknown", (0, 0)),
    ],
)
def test_series(version, series):
    assert torch_version.series(version) == series


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.15.3"])
def test_known_versions(version):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch_version.check_known(version)


@pytest.mark.parametrize("version", ["2.10.1", "2.16.0.dev20270101", "3.11.0", "unknown"])
def test_unknown_versions_are_refused_or_tried(version, monkeypatch):
    monkeypatch.setenv("NARROWCAST_ANY_TORCH", "0")
    with pytest.raises(ImportError, match=re.escape(version)) as refused:
        torch_version.check_known(version)
    assert "torch 2.11 to 2.15" in str(refused.value)
    assert "NARROWCAST_ANY_TORCH=1" in str(refused.value)
    monkeypatch.setenv("NARROWCAST_ANY_TORCH", "1")
    with pytest.warns(UserWarning, match=re.escape(version)):
        torch_version.check_known(version)


def folder_of(version: str) -> str:
    """The folder of the narrowcast._C that is compiled for this torch."""
    return "torch_{}_{}".format(*torch_version.series(version))


def package_of(folder: Path, built_for: str) -> Path:
    """The package, as it would be if it had been built for this torch alone. Its narrowcast._C is
    no library.
    """
    package = folder / "narrowcast"
    package.mkdir()
    for path in PACKAGE.iterdir():
        if not path.name.startswith(("torch_2", "_C.")):
            (package / path.name).symlink_to(path)
    compiled = package / folder_of(built_for) / f"_C{EXTENSION_SUFFIXES[0]}"
    compiled.parent.mkdir()
    compiled.write_text("no library")
    return package


def imports(folder: Path, *words: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        capture_output=True,
        text=True,
    )


def test_a_build_for_another_torch(tmp_path):
    """One sentence, and nothing of _C has been loaded."""
    package_of(tmp_path, OTHER)
    answer = imports(tmp_path, "-m", "narrowcast", "list")
    assert answer.returncode == 1
    assert answer.stdout == ""
    sentence = answer.stderr.splitlines()[-1]
    series = "{}.{}".format(*torch_version.series(OTHER))
    assert sentence.startswith(f"ImportError: narrowcast was built for torch {series}, and this is")
    assert torch.__version__ in sentence
    assert "make build" in sentence


def test_an_extension_module_that_does_not_load(tmp_path):
    package_of(tmp_path, torch.__version__)
    answer = imports(tmp_path, "-c", "import narrowcast")
    last = answer.stderr.splitlines()[-1]
    assert last.startswith("ImportError: narrowcast._C cannot be loaded with torch ")
    assert "build narrowcast again" in last
    assert "During handling" not in answer.stderr


def test_a_build_has_a_folder_for_its_torch():
    assert Path(_C.__file__).parent == PACKAGE / folder_of(torch.__version__)


def test_files_name_the_same_versions():
    oldest, newest = ("{}.{}".format(*one) for one in (torch_version.OLDEST, torch_version.NEWEST))
    after = f"{torch_version.NEWEST[0]}.{torch_version.NEWEST[1] + 1}"
    assert f'"torch>={oldest},<{after}"' in (ROOT / "pyproject.toml").read_text()
    assert f"\ntorch=={oldest}." in (ROOT / "tools" / "requirements.txt").read_text()
    assert re.search(rf"^NEWEST +:?= {newest}\.", (ROOT / "Makefile").read_text(), re.M)
    assert f"torch {oldest} to {newest}" in (ROOT / "README.md").read_text()
    minors = range(torch_version.OLDEST[1], torch_version.NEWEST[1] + 1)
    every = " ".join(f"{torch_version.NEWEST[0]}.{minor}" for minor in minors)
    assert f"\nWHEEL_TORCHES ?= {every}\n" in (ROOT / "Makefile").read_text()


@pytest.mark.parametrize(
    ("versions", "requirement"),
    [
        (["2.11.0+cu130"], "torch>=2.11,<2.12"),
        (["2.12.1", "2.11.0", "2.13.0"], "torch>=2.11,<2.14"),
        (["2.15.0", "2.11.0", "2.13.0"], "torch>=2.11,!=2.12.*,!=2.14.*,<2.16"),
        ([], "torch"),
    ],
)
def test_a_wheel_asks_for_the_torches_that_it_is_for(versions, requirement):
    tool = runpy.run_path(str(ROOT / "tools" / "torch_dependency.py"))
    assert tool["torch_of"](versions) == requirement


def test_tests_of_the_newest_are_there():
    (names,) = re.findall(
        r"^NEWEST_TESTS = (.*?[^\\])$", (ROOT / "Makefile").read_text(), re.M | re.S
    )
    names = names.replace("\\\n", " ").split()
    assert len(names) > 10
    for name in names:
        assert (ROOT / "tests" / "python" / f"{name}.py").exists(), name


def groups(mesh, format):
    """Two modules that are gathered together are one group of their tree, though each has a state
    in torch 2.11's list; the module around them has none.
    """
    model = nc.convert(nn.Sequential(*(nn.Linear(256, 256) for _ in range(3))), format)
    fully_shard([model[0], model[1]], mesh=mesh)
    fully_shard(model[2], mesh=mesh)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 256)).sum().backward()
    found = [torch_names.managed(layer.weight)[0] for layer in (model[0], model[2])]
    assert all(torch_names.groups_of_tree(group) == found for group in found)
    assert [len(sharding.quantized(group)) for group in found] == [2, 1]
    assert torch_names.managed(model[1].weight)[0] is found[0]


def test_groups_of_a_tree():
    ranks.run(2, "cpu", groups, GATHERS[0])


@pytest.mark.skipif(
    torch_version.series(torch.__version__) < (2, 12), reason="torch 2.11 has one mesh a module"
)
@ranks.on(2, "cpu")
def test_a_module_over_two_meshes(mesh, format):
    """One module, of whose weights one is sharded over all ranks and one over each rank alone."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo, ShardPlacementResult

    torch.manual_seed(0)
    whole = nc.convert(nn.Sequential(nn.Linear(256, 256), nn.Linear(256, 256)), format)
    model = copy.deepcopy(whole)
    grid = init_device_mesh(mesh.device_type, (2, 1), mesh_dim_names=("all", "alone"))
    placement = ShardPlacementResult(Shard(0), FSDPMeshInfo(grid["alone"], shard_mesh_dim=0))
    alone = [*model[1].parameters()]
    fully_shard(
        model,
        mesh=grid["all"],
        reshard_after_forward=True,
        shard_placement_fn=lambda p: placement if any(p is one for one in alone) else None,
    )
    groups = torch_names.groups_of_tree(torch_names.managed(model[1].weight)[0])
    assert [len(sharding.quantized(group)) for group in groups] == [1, 1]
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in (model, whole)]
    for step in range(3):
        x = torch.randn(4, 256, generator=torch.Generator().manual_seed(step))
        losses = []
        for one, optimizer in zip((model, whole), optimizers, strict=True):
            losses.append(one(x).square().mean())
            losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same(*losses), step
    for one, other in zip(model.parameters(), whole.parameters(), strict=True):
        own = grid["all"] if one.device_mesh == grid["all"] else grid["alone"]
        if isinstance(other, nc.MasterWeight):
            local = one.to_local()
            assert same(local.value, local_rows(other.value, one, own))
            assert_same(local, local_rows(quantized(other), one, own), ["rowwise_data"])
