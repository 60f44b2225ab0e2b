"""The small models, batches and comparisons that the tests of training share."""

import io
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.utils.checkpoint import checkpoint

import narrowcast as nc
from internals import store_of
from narrowcast import _C
from narrowcast.tensor.casting import NEWEST_AMAX
from narrowcast.tensor.dtensors import local_of
from weights import quantized, value_of

BYTES = ("rowwise_data", "rowwise_scale_inv", "columnwise_data", "columnwise_scale_inv")
BUFFERS = (*BYTES, "tensor_amax")
WHOLE_STATE = ("step", "history")  # of the optimizer: the same on all ranks
DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def one_of_each(key):
    """A format for each value of key(facts): what depends on those facts alone is tested once for
    each value that occurs, and a new format is tested if it brings a new one. Of several it is the
    one that can be cut most finely, which small models suffice for.
    """
    first = {}
    for name in sorted(nc.formats(), key=lambda name: nc.format(name).row_step):
        first.setdefault(key(nc.format(name)), name)
    return [*first.values()]


def storage(f):
    """What decides how a tensor's operations move bytes."""
    usages = (
        (u.block, u.scale_per, u.transposed, u.scale_transposed) for u in (f.rowwise, f.columnwise)
    )
    return (*usages, f.rowwise.element_bits, f.tensor_amax, f.amax)


def _sharding(f):
    """What decides what ranks exchange."""
    return f.gather, f.tensor_amax, f.rowwise.block == "tensor", f.amax, f.row_step > 32


STORAGES = one_of_each(storage)
SHARDINGS = one_of_each(_sharding)
GATHERS = one_of_each(lambda f: (f.gather, f.tensor_amax))
# For tests that take long: each gather and, since one has a scale of the whole tensor, what else
# GATHERS differ in, once.
FEW = [n for n in GATHERS if (nc.format(n).gather == "by pass") == nc.format(n).tensor_amax]


def unit(format):
    """Rows and columns at whose multiples the tests cut a tensor: 32 or more."""
    f = nc.format(format)
    return math.lcm(32, f.row_step, f.column_step)


def uneven_rows(format):
    """Rows of which the last of three ranks has fewer than the others; packed rows stay whole."""
    return max(3 * nc.format(format).row_step - 2, 7)


class Block(nn.Module):
    """A residual block: what fully_shard and checkpointing take as a unit."""

    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))


class Layer(nn.Linear):
    """With a forward of its own: from torch 2.13 on, a module with a forward of torch's that is
    given to fully_shard itself is not compiled as a whole graph.
    """

    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


class Model(nn.Module):
    """Two blocks and a head, of `width` rows and more; the odd parameter makes offsets in flat
    buffers odd.
    """

    def __init__(self, width=128):
        super().__init__()
        self.width = width
        self.blocks = nn.ModuleList([Block(width, 2 * width) for _ in range(2)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.full((129,), 0.5))
        self.reentrant = None  # True or False: each block under activation checkpointing

    def forward(self, x):
        for block in self.blocks:
            if self.reentrant is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(self.norm(x)) * self.scale.mean()


def build_plain(format, device="cpu", dtype=torch.float32, seed=0):
    """The model, equal in every process; its rows can be cut for 4 ranks (2 where a row step is
    128).
    """
    torch.manual_seed(seed)
    return Model(min(4 * unit(format), 256)).to(device, dtype)


def build(format, device="cpu", dtype=torch.float32, seed=0, **options):
    """The same in the format."""
    return nc.convert(build_plain(format, device, dtype, seed), format, **options)


def batch(model, step, device="cpu", dtype=torch.float32):
    """Inputs and targets, the same in every process."""
    generator = torch.Generator("cpu").manual_seed(1000 + step)
    shape = 8, model.width
    x, y = (torch.randn(shape, generator=generator, device="cpu") for _ in range(2))
    return x.to(device, dtype), y.to(device, dtype)


def loss_of(model, step, device="cpu", dtype=torch.float32):
    x, y = batch(model, step, device, dtype)
    return F.mse_loss(model(x).to(y.dtype), y)


def train(model, optimizer, steps, device="cpu", dtype=torch.float32, first=0, loss_of=loss_of):
    """The losses of some steps, as numbers. loss_of: as the function of that name."""
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
    """Two weights have the same bytes in the buffers named."""
    for name in names:
        a, b = getattr(quantized(got), name), getattr(quantized(expected), name)
        assert same(a, b), f"{what} {name}: {a} is not {b}"


def assert_quantized(got, value, what=""):
    """A weight has the bytes of nc.quantize(value), in the usages that it has; with delayed
    scaling, those under the multiplier of its history.
    """
    got, fresh = quantized(got), nc.quantize(value, got.format)
    if got.history is not None:
        store = store_of(fresh)
        store.bytes.history.copy_(got.history)
        _C.CastList([store.bytes], [value.reshape(store.rows, store.columns)]).cast(None)
        store.bytes.amax.copy_(got.history[NEWEST_AMAX])
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


def assert_equal_state(model, optimizer, whole, whole_optimizer, mesh):
    """Every parameter, its bytes and its state are the rows that this rank has of the whole."""
    for (name, p), w in zip(model.named_parameters(), whole.parameters(), strict=True):
        for key, value in whole_optimizer.state[w].items():
            mine = optimizer.state[p][key]
            if key not in WHOLE_STATE:
                mine, value = mine.to_local(), local_rows(value, p, mesh)
            assert same(mine, value), (name, key)
        local = p.to_local()
        if not isinstance(w, nc.MasterWeight):
            assert same(local, local_rows(w, p, mesh)), name
            continue
        assert isinstance(local, nc.MasterWeight)
        assert same(local.value, local_rows(w.value, p, mesh)), name
        names = ["rowwise_data", "rowwise_scale_inv", "tensor_amax"]
        if local.format.columnwise_derived:
            assert quantized(local).columnwise_data is None
        else:
            names += ["columnwise_data", "columnwise_scale_inv"]
        assert_same(local, local_rows(quantized(w), p, mesh), names, name)


def assert_equal(one, other):
    """Models and their optimizers are equal to the bit: values, bytes and state; of shards, the
    local parts.
    """
    (model, optimizer), (model2, optimizer2) = one, other
    for sharded in (each for each in (model, model2) if isinstance(each, FSDPModule)):
        sharded.reshard()
    for (name, p), q in zip(model.named_parameters(), model2.parameters(), strict=True):
        assert same(value_of(p), value_of(q)), name
        if isinstance(local_of(p), nc.MasterWeight):
            assert_same(local_of(p), local_of(q), what=name)
        state, state2 = optimizer.state[p], optimizer2.state[q]
        assert state.keys() == state2.keys(), name
        for key in state:
            assert same(local_of(state[key]), local_of(state2[key])), (name, key)


def local_values(model):
    """Copies of the values of the local parts."""
    return [value_of(p).clone() for p in model.parameters()]


def pickled(value):
    """What torch.save and torch.load make of it."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=False)
