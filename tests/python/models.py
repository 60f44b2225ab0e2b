"""The small models, batches and comparisons that the tests of training share."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

import narrowcast as nc

BUFFERS = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv", "amax")
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


class Block(nn.Module):
    """A residual block: what fully_shard and checkpointing take as a unit."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Model(nn.Module):
    """Two blocks and a head. Row counts are multiples of 128, which 4 ranks can share; the odd
    parameter makes offsets in flat buffers odd.
    """

    def __init__(self, width=128, hidden=256, outputs=128):
        super().__init__()
        self.blocks = nn.ModuleList([Block(width, hidden) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)
        self.scale = nn.Parameter(torch.full((129,), 0.5))
        self.reentrant = None  # True or False: each block under activation checkpointing

    def forward(self, x):
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x)) * self.scale.mean()


def build(format=None, device="cpu", dtype=torch.float32, seed=0, **options):
    """The model, equal in every process; converted if a format is given."""
    torch.manual_seed(seed)
    model = Model().to(device, dtype)
    return model if format is None else nc.convert(model, format, **options)


def batch(step, device="cpu", dtype=torch.float32, width=128, outputs=128):
    """The same inputs and targets in every process."""
    generator = torch.Generator().manual_seed(1000 + step)
    x = torch.randn(8, width, generator=generator).to(device, dtype)
    y = torch.randn(8, outputs, generator=generator).to(device, dtype)
    return x, y


def loss_of(model, step, device="cpu", dtype=torch.float32):
    x, y = batch(step, device, dtype)
    return F.mse_loss(model(x).to(y.dtype), y)


def train(model, optimizer, steps, device="cpu", dtype=torch.float32, first=0):
    """The losses of some steps, as numbers."""
    losses = []
    for step in range(first, first + steps):
        loss = loss_of(model, step, device, dtype)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def same(a, b):
    """Equal bytes; both may be None."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    a, b = (t.detach().cpu().reshape(-1).contiguous().view(torch.uint8) for t in (a, b))
    return torch.equal(a, b)


def assert_same(got, expected, names=BUFFERS, what=""):
    """Two quantized tensors have the same bytes in the buffers named."""
    for name in names:
        a, b = getattr(got, name), getattr(expected, name)
        assert same(a, b), f"{what} {name}: {a} is not {b}"


def assert_quantized(got, value, what=""):
    """A quantized tensor has the bytes of nc.quantize(value), in the usages that it has."""
    fresh = nc.quantize(value, got.format)
    present = [name for name in BUFFERS if getattr(got, name) is not None]
    assert "rowwise_data" in present or "columnwise_data" in present
    assert_same(got, fresh, present, what)


def shard(model, mesh, **options):
    """fully_shard on each block and the whole."""
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def local_rows(tensor, parameter, mesh):
    """The rows of a whole tensor that this rank has of a sharded parameter."""
    rows = -(-parameter.shape[0] // mesh.size())
    begin = min(mesh.get_local_rank() * rows, len(tensor))
    return tensor[begin : begin + len(parameter.to_local())]
