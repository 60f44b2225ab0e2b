"""docs/writing-an-optimizer.md is true: a reader's steps, taken from the page itself, with an
installed package, of which alone the build reads, and what it says of errors.
"""

import pytest

import building
import page_reader
from page_programs import DOCS

QUICKLY = " ".join(building.QUICK)
# The format is not the one that the rule was built for.
ANOTHER = """
import torch
from adamax import Adamax

import narrowcast as nc

weight = nc.convert(torch.nn.Linear(64, 64, bias=False), "nvfp4").weight
weight.grad = torch.ones(64, 64)
try:
    Adamax([weight]).step()
except NotImplementedError as error:
    print(error)
print(nc.__file__)
"""


@pytest.mark.slow
@pytest.mark.usefixtures("generator")
def test_page(tmp_path, monkeypatch):
    site, folder = building.install(tmp_path / "site"), tmp_path / "reader"
    folder.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(site))
    narrowcast = f'exec {{python}} -m narrowcast "$@" {QUICKLY}'
    run = page_reader.reader(tmp_path / "programs", monkeypatch, narrowcast=narrowcast)
    page = (DOCS / "writing-an-optimizer.md").read_text(encoding="utf-8")
    assert page_reader.follow(page, folder, run) == 2
    depends = (folder / "rules/build/rule_adamax/compile_commands.json").read_text()
    assert str(site / "narrowcast/source") in depends
    assert f"{building.ROOT}/" not in depends
    (folder / "another.py").write_text(ANOTHER)
    error, package = run("python another.py", folder).splitlines()
    assert "weights in the format nvfp4 cannot be updated by the rule adamax" in error
    assert "`narrowcast build --rule adamax.hpp nvfp4 -o FOLDER`" in error
    assert package == str(site / "narrowcast/__init__.py")
