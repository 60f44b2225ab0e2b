"""The folder of nc.export: its place, and exports that fail, on several ranks too."""

import errno
import filecmp
import os
from unittest import mock

import pytest
import torch
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from narrowcast.publishing import folder
from narrowcast.publishing import model as models
from published_models import FORMAT, LAYOUT, SMALL, build, export


def is_same(one, two):
    """Whether two folders have the same files."""
    names = sorted(file.name for file in one.iterdir())
    return names == sorted(file.name for file in two.iterdir()) and all(
        filecmp.cmp(one / name, two / name, shallow=False) for name in names
    )


def names_in(path):
    return sorted(one.name for one in path.iterdir())


@pytest.fixture
def expected(tmp_path):
    """The folders of two exports, of one file and of four."""
    one, four = tmp_path / "expected" / "0", tmp_path / "expected" / "1"
    one.mkdir(parents=True)  # an empty folder is none
    export(0, one, file_size=float("inf"))
    export(1, four, file_size=SMALL)
    assert [len(list(each.glob("*.safetensors"))) for each in (one, four)] == [1, 4]
    return one, four


# ---- the place ----


def test_a_link_stays_one(expected, tmp_path):
    parent = tmp_path / "parent"
    (parent / "elsewhere").mkdir(parents=True)
    (parent / "out").symlink_to("elsewhere/run")  # which is not there yet
    for seed in (0, 1):
        options = {"file_size": SMALL, "overwrite": True} if seed else {}
        export(seed, parent / "out", **options)
        assert (parent / "out").is_symlink()
        assert is_same(parent / "elsewhere" / "run", expected[seed])
        assert names_in(parent / "elsewhere") == ["run"]
    with pytest.raises(FileExistsError, match="elsewhere/run is there already"):
        export(0, parent / "out")


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_permissions_are_those_of_any_new_file(mask, tmp_path):
    before = os.umask(mask)
    try:
        export(0, tmp_path / "out", file_size=SMALL)
    finally:
        os.umask(before)
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o777 & ~mask
    assert {one.stat().st_mode & 0o777 for one in (tmp_path / "out").iterdir()} == {0o666 & ~mask}


def test_places_that_are_no_folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    before = names_in(tmp_path)
    for name in before:
        for overwrite in (False, True):
            with pytest.raises(FileExistsError, match=f"{name} is there already"):
                export(0, tmp_path / name, overwrite=overwrite)
    for name in ("file/out", "file/a/out"):
        with pytest.raises(NotADirectoryError, match="file"):
            export(0, tmp_path / name)
    assert names_in(tmp_path) == before
    assert (tmp_path / "file").read_text() == "mine"


# ---- exports that fail ----


@pytest.mark.parametrize("size", [0, -1, float("nan"), float("-inf"), "5", None, torch.ones(1)])
def test_sizes_that_are_none(size, tmp_path):
    with pytest.raises(ValueError, match="file_size is a number of GB above 0, not"):
        export(0, tmp_path / "out", file_size=size)
    assert names_in(tmp_path) == []


def full_at(number, error=None):
    """The disk is full when the file of that number is written."""
    first, count = folder.save_file, iter(range(100))

    def save(*arguments, **options):
        if next(count) == number:
            raise error or OSError(errno.ENOSPC, "No space left on device")
        first(*arguments, **options)

    return mock.patch.object(folder, "save_file", save)


@pytest.mark.parametrize("error", [None, KeyboardInterrupt()])
@pytest.mark.parametrize("number", [0, 1])
def test_what_fails_leaves_nothing(number, error, expected, tmp_path):
    parent = tmp_path / "parent"
    export(0, parent / "out")
    for name in ("out", "new"):
        kind = OSError if error is None else KeyboardInterrupt
        with full_at(number, error), pytest.raises(kind):
            export(1, parent / name, file_size=SMALL, overwrite=True)
    assert names_in(parent) == ["out"]
    assert is_same(parent / "out", expected[0])


# ---- on several ranks ----


def sharded(mesh, seed=0):
    return fully_shard(build(FORMAT, seed=seed, device=mesh.device_type), mesh=mesh)


def with_bad_place(mesh, path, options):
    """Only the first rank has that disk."""
    if mesh.get_rank() > 0:
        path = path.replace("first", "another")
    nc.export(sharded(mesh), path, LAYOUT, **options)


@pytest.mark.parametrize(
    ("name", "options", "kind"),
    [
        ("first-file/out", {}, "NotADirectoryError"),
        ("first-file", {"overwrite": True}, "FileExistsError"),
        ("first-folder", {}, "FileExistsError"),
        ("first-loop", {"overwrite": True}, "FileExistsError"),
        ("first\0", {}, "ValueError"),
        ("another", {"file_size": 0}, "ValueError"),
        ("another", {"rename": 3}, "TypeError"),
    ],
)
def test_a_place_that_the_first_rank_has_not(name, options, kind, tmp_path):
    (tmp_path / "first-file").write_text("mine")
    (tmp_path / "first-folder" / "within").mkdir(parents=True)
    (tmp_path / "first-loop").symlink_to("first-loop")
    before = names_in(tmp_path)
    answers = ranks.errors(2, "cpu", with_bad_place, str(tmp_path / name), options)
    assert answers[0] == answers[1]
    assert answers[0][0] == kind
    assert names_in(tmp_path) == before


def with_full_disk(mesh, path, number):
    model, first = sharded(mesh, seed=1), mesh.get_rank() == 0
    with full_at(number if first else 100):
        try:
            nc.export(model, path, LAYOUT, file_size=SMALL, overwrite=True)
        except OSError as error:
            assert first
            assert error.errno == errno.ENOSPC
        except RuntimeError as error:
            assert not first
            assert "the first rank failed to write" in str(error)
            assert "No space left on device" in str(error)
        else:
            raise AssertionError
    nc.export(model, path, LAYOUT, file_size=SMALL, overwrite=True)  # ranks are in step


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_disk_that_is_full(number, expected, device, tmp_path):
    """Also where the last file is written, after all gathers."""
    out = tmp_path / "parent" / "out"
    export(0, out)
    ranks.run(2, device, with_full_disk, str(out), number)
    assert is_same(out, expected[1])
    assert names_in(out.parent) == ["out"]


def with_failing_gather(mesh, path):
    with mock.patch.object(models, "_published", side_effect=ValueError("of every rank")):
        nc.export(sharded(mesh), path, LAYOUT)


def test_a_gather_that_fails(tmp_path):
    answers = ranks.errors(2, "cpu", with_failing_gather, str(tmp_path / "out"))
    assert answers == [("ValueError", "of every rank")] * 2
    assert names_in(tmp_path) == []
