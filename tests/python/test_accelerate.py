"""Hugging Face accelerate, the real one: its preparation for FSDP2 puts other parameters into the
groups of an optimizer.
"""

import contextlib
import os
from unittest import mock

import pytest

import narrowcast as nc
import ranks
from models import GATHERS, build, build_plain, same, shard, train
from narrowcast.tensor import dtensors

pytest.importorskip("accelerate", reason="accelerate is not installed")


def values(model):
    local = (dtensors.local_of(p).detach() for p in model.parameters())
    return [p.master if isinstance(p, nc.QuantizedTensor) else p for p in local]


def prepared(mesh, format, ram_efficient=False, **options):
    """A model and its optimizer as accelerate prepares them for FSDP2."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils import DistributedType

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=ram_efficient,
        reshard_after_forward=True,
    )
    on_cpu = mesh.device_type == "cpu"
    if on_cpu:  # where accelerate would not shard
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    accelerator = Accelerator(cpu=on_cpu, fsdp_plugin=plugin)
    assert accelerator.is_fsdp2
    model = build(format, **options) if format else build_plain("mxfp4")
    optimizer = nc.FusedAdam(model.parameters(), lr=1e-2)
    return accelerator.prepare(model, optimizer)


@contextlib.contextmanager
def with_accelerate():
    """The variables that it asks for, and does not use; and a state that nobody else sees."""
    from accelerate.state import AcceleratorState

    with mock.patch.dict(os.environ, MASTER_ADDR="localhost", MASTER_PORT="0"):
        try:
            yield
        finally:
            AcceleratorState._reset_state(True)


def trained(mesh, format):
    device = mesh.device_type
    with with_accelerate():
        model, optimizer = prepared(mesh, format)
        losses = train(model, optimizer, 2, device)
    expected = build(format, device) if format else build_plain("mxfp4", device)
    shard(expected, mesh)
    assert losses == train(expected, nc.FusedAdam(expected.parameters(), lr=1e-2), 2, device)
    assert all(map(same, values(model), values(expected)))


@pytest.mark.parametrize("weights", [GATHERS[-1], None])
def test_fsdp2(weights, device):
    ranks.run(2, device, trained, weights)


def sent_from_rank_0(mesh, format):
    """Values are, and weights without masters have none."""
    words = r"cpu_ram_efficient_loading=False.*trainable=True"
    with with_accelerate(), pytest.raises(ValueError, match=words):
        prepared(mesh, format, ram_efficient=True, trainable=False)


def test_frozen_weights_are_not_sent_as_values():
    ranks.run_alone(2, "cpu", sent_from_rank_0, GATHERS[-1])
