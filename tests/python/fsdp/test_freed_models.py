"""Sharded models are freed: nothing of narrowcast's holds a model, its masters or its moments."""

import gc
import time
import weakref

import pytest
import torch
import torch.distributed as dist
from torch import nn

import narrowcast as nc
import ranks
from internals import store_of
from memory import storages
from models import GATHERS, build, loss_of, shard, train, uneven_rows, unit

TESTED_FORMATS = GATHERS

MODELS = 5
SMALL = 2**14  # what torch's own tables may grow by


def forward(model, optimizer, device):
    return loss_of(model, 0, device)  # whose graph dies with it


def backward(model, optimizer, device):
    loss_of(model, 0, device).backward()


def step(model, optimizer, device):
    train(model, optimizer, 2, device)


def evaluate(model, optimizer, device):
    model.eval()
    with torch.no_grad():
        return loss_of(model, 0, device)


def infer(model, optimizer, device):
    if dist.get_world_size() == 1:  # FSDP2 of torch 2.11 then asks its own slots for versions
        return evaluate(model, optimizer, device)
    with torch.inference_mode():
        return loss_of(model, 0, device)


def load(model, optimizer, device):
    train(model, optimizer, 1, device)
    model.load_state_dict({name: 2 * p for name, p in model.state_dict().items()})
    optimizer.load_state_dict(optimizer.state_dict())
    train(model, optimizer, 1, device)


def unshard(model, optimizer, device):
    model.unshard()
    model.blocks[0].unshard()
    return model.blocks[0].up.weight.dequantize()


def kept(model, optimizer, device):
    """The gathered weights are alive when the model goes."""
    model.set_reshard_after_backward(False)
    loss_of(model, 0, device).backward()


def known_by_a_weight(model, optimizer, device):
    """A whole weight knows the model, as its hooks and attributes may."""
    know = model.blocks[0].up.register_forward_pre_hook(
        lambda layer, _: setattr(layer.weight, "owner", model)
    )
    train(model, optimizer, 3, device)
    know.remove()


class Short(nn.Module):
    """A weight of which the last of three ranks has fewer rows."""

    def __init__(self, format):
        super().__init__()
        self.width, rows = 3 * unit(format), uneven_rows(format)
        rows += -rows % nc.format(format).group
        self.up, self.down = nn.Linear(self.width, rows), nn.Linear(rows, self.width)
        self.blocks = [self.up]

    def forward(self, x):
        return self.down(self.up(x))


LIVES = [forward, backward, step, evaluate, infer, load, unshard, kept, known_by_a_weight]


def made(mesh, format, uneven=False, **options):
    device = mesh.device_type
    model = nc.convert(Short(format), format).to(device) if uneven else build(format, device)
    model = shard(model, mesh, **options)
    return model, nc.FusedAdam(model.parameters(), lr=1e-2)


def references(model, optimizer):
    """Weak ones to all that must die, by name."""
    found = {"model": weakref.ref(model), "optimizer": weakref.ref(optimizer)}
    for name, p in model.named_parameters():
        found[name] = weakref.ref(p)
        for key, value in optimizer.state[p].items():
            found[name, key] = weakref.ref(getattr(value, "_local_tensor", value))
        local = p.to_local()
        if isinstance(local, nc.QuantizedTensor):
            found[name, "shard"] = weakref.ref(local)
            found[name, "value"] = weakref.ref(store_of(local).master.value)
    return found


def die(mesh, format, life, uneven=False, reshard=True):
    model, optimizer = made(mesh, format, uneven, reshard_after_forward=reshard)
    found = references(model, optimizer)
    result = LIVES[life](model, optimizer, mesh.device_type)
    del model, optimizer, result
    deadline = time.monotonic() + 5  # gloo's threads let go of tensors a moment after they are done
    while gc.collect() or time.monotonic() < deadline:
        left = [name for name, reference in found.items() if reference() is not None]
        if not left:
            return
        time.sleep(0.05)
    raise AssertionError(f"alive: {left}")


@pytest.mark.parametrize("life", range(len(LIVES)), ids=[one.__name__ for one in LIVES])
@pytest.mark.parametrize("world", [1, 2])
def test_nothing_is_left(format, device, world, life):
    ranks.run(world, device, die, format, life)


@pytest.mark.parametrize("life", [step, load], ids=["step", "load"])
def test_short_shards(format, device, life):
    ranks.run(3, device, die, format, LIVES.index(life), True)


def test_kept_weights(format, device):
    ranks.run(2, device, die, format, LIVES.index(step), False, False)


def held(device):
    """Bytes of tensors, once those that threads hold have gone."""
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()
    return sum(storages().values())


def many(mesh, format):
    """The bytes that are held after each of many models."""
    sizes = []
    for _ in range(MODELS):
        model, optimizer = made(mesh, format)
        train(model, optimizer, 2, mesh.device_type)
        del model, optimizer
        deadline = time.monotonic() + 5
        while len(sizes) > 1 and held(mesh.device_type) > sizes[1] and time.monotonic() < deadline:
            time.sleep(0.05)
        sizes.append(held(mesh.device_type))
    return sizes


def test_memory_stays(format, device):
    for sizes in ranks.run(2, device, many, format):
        assert max(sizes[2:]) - sizes[1] <= SMALL, sizes
