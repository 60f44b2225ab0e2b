"""Hugging Face accelerate, the real one: its preparation for FSDP2 puts other parameters into the
groups of an optimizer.
"""

import os

import pytest

import narrowcast as nc
import ranks
from models import GATHERS, build, build_plain, same, shard, train
from narrowcast.tensor import dtensors

pytest.importorskip("accelerate", reason="accelerate is not installed")


def values(model):
    local = (dtensors.local_of(p).detach() for p in model.parameters())
    return [p.master if isinstance(p, nc.QuantizedTensor) else p for p in local]


def prepared(format):
    """A model and its optimizer as accelerate prepares them for FSDP2; on the CPU it does not by
    itself.
    """
    from accelerate import Accelerator, FullyShardedDataParallelPlugin
    from accelerate.utils import DistributedType

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
        reshard_after_forward=True,
    )
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT="0")  # asked for, and not used
    accelerator = Accelerator(cpu=True)
    accelerator.state.distributed_type = DistributedType.FSDP
    accelerator.state.fsdp_plugin = plugin
    model = build(format) if format else build_plain("mxfp4")
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    return accelerator.prepare(model, optimizer)


def trained(mesh, format):
    from accelerate.state import AcceleratorState

    try:
        model, optimizer = prepared(format)
        losses = train(model, optimizer, 2)
    finally:
        AcceleratorState._reset_state(True)
    expected = shard(build(format) if format else build_plain("mxfp4"), mesh)
    assert losses == train(expected, nc.FusedAdam(expected.parameters(), lr=1e-2), 2)
    assert all(map(same, values(model), values(expected)))


@pytest.mark.parametrize("weights", [GATHERS[-1], None])
def test_fsdp2(weights):
    ranks.run(2, "cpu", trained, weights)
