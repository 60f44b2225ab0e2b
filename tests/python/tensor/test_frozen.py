"""Frozen weights have no value: they cost their bytes alone, and serve everywhere all the same."""

import io

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.staging import BlockingAsyncStager
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import STORAGES, assert_quantized, assert_same, one_of_each, same, unit

SHARDED = one_of_each(lambda f: (f.gather, f.tensor_amax))


class Adapted(nn.Module):
    """A frozen layer with a low-rank one beside it, as LoRA has them."""

    def __init__(self, format, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        width = 4 * unit(format)
        self.base = nn.Linear(64, width, bias=False).requires_grad_(False)
        self.a, self.b = nn.Linear(64, 4, bias=False), nn.Linear(4, width, bias=False)

    def forward(self, x):
        return self.base(x) + self.b(self.a(x))


def adapted(format, seed=0, **options):
    return nc.convert(Adapted(format, seed), format, filter="base", **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_bytes_alone(format, dtype):
    layer = nn.Linear(64, 64, bias=False).to(dtype).requires_grad_(False)
    value = layer.weight.detach().clone()
    weight = nc.convert(layer, format).weight
    assert not weight.requires_grad
    assert type(weight) is nc.QuantizedTensor
    assert_quantized(weight.detach(), value)


def test_as_asked():
    options = [(grad, trainable) for grad in (True, False) for trainable in (None, True, False)]
    seen = {}
    for grad, trainable in options:
        layer = nn.Linear(64, 64).requires_grad_(grad)
        weight = nc.convert(layer, STORAGES[0], trainable=trainable).weight
        seen[grad, trainable] = weight.requires_grad, isinstance(weight, nc.MasterWeight)
    assert seen == {
        (True, None): (True, True),
        (True, True): (True, True),
        (True, False): (False, False),
        (False, None): (False, False),
        (False, True): (False, True),
        (False, False): (False, False),
    }


def test_saved_and_loaded(format):
    one, other = adapted(format), adapted(format, seed=1)
    file = io.BytesIO()
    torch.save(one.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert_same(other.base.weight, one.base.weight)


def train(model, every=False):
    """The losses, and the gradient of the last inputs, with the frozen layer in its backward.
    `every`: the optimizer is given the frozen weight too.
    """
    optimizer = nc.FusedAdam([p for p in model.parameters() if every or p.requires_grad], lr=1e-2)
    losses = []
    for step in range(2):
        x = torch.randn(4, 64, generator=torch.Generator().manual_seed(step)).requires_grad_()
        loss = F.mse_loss(model(x), torch.ones(()).expand(4, model.base.weight.shape[0]))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, x.grad


def sharded(mesh, format, folder):
    """Gathers bring what those of a weight with a value do: the same training, whenever it is
    converted. Its checkpoint is loaded to the byte.
    """
    models = []
    for trainable, after in ((True, False), (None, False), (None, True)):
        model = Adapted(format)
        steps = [
            lambda m, t=trainable: nc.convert(m, format, filter="base", trainable=t),
            lambda m: fully_shard(m, mesh=mesh, reshard_after_forward=True),
        ]
        for one in reversed(steps) if after else steps:
            one(model)
        models.append(model)
    (losses, gradient), *others = map(train, models)
    others.append(train(fully_shard(adapted(format), mesh=mesh), every=True))
    for other_losses, other_gradient in others:
        assert other_losses == losses
        assert same(other_gradient, gradient)
    first, *frozen = [model.base.weight.to_local() for model in models]
    for local in frozen:
        assert type(local) is nc.QuantizedTensor
        assert_same(local, first)
    dcp.save(get_model_state_dict(models[1]), checkpoint_id=folder)
    fresh = fully_shard(adapted(format, seed=3), mesh=mesh)
    state = get_model_state_dict(fresh)
    dcp.load(state, checkpoint_id=folder)
    fresh.load_state_dict(state)
    assert_same(fresh.base.weight.to_local(), first)
    loaded = fully_shard(adapted(format, seed=4), mesh=mesh)
    loaded.load_state_dict(models[1].state_dict())
    assert_same(loaded.base.weight.to_local(), first)


@pytest.mark.parametrize("name", SHARDED)
def test_sharded(name, tmp_path):
    ranks.run(2, "cpu", sharded, name, str(tmp_path))


@pytest.mark.parametrize("name", SHARDED)
@ranks.on(2)
def test_staged_for_an_asynchronous_save(mesh, name, tmp_path):
    """dcp.async_save through what torch stages by copying into tensors like those it is given."""
    model, group = fully_shard(adapted(name), mesh=mesh), dist.new_group(backend="gloo")
    state = {"sharded": get_model_state_dict(model), "whole": adapted(name).state_dict()}
    saving = dcp.async_save(
        state, checkpoint_id=tmp_path, process_group=group, async_stager=BlockingAsyncStager()
    )
    saving.result()
    others = fully_shard(adapted(name, seed=1), mesh=mesh), adapted(name, seed=1)
    loaded = dict(zip(state, map(get_model_state_dict, others), strict=True))
    dcp.load(loaded, checkpoint_id=tmp_path)
    for other, saved in zip(others, state.values(), strict=True):
        own, expected = other.base.weight, saved["base.weight"]
        assert_same(*(getattr(one, "_local_tensor", one) for one in (own, expected)))


@ranks.on(2, "cpu")
def test_writing_to_a_shard(mesh):
    """A value for a shard of a tensor with one scale, whose amax nobody would reduce."""
    spanning = (name for name in nc.formats() if nc.format(name).tensor_amax)
    local = fully_shard(adapted(next(spanning)), mesh=mesh).base.weight.to_local()
    with torch.no_grad(), pytest.raises(NotImplementedError) as caught:
        local.copy_(torch.zeros(local.shape))
    for words in ("base.weight", "trainable=True", "before nc.convert"):
        assert words in str(caught.value)


def gradients_left(mesh, format):
    """Of which of two shards a gradient is left when they are replaced: the first is frozen."""
    model = nc.convert(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)), format)
    fully_shard(model, mesh=mesh)
    model(torch.ones(2, 64)).sum().backward()
    model[0].weight.requires_grad_(False)
    left = []
    for change in (nc.to_plain, lambda one: nc.convert(one, format)):
        change(model)
        left.append([layer.weight.grad is not None for layer in model])
    return left


def test_a_frozen_weight_takes_no_gradient_along():
    every = ranks.run(2, "cpu", gradients_left, "fp8_e4m3")
    assert every == [[[False, True], [False, True]]] * 2
