"""torch.set_default_dtype, as libraries set it around a step: everything has the dtype that it must
have, whatever tensors have that say none.
"""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import one_of_each, same

DTYPES = [torch.bfloat16, torch.float16, torch.float64]
FORMATS = one_of_each(lambda f: (f.tensor_amax, f.amax, f.shard_row_step > 32))


def trained(mesh, format, dtype):
    """Two steps, a write and a load that rank 0 sends; rows that cuts divide, too."""
    torch.manual_seed(0)
    layers = nn.Linear(64, 96, dtype=torch.float32), nn.Linear(96, 64, dtype=torch.float32)
    model = fully_shard(nc.convert(nn.Sequential(*layers), format), mesh=mesh)
    x = torch.randn(4, 64, dtype=torch.float32)
    torch.set_default_dtype(dtype)
    try:
        optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
        for _ in range(2):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            local = model[0].weight.to_local()
            local.copy_(local.master * 2)
        y = model(x)
        state = {name: p.full_tensor() for name, p in model.state_dict().items()}
        state = state if mesh.get_local_rank() == 0 else {}
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        set_model_state_dict(model, state, options=options)
        z = model(x).detach()
        model.reshard()
        return y.detach(), z, model[0].weight.to_local().master.clone()
    finally:
        torch.set_default_dtype(torch.float32)


def equal(mesh, formats):
    for format in formats:
        expected = trained(mesh, format, torch.float32)
        for dtype in DTYPES:
            assert all(map(same, trained(mesh, format, dtype), expected)), (format, dtype)


def test_sharded_training():
    ranks.run(2, "cpu", equal, FORMATS)


@pytest.mark.parametrize("default", ["dtype(torch.bfloat16)", "device('meta')"])
def test_import(default):
    script = f"import torch; torch.set_default_{default}; import narrowcast; print('imported')"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert result.stdout == "imported\n", result.stderr
