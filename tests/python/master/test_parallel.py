"""Tensor parallelism: each rank's part of a weight that is its own master has the bytes that the
whole plain weight's cast has there, with any optimizer and after any write.
"""

import torch
from torch import optim
from torch.distributed.tensor.parallel import parallelize_module

import narrowcast as nc
import ranks
from by_hand import value_of
from cut_weights import give_gradients, part_of
from internals import bytes_of
from models import same
from narrowcast.tensor import dtensors
from parallel_models import PLAN, SEQUENCE_PLAN, batch, build_plain

FORMATS = ["nvfp4", "fp8_e4m3", "fp8_e4m3_delayed", "mxfp8_e4m3", "fp8_block128"]
OPTIMIZERS = {
    "AdamW": lambda model: optim.AdamW(model.parameters(), 1e-2, foreach=False),
    "FusedAdam": lambda model: nc.FusedAdam(model.parameters(), 1e-2),
}


def _model(mesh, format, plan, is_cut_first):
    plain = build_plain(format)
    if is_cut_first:
        parallelize_module(plain, mesh, plan)
    nc.convert(plain, format)
    return plain if is_cut_first else parallelize_module(plain, mesh, plan)


def _assert_parts(model, whole, format, what):
    """Values, and what a cast of the whole values has for this rank."""
    for (name, mine), other in zip(model.named_parameters(), whole.parameters(), strict=True):
        local = dtensors.local_of(mine).detach()
        assert same(value_of(local), part_of(other.detach(), mine)), (what, name)
        if mine.dim() == 1:
            continue
        assert isinstance(local, nc.MasterWeight)
        expected = part_of(nc.quantize(other.detach(), format), mine)
        for usage in ("rowwise", "columnwise"):
            got = nc.QuantizedTensor(local._view, local.shape, local.dtype)
            assert same(got.dequantize(usage=usage), expected.dequantize(usage=usage)), (what, name)
        if (amax := bytes_of(mine).amax) is not None:
            assert same(amax, expected.tensor_amax), (what, name)


def _train(model, whole, format, name, sequence=None):
    optimizers = [OPTIMIZERS[name](one) for one in (model, whole)]
    for step in range(2):
        x = batch(format, step)
        y = model(x if sequence is None else x.chunk(2, 1)[sequence])
        if name == "AdamW":  # the cast is that of the forward
            _assert_parts(model, whole, format, step)
        y.square().sum().backward()
        give_gradients(model, whole)
        for one in optimizers:
            one.step()
            one.zero_grad()
        if name == "FusedAdam" and not nc.format(format).is_delayed:
            _assert_parts(model, whole, format, step)


@ranks.on(2, "cpu")
def test_parts(mesh):
    rank = mesh.get_local_rank()
    for format in FORMATS:
        for is_cut_first, name in ((False, "AdamW"), (True, "FusedAdam")):
            model, whole = _model(mesh, format, PLAN, is_cut_first), build_plain(format)
            _assert_parts(model, whole, format, "cut")
            _train(model, whole, format, name)
            with torch.no_grad():
                for one in (model, whole):
                    one.up.weight.mul_(3)
                    one.down.weight.clamp_(-0.05, 0.02)
                model(batch(format, 0))
            _assert_parts(model, whole, format, "written")
    model, whole = _model(mesh, "nvfp4", SEQUENCE_PLAN, False), build_plain("nvfp4")
    _train(model, whole, "nvfp4", "AdamW", sequence=rank)
