"""Formats: their facts, how they are found, and files that are no plugin."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import narrowcast as nc


def test_facts(format):
    f = nc.format(format)
    assert format in nc.formats()
    assert f.name == format
    assert f.summary
    assert f.reference
    assert f.gather == ("rowwise" if f.columnwise_derived else "by pass")
    assert f.columnwise_derived == (f.rowwise.block == f.columnwise.block)
    assert f.wire_bits_per_element <= f.bits_per_element
    assert f.row_step % f.shard_row_step == 0
    assert nc.format(f) is f


def test_facts_of_two_formats():
    mx, nv = nc.format("mxfp8_e4m3"), nc.format("nvfp4")
    assert (mx.element, mx.scale, mx.tensor_scale, mx.scale_rule) == ("e4m3", "e8m0", None, "rceil")
    assert (mx.rowwise.block, mx.columnwise.block, mx.row_step) == ((1, 32), (32, 1), 32)
    assert (mx.bits_per_element, mx.gather, mx.tensor_amax) == (8.25, "by pass", False)
    assert (nv.element, nv.scale, nv.tensor_scale) == ("e2m1", "e4m3", "f32")
    assert (nv.rowwise.block, nv.rowwise.scale_per, nv.row_step) == ((16, 16), (1, 16), 16)
    assert (nv.bits_per_element, nv.wire_bits_per_element) == (4.5, 4.03125)
    assert nv.columnwise.transposed


@pytest.mark.parametrize(
    ("name", "rows", "columns", "shapes"),
    [
        ("mxfp8_e4m3", 300, 520, [(300, 520), (384, 20), (300, 520), (12, 640)]),
        ("nvfp4", 300, 520, [(300, 260), (384, 36), (520, 150), (640, 20)]),
        ("nvfp4", 0, 64, [(0, 32), (0, 4), (64, 0), (128, 0)]),
    ],
)
def test_shapes_of_buffers(name, rows, columns, shapes):
    f = nc.format(name)
    assert [f.buffer_shape(buffer, rows, columns) for buffer in range(4)] == shapes


def test_unknown_name():
    with pytest.raises(ValueError, match=r"no format 'mxfp8'.*did you mean mxfp8_2d or mxfp8_e4m3"):
        nc.format("mxfp8")
    with pytest.raises(ValueError, match=r"no format 'zzz'.*loaded are .*nvfp4"):
        nc.format("zzz")
    with pytest.raises(TypeError, match="int"):
        nc.format(4)


def plugin(format):
    return Path(nc.format(format).path)


def test_loading_a_file_again_is_no_error(format):
    assert nc.load_plugin(plugin(format)) == [format]
    assert format in nc.load_plugin(plugin(format).parent)


def test_missing_file(tmp_path):
    with pytest.raises(nc.PluginError, match=r"none\.so"):
        nc.load_plugin(tmp_path / "none.so")
    with pytest.raises(nc.PluginError, match="without plugins"):
        nc.load_plugin(tmp_path)


@pytest.mark.parametrize("part", [0, 100, 5000, -1])
def test_file_cut_short(tmp_path, format, part):
    whole = plugin(format).read_bytes()
    file = tmp_path / "short.so"
    file.write_bytes(whole[:part])
    with pytest.raises(nc.PluginError, match=r"short\.so' is (cut short|not a plugin)"):
        nc.load_plugin(file)


def test_file_that_is_no_plugin(tmp_path):
    text = tmp_path / "text.so"
    text.write_text("not a library")
    with pytest.raises(nc.PluginError, match=r"text\.so"):
        nc.load_plugin(text)
    library = shutil.copy(nc._C.__file__, tmp_path / "library.so")
    with pytest.raises(nc.PluginError, match=r"library\.so"):
        nc.load_plugin(library)


def test_another_file_with_the_same_format(tmp_path, format):
    copy = shutil.copy(plugin(format), tmp_path / "copy.so")
    with pytest.raises(nc.PluginError, match=format):
        nc.load_plugin(copy)


def run_python(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_plugins_of_the_environment(tmp_path):
    """A file of one's own comes after those of the package; here it is a file that is there."""
    last = plugin(nc.formats()[-1])
    path = os.pathsep.join([str(last), str(last.parent)])
    answer = run_python("import narrowcast as n; print(n.formats())", NARROWCAST_PLUGINS=path)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.strip() == str(nc.formats())
    answer = run_python("import narrowcast", NARROWCAST_PLUGINS=str(tmp_path / "none.so"))
    assert answer.returncode != 0
    assert "PluginError: plugin" in answer.stderr
    assert "none.so' does not exist" in answer.stderr


def test_plain_parameters_are_no_format():
    """Their library has no name, by which no operator finds it."""
    with pytest.raises(ValueError, match="there is no format ''"):
        torch.ops.narrowcast.cast(torch.ones(32, 32), "", True, False)
