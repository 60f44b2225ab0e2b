"""What narrowcast changes in torch: nothing by its import; what torch_hooks lists by nc.convert and
when a quantized parameter is unpickled; else hooks of converted modules.
"""

import copy
import subprocess
import sys
import weakref

import pytest
import torch
from torch import nn

import narrowcast as nc
from models import pickled

LOOK = """
import sys, torch, torch.distributed.fsdp, torch.distributed.tensor.parallel
import torch.distributed._state_dict_utils, torch.nn.parallel.distributed, torch.optim.swa_utils

modules = [one for name, one in sorted(sys.modules.items()) if name.startswith("torch")]
HARMLESS = ("__", "_abc_", "_marked_safe_globals_set", "next_id")

def look():
    seen = {}
    for module in filter(None, modules):
        for name, value in list(vars(module).items()):
            seen[module.__name__, name] = value
            if isinstance(value, type) and value.__module__.startswith("torch"):
                kind = value.__module__ + "." + value.__name__
                seen |= {(kind, key): one for key, one in list(vars(value).items())}
    hooks = vars(torch.nn.modules.module).items()
    sizes = {(name,): len(one) for name, one in hooks if name.startswith("_global") and one}
    return {key: one for key, one in seen.items() if not key[-1].startswith(HARMLESS)} | sizes

def changed(before):
    after = look()
    return {key[-1] for key in after if after[key] is not before.get(key, after[key])}

before = look()
import narrowcast as nc
assert changed(before) == set(), changed(before)
"""
REPLACED = {
    *("_init_sharded_param", "_init_sharded_post_forward_param_metadata", "_split_tensor"),
    *("_sync_module_states", "_broadcast_tensors"),
}


CONVERT = "nc.convert(torch.nn.Linear(64, 64), 'mxfp8_e4m3')"


def run(code, *arguments):
    """The words of each line that is printed."""
    command = [sys.executable, "-W", "ignore", "-c", LOOK + code, *map(str, arguments)]
    answer = subprocess.run(command, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return [set(line.split()) for line in answer.stdout.splitlines()]


def test_convert_replaces_functions_once():
    code = f"{CONVERT}\nprint(*changed(before))\nfirst = look()\n{CONVERT}\nprint(*changed(first))"
    assert run(code) == [REPLACED, set()]


def test_a_quantized_parameter_that_is_unpickled(tmp_path):
    weight = nc.convert(nn.Linear(64, 64), "mxfp8_e4m3").weight
    paths = tmp_path / "tensor", tmp_path / "parameter"
    for path, one in zip(paths, (weight.detach(), weight), strict=True):
        torch.save(one, path)
    code = "for path in sys.argv[1:]: torch.load(path); print(*changed(before))"
    assert run(code, *paths) == [set(), REPLACED]


@pytest.mark.parametrize("copied", [copy.deepcopy, pickled])
def test_copies_of_a_module_register_their_own_parameters(copied):
    layer = nc.convert(nn.Linear(64, 64), "mxfp8_e4m3")
    other, weight = copied(layer), layer.weight
    other.weight = new = nn.Parameter(torch.ones(64, 64))
    assert other.weight is new
    assert layer.weight is weight
    assert type(layer) is nn.Linear


def test_a_converted_module_dies_with_its_last_reference():
    layer = nc.convert(nn.Linear(64, 64), "mxfp8_e4m3")
    reference = weakref.ref(layer)
    del layer
    assert reference() is None
