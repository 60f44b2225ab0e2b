"""Hugging Face accelerate, the real one: its preparation for FSDP2 puts other parameters into the
groups of an optimizer.
"""

import contextlib
import os
from unittest import mock

import pytest
import torch

import narrowcast as nc
import ranks
from models import DEVICES, GATHERS, build, build_plain, loss_of, same, shard, train
from weights import value_of

pytest.importorskip("accelerate", reason="accelerate is not installed")


def values(model):
    return [value_of(p) for p in model.parameters()]


def prepared(mesh, format):
    """A model and its optimizer as accelerate prepares them for FSDP2."""
    from accelerate import Accelerator, FullyShardedDataParallelPlugin, PartialState
    from accelerate.utils import DistributedType

    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2,
        auto_wrap_policy="transformer_based_wrap",
        transformer_cls_names_to_wrap=["Block"],
        cpu_ram_efficient_loading=False,
        reshard_after_forward=True,
    )
    on_cpu = mesh.device_type == "cpu"
    if on_cpu:  # where accelerate would not shard
        PartialState(cpu=True).distributed_type = DistributedType.MULTI_GPU
    accelerator = Accelerator(cpu=on_cpu, fsdp_plugin=plugin)
    assert accelerator.is_fsdp2
    model = build(format) if format else build_plain("mxfp4")
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


@pytest.mark.parametrize("weights", [GATHERS[-1], None])
@ranks.on(2)
def test_fsdp2(mesh, weights):
    device = mesh.device_type
    with with_accelerate():
        model, optimizer = prepared(mesh, weights)
        losses = train(model, optimizer, 2, device)
    expected = build(weights, device) if weights else build_plain("mxfp4", device)
    shard(expected, mesh)
    assert losses == train(expected, nc.FusedAdam(expected.parameters(), lr=1e-2), 2, device)
    assert all(map(same, values(model), values(expected)))


def offloaded(model, **options):
    """What a model computes whose weights are on meta between its forwards."""
    from accelerate import cpu_offload

    cpu_offload(model, execution_device=DEVICES[-1], **options)
    assert all(p.is_meta for p in model.parameters())
    with torch.no_grad():
        loss = loss_of(model, 0, DEVICES[-1])
    assert all(p.is_meta for p in model.parameters())
    return loss


@pytest.mark.parametrize("trainable", [False, True])
def test_offloading(format, trainable):
    model = build(format, trainable=trainable)
    with torch.no_grad():
        expected = loss_of(build(format, trainable=trainable).to(DEVICES[-1]), 0, DEVICES[-1])
    options = {"state_dict": model.state_dict(keep_vars=True)} if trainable else {}
    assert same(offloaded(model, **options), expected)


def test_masters_that_are_offloaded():
    """By model.state_dict(): values, of which accelerate does not say which format they are in."""
    with pytest.raises(TypeError, match=r"state_dict=model\.state_dict\(keep_vars=True\)"):
        offloaded(build(GATHERS[0]))
