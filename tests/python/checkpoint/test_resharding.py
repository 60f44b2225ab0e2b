"""A training that stops and goes on with other numbers of ranks, by checkpoints: values, moments,
counts and bytes are at each stop those of one process that never stopped.
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import DEVICES, assert_equal_state, same
from resuming import resume, states_of

# A load casts to nearest, and with delayed scaling under the present amax.
FORMATS = [name for name in nc.formats() if not nc.format(name).is_delayed]

STOPS = {"cpu": (8, 3, 1, 4), "cuda": (4, 2, 1, 4)}
WIDTH, STEPS = 48, 2


class Layers(nn.Module):
    """A layer for each format, by its name."""

    def __init__(self):
        super().__init__()
        for name in FORMATS:
            self.add_module(name, nn.Linear(WIDTH, rows_of(name)))

    def forward(self, x):
        return [layer(x) for layer in self.children()]


def rows_of(format):
    """Every number of ranks can have them; the last of some has fewer, unless rows are packed."""
    f = nc.format(format)
    return 24 * f.row_step - (f.rowwise.element_bits == 8)


def save_first(path):
    """The model that all begin with."""
    torch.manual_seed(0)
    model = Layers()
    for name in FORMATS:
        nc.convert(model, name, filter=name)
    torch.save(model, path)


def made(folder, device, mesh=None):
    model = torch.load(f"{folder}/first", weights_only=False).to(device)
    if mesh is not None:
        fully_shard(model, mesh=mesh)
    return model, nc.FusedAdam(model.parameters(), lr=1e-2)


def small_integers(shape, step, device):
    generator = torch.Generator().manual_seed(step)
    return torch.randint(-8, 9, shape, generator=generator).to(device, torch.float32)


def train(model, optimizer, first, device):
    """The outputs. Gradients are integers, of which a mean over three ranks is exact."""
    for step in range(first, first + STEPS):
        outputs = model(small_integers((4, WIDTH), step, device))
        losses = [(one * small_integers(one.shape, step, device)).sum() for one in outputs]
        sum(losses).backward()
        optimizer.step()
        optimizer.zero_grad()
    return outputs


def go_on(mesh, whole, whole_optimizer, folder, stop):
    """Loads what the last ranks have saved, some of them into a model that has been used; trains
    beside the whole model, and saves.
    """
    device = mesh.device_type
    model, optimizer = made(folder, device, mesh)
    both = model, optimizer, whole, whole_optimizer, mesh
    if stop > 0:
        if stop % 2:
            train(model, optimizer, 100, device)
        resume(model, optimizer, f"{folder}/{stop - 1}", mesh.get_group())
        x = torch.ones(1, WIDTH, device=device)
        with torch.no_grad():
            assert all(map(same, model(x), whole(x)))
        model.reshard()
        assert_equal_state(*both)
    outputs = train(model, optimizer, stop * STEPS, device)
    assert all(map(same, outputs, train(whole, whole_optimizer, stop * STEPS, device)))
    model.reshard()
    assert_equal_state(*both)
    where = {"checkpoint_id": f"{folder}/{stop}", "process_group": mesh.get_group()}
    dcp.save(states_of(model, optimizer), **where)
    return [len(layer.weight.to_local()) for layer in model.children()]


def travel(mesh, folder):
    """The rows of each weight that this rank had at each stop; None where it was not needed."""
    device, lengths = mesh.device_type, []
    whole, whole_optimizer = made(folder, device)
    for stop, world in enumerate(STOPS[device]):
        some = DeviceMesh(device, [*range(world)])
        if mesh.get_rank() < world:
            lengths.append(go_on(some, whole, whole_optimizer, folder, stop))
        else:
            train(whole, whole_optimizer, stop * STEPS, device)
            lengths.append(None)
        dist.barrier()
    return lengths


@pytest.mark.parametrize("device", DEVICES)
def test_other_numbers_of_ranks(device, tmp_path):
    """All formats in one model: what starts the processes is most of the time."""
    save_first(tmp_path / "first")
    answers = ranks.run_alone(max(STOPS[device]), device, travel, str(tmp_path))
    for stop, world in enumerate(STOPS[device]):
        parts = [torch.empty(rows_of(name)).chunk(world) for name in FORMATS]
        for rank, lengths in enumerate(answers):
            expected = [len(part[rank]) for part in parts] if rank < world else None
            assert lengths[stop] == expected
