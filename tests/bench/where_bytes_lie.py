"""Where the bytes of weights lie while a model trains under FSDP2: counted, in bytes an element.

    python tests/bench/where_bytes_lie.py --markdown --draw docs/benchmarks/memory.svg

makes the table and the picture of docs/memory.md. A stack of linear layers is trained for a step
on the CPU, on two ranks. What stays between steps is counted over all ranks together; what a gather
brings every rank has, of one module at a time.
"""

import sys

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import memory
import narrowcast as nc
import processes
import report
import where_bytes_lie_picture

RANKS, LAYERS, WIDTH = 2, 3, 512
FP32, BF16 = "fp32, gathered as bf16", "bf16"
PLAIN = FP32, BF16
STAYS = "weights", "masters", "moments", "gradients"
COLUMNS = [
    ("kept", "kept as", "s"),
    *((name, name, ".2f") for name in STAYS),
    ("trained", "all of it", ".2f"),
    ("forward", "gathered, forward", ".2f"),
    ("backward", "gathered, backward", ".2f"),
    ("frozen", "frozen", ".2f"),
]


class Probe(torch.autograd.Function):
    """Calls `look` when the backward comes by."""

    @staticmethod
    def forward(ctx, x, look):
        ctx.look = look
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        ctx.look("backward")
        return gradient, None


class Watched(nn.Linear):
    """A layer that is looked at while its weight is gathered."""

    look = staticmethod(lambda when: None)

    def forward(self, x):
        self.look("forward")
        return Probe.apply(nn.functional.linear(x, self.weight), self.look)


def build(kept: str, mesh, trainable: bool = True):
    """A sharded model, and its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(*(Watched(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    model.to(torch.float32 if kept == FP32 else torch.bfloat16).requires_grad_(trainable)
    if kept not in PLAIN:
        nc.convert(model, kept)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    options = {"mp_policy": policy} if kept == FP32 else {}
    for module in (*model, model):
        fully_shard(module, mesh=mesh, reshard_after_forward=True, **options)
    make = torch.optim.AdamW if kept == FP32 else nc.FusedAdam
    return model, make(model.parameters(), lr=1e-3)


def stored(model) -> int:
    """Bytes of this rank's shards, without values."""
    shards = [p.to_local() for p in model.parameters()]
    plain = [one for one in shards if not isinstance(one, memory.CONVERTED)]
    return memory.shard_bytes(model) + sum(one.nbytes for one in plain)


def masters(model, optimizer) -> int:
    """Of those beside the shards; of bf16 ones they are the optimizer's."""
    weights = memory.quantized_weights(model)
    own = [one.value for one in weights if isinstance(one, nc.MasterWeight)]
    if not own:
        own = [s["master"].to_local() for s in optimizer.state.values() if "master" in s]
    return sum(one.nbytes for one in own)


def gradients(model) -> int:
    return sum(p.grad.to_local().nbytes for p in model.parameters() if p.grad is not None)


def count(kept: str, mesh) -> dict:
    """A row of the table."""
    model, optimizer = build(kept, mesh)
    found, x = {}, torch.ones(1, WIDTH, dtype=torch.bfloat16)
    model(x).float().sum().backward()
    found["gradients"] = gradients(model)
    optimizer.step()
    optimizer.zero_grad()
    moments = [s[name] for s in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    found["moments"] = sum(one.to_local().nbytes for one in moments)
    found |= {"weights": stored(model), "masters": masters(model, optimizer)}
    elements = LAYERS * WIDTH * WIDTH / mesh.size()
    row = {"kept": kept} | {name: found[name] / elements for name in STAYS}
    row["trained"] = sum(row[name] for name in STAYS)
    row |= {when: bytes / WIDTH**2 for when, bytes in gathered(model, x).items()}
    frozen, optimizer = build(kept, mesh, trainable=False)
    row["frozen"] = (stored(frozen) + masters(frozen, optimizer)) / elements
    return row


def gathered(model, x) -> dict[str, int]:
    """Bytes of the first layer's weight while it is gathered, in either pass."""
    found = {}

    def look(when: str) -> None:
        weight = model[0].weight
        is_quantized = isinstance(weight, nc.QuantizedTensor)
        parts = weight._store.bytes.buffers if is_quantized else [weight]
        found[when] = sum(part.nbytes for part in parts if part is not None)

    model[0].look = look
    model(x).float().sum().backward()
    return found


def main() -> int:
    parser = report.parser(__doc__)
    parser.add_argument("--formats", default="all", help="all, or names; default: all")
    parser.add_argument("--draw", metavar="FILE", help="a picture of it, .svg or .png")
    parser.add_argument("--markdown", action="store_true", help="the table as a page has it")
    report.add_options(parser)
    args = parser.parse_args()
    args.device, args.ranks = "cpu", RANKS
    if processes.must_start(args):
        return processes.start(RANKS)
    names = nc.formats() if args.formats == "all" else args.formats.split(",")
    with processes.mesh("cpu") as mesh:
        rows = [count(kept, mesh) for kept in (*PLAIN, *names)]
        rank = mesh.get_local_rank()
    if rank == 0:
        print((report.markdown if args.markdown else report.table)(rows, COLUMNS))
        report.write_json(rows, args.json)
        if args.draw:
            where_bytes_lie_picture.draw(rows, args.draw)
    return 0


if __name__ == "__main__":
    sys.exit(main())
