"""narrowcast check, build and diff: what they make and what they print."""

import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from building import QUICK, SHOW, SPEC, run, write
from models import assert_same, train
from narrowcast.__main__ import main

pytestmark = pytest.mark.usefixtures("generator")

ROOT = Path(__file__).parents[3]
# Whole, two rows share bytes in the columnwise usage; a shard does not keep that.
ROWS = {"block": [1, 8]}
FINE_SHARDS = {
    "element": {"type": "e2m1"},
    "rowwise": ROWS,
    "columnwise": ROWS | {"transposed": True},
}
TRAIN = """
import sys, torch, narrowcast as nc
layer = nc.convert(torch.nn.Linear(32, 16), sys.argv[1], matmul="scaled")
layer(torch.randn(8, 32)).sum().backward()
products = nc.format(sys.argv[1]).matmul
print((products.input, products.gradient), bool(layer.weight.grad.isfinite().all()))
"""


@pytest.mark.slow
def test_build_rebuild_and_load(tmp_path, capsys):
    """Of a keyword of C++; and of a name that a build target could have, beside its format. The
    generator's own tests go through many more names.
    """
    spec = write(tmp_path, SPEC | {"format": "int"})
    plugins = tmp_path / "my plugins (more), 100%"
    command = ["build", str(spec), "-o", str(plugins), *QUICK]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert "int: generated" in printed
    assert "compiling for the CPU (baseline)\n" in printed
    assert "s  int for baseline" in printed
    assert "int: golden bytes as defined, on baseline" in printed
    assert f"NARROWCAST_PLUGINS={plugins}" in printed
    page = (plugins / "generated/int/page.md").read_text()
    assert "Made from int.toml; edit that and run `narrowcast build`." in page

    loaded = run(sys.executable, "-c", SHOW, "int", NARROWCAST_PLUGINS=str(plugins))
    assert loaded.stdout == f"[[122]] {plugins}/int.so\n", loaded.stderr
    trained = run(sys.executable, "-c", TRAIN, "int", NARROWCAST_PLUGINS=str(plugins))
    assert trained.stdout == "('int', 'mxfp8_e5m2') True\n", trained.stderr

    made = (plugins / "int.so").stat().st_mtime_ns
    assert main(command) == 0
    assert "for baseline" not in capsys.readouterr().out, "an unchanged format is compiled again"
    assert (plugins / "int.so").stat().st_mtime_ns == made

    # Another format into the same folder, of which shards are cut where whole weights are not,
    # leaves the first; a changed spec gives new bytes.
    other = write(tmp_path, SPEC | FINE_SHARDS | {"format": "int_options"})
    write(tmp_path, SPEC | {"format": "int", "quantize": {"scale": "even"}})
    assert main(["build", str(other), str(spec), "-o", str(plugins), *QUICK]) == 0
    assert "int_options: golden bytes as defined" in capsys.readouterr().out
    for name, scale in (("int", [[123]]), ("int_options", [[128]] * 4)):
        loaded = run(sys.executable, "-c", SHOW, name, NARROWCAST_PLUGINS=str(plugins))
        assert loaded.stdout == f"{scale} {plugins / name}.so\n", loaded.stderr
    ranks.run_alone(2, "cpu", shards_are_cut_finely, str(plugins), "int_options")


def test_check(spec, tmp_path, capsys):
    assert main(["check", str(spec)]) == 0
    assert capsys.readouterr().out == f"{spec}: no errors\n"
    wrong = write(tmp_path, SPEC | {"vocabulary": 2, "quantize": {"scale": "exact"}}, "wrong")
    for command in (["check"], ["build", "-o", str(tmp_path / "out")]):
        assert main([*command, str(spec), str(wrong)]) == 1
        errors = capsys.readouterr().err
        assert "vocabulary 2 is not known" in errors
        assert 'scale rule "exact" is not defined for scales of type "e8m0"' in errors
        assert "stands in a file named wrong.toml" in errors
        assert "3 errors" in errors
    assert not (tmp_path / "out").exists()
    assert main(["check", str(tmp_path / "none.toml")]) == 1
    assert "none.toml: error: cannot be read" in capsys.readouterr().err


def test_shipped_specs_have_no_errors():
    assert main(["check", *map(str, sorted((ROOT / "spec").glob("*.toml")))]) == 0


def shards_are_cut_finely(mesh, plugins, name):
    """Each has three rows, which share bytes columnwise with the others' in the whole alone."""
    nc.load_plugin(plugins)
    f = nc.format(name)
    assert (f.gather, f.row_step, f.shard_row_step) == ("rowwise", 2, 1)

    def model(device="cpu"):
        torch.manual_seed(0)
        layers = nn.Linear(8, 6), nn.Linear(6, 6, bias=False).requires_grad_(False)
        return nc.convert(nn.Sequential(*layers).to(device), name)

    meta = fully_shard(model("meta"), mesh=mesh)
    assert [one.to_local().shape[0] for one in meta.parameters()] == [3, 3, 3]
    whole, cut = model(), model()
    weight = cut[1].weight  # a frozen one
    fully_shard(cut, mesh=mesh)
    with pytest.raises(ValueError, match="row 3: only at multiples of 2"):
        weight[:3]
    optimizers = [nc.FusedAdam(one[0].parameters(), lr=1e-2) for one in (cut, whole)]
    trained = [
        train(one, optimizer, 2, loss_of=lambda one, *_: one(torch.ones(4, 8)).square().mean())
        for one, optimizer in zip((cut, whole), optimizers, strict=True)
    ]
    assert trained[0] == trained[1]
    cut.unshard()
    for layer, expected in zip(cut, whole, strict=True):
        assert_same(layer.weight, expected.weight)


def test_diff(capsys):
    first, second = nc.formats()[:2]
    assert main(["diff", first, second, "--shape", "128x256"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == [first, second]
    rows = {line[3:].split("  ")[0]: line for line in lines[1:-2]}
    for fact in ("element", "scale", "bits per element", "row step", "gathered", "rowwise block"):
        assert fact in rows
    assert "loaded from" in rows
    assert rows["loaded from"].startswith("*")
    assert any(row.startswith(" ") for row in rows.values())
    marked = sum(line.startswith("*") for line in lines[1:-1])
    assert lines[-1] == f"* {marked} of {len(rows)} facts differ"
    assert main(["diff", first, first]) == 0
    assert "* 0 of" in capsys.readouterr().out
    assert main(["diff", first, "nothing_like_it"]) == 1
