"""Experts: parameters of three dimensions, multiplied, sharded and read in every way."""

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard

import narrowcast as nc
import ranks
from cut_weights import assert_part, part_of
from expert_models import HIDDEN, HOW, TOKENS, WIDTH, build, loss_of
from gradients import saved_by
from models import GATHERS, WHOLE_STATE, same
from weights import quantized

TESTED_FORMATS = GATHERS


def decoded(model, how):
    """A plain model of the rowwise values, and hooks by which autograd saves columnwise ones."""
    plain, columnwise = build(how), {}
    for mine, other in zip(plain.parameters(), model.parameters(), strict=True):
        if isinstance(other, nc.MasterWeight):
            mine.data = quantized(other).dequantize()
            other_values = quantized(other).dequantize(usage="columnwise")
            columnwise[mine.untyped_storage().data_ptr()] = other_values

    def pack(saved):
        values = columnwise.get(saved.untyped_storage().data_ptr())
        if values is None:
            return saved
        return values.as_strided(saved.shape, saved.stride(), saved.storage_offset())

    return plain, torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved)


@pytest.mark.parametrize("how", HOW)
def test_products_and_gradients(format, how):
    model = nc.convert(build(how), format)
    plain, hooks = decoded(model, how)
    x = torch.randn(TOKENS, WIDTH, requires_grad=True)
    output = model(x)
    with hooks:
        expected = plain(x)
    assert same(output, expected)
    gradient = torch.randn_like(output)
    got = torch.autograd.grad(output, [x, *model.parameters()], gradient)
    for one, other in zip(
        got, torch.autograd.grad(expected, [x, *plain.parameters()], gradient), strict=True
    ):
        assert type(one) is torch.Tensor
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("how", HOW)
def test_no_decoded_weight_is_saved(format, how):
    model = nc.convert(build(how), format)
    for saved in saved_by(lambda: loss_of(model, 0)):
        assert type(saved) is not torch.Tensor or saved.numel() <= TOKENS * WIDTH


@pytest.mark.parametrize(("backend", "dim"), [(None, 0), ("aot_eager", 0), (None, 1), (None, 2)])
@ranks.on(2, "cpu")
def test_sharded_is_whole(mesh, format, backend, dim):
    """The sharded model and the whole one see the same batches, so they stay equal. `dim`: along
    which experts are sharded.
    """

    def place(parameter):
        return Shard(dim) if parameter.dim() == 3 else None

    dtype = torch.bfloat16 if backend else torch.float32  # torch traces no other grouped_mm
    whole, model = (nc.convert(build(*HOW).to(dtype), format) for _ in range(2))
    torch._dynamo.reset()
    for experts in model[:-1]:
        if backend:
            experts.compile(backend=backend, fullgraph=True)
        fully_shard(experts, mesh=mesh, reshard_after_forward=True, shard_placement_fn=place)
    fully_shard(model, mesh=mesh)
    optimizers = [nc.FusedAdam(one.parameters(), lr=1e-2) for one in (model, whole)]
    for step in range(2):
        losses = [loss_of(one, step) for one in (model, whole)]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        assert same(*losses), step
    for mine, other in zip(model.parameters(), whole.parameters(), strict=True):
        for key, value in optimizers[1].state[other].items():
            if key not in WHOLE_STATE:
                local = optimizers[0].state[mine][key].to_local()
                assert same(local, part_of(value, mine)), key
        if isinstance(other, nc.MasterWeight):
            assert_part(mine, other, ["rowwise_data", "rowwise_scale_inv", "tensor_amax"], dim)


# ---- the ways of reading them ----


def test_views(format):
    w = nc.convert(build("selected"), format, trainable=False)[0].up.detach()
    plain, x = w.dequantize(), torch.randn(TOKENS, WIDTH)
    for part, index in (
        (w[1], 1),
        (w[1:3], slice(1, 3)),
        (w.unbind()[2], 2),
        (w[torch.tensor(3)], 3),
    ):
        assert_quantized_part(part, plain[index])
    for got, expected in (
        (x @ w[1].t(), x @ plain[1].t()),
        (x @ w.mT[1], x @ plain[1].t()),
        (w[0] @ x.t(), plain[0] @ x.t()),
        (F.linear(x[0], w[2]), F.linear(x[0], plain[2])),
        (F.linear(x, w.mT[2].t(), x[0, :HIDDEN]), F.linear(x, plain[2], x[0, :HIDDEN])),
        (torch.addmm(x[:, :HIDDEN], x, w[1].T), torch.addmm(x[:, :HIDDEN], x, plain[1].T)),
        (torch.einsum("ti,eoi->teo", x, w), torch.einsum("ti,eoi->teo", x, plain)),
        (torch.matmul(x, w.transpose(1, 2)), torch.matmul(x, plain.transpose(1, 2))),
        (w.mT.float(), plain.mT),
    ):
        torch.testing.assert_close(got, expected)
    assert torch.equal(w[torch.tensor([2, 0])], plain[[2, 0]])


def assert_quantized_part(part, value):
    assert isinstance(part, nc.QuantizedTensor)
    assert same(part.dequantize(), value)
