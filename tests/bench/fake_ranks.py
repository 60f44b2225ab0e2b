"""What the number of ranks costs the host: a model of many blocks is converted, sharded and trained
as one rank of a process group whose collectives do nothing (torch's fake one).

    python tests/bench/fake_ranks.py --worlds 8,512,4096 --format mxfp8_e4m3

Each row is a process of its own: the first, the middle and the last rank of each world. build:
nc.convert and fully_shard. step: forward, backward and optimizer, median. kept: Python's objects
after the steps that were not there before.
"""

import gc
import json
import statistics
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

import narrowcast as nc
import report

COLUMNS = [
    ("world", "ranks", "d"),
    ("rank", "rank", "d"),
    ("build_s", "build s", ".2f"),
    ("step_ms", "step ms", ".1f"),
    ("kept", "objects kept", ",d"),
]


class Block(nn.Module):
    """One weight of `rows` rows, so that every rank of large worlds has some."""

    def __init__(self, rows: int, width: int = 64):
        super().__init__()
        self.up = nn.Linear(width, rows, bias=False)

    def forward(self, x):
        return x + self.up(x).unflatten(-1, (-1, x.shape[-1])).mean(-2)


def measure(world: int, rank: int, options) -> dict:
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
    model = nn.Sequential(*(Block(options.rows) for _ in range(options.blocks)))
    mesh = dist.init_device_mesh("cpu", (world,))
    gc.collect()
    before, begin = len(gc.get_objects()), time.perf_counter()
    if options.format != "plain":
        nc.convert(model, options.format)
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    build = time.perf_counter() - begin
    kind = torch.optim.AdamW if options.format == "plain" else nc.FusedAdam
    optimizer, x, times = kind(model.parameters()), torch.randn(4, 64), []
    for _ in range(options.steps):
        begin = time.perf_counter()
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(1e3 * (time.perf_counter() - begin))
    gc.collect()
    step = statistics.median(times[len(times) // 2 :])
    kept = len(gc.get_objects()) - before
    return {"world": world, "rank": rank, "build_s": build, "step_ms": step, "kept": kept}


def main():
    parser = report.parser(__doc__)
    parser.add_argument("--worlds", default="8,512,4096", help="default: %(default)s")
    parser.add_argument("--format", default="mxfp8_e4m3", help="or plain; default: %(default)s")
    parser.add_argument("--blocks", type=int, default=64)
    parser.add_argument("--rows", type=int, default=8192, help="of each block's weight")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--one", help="WORLD,RANK: this row alone")
    report.add_options(parser)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*map(int, options.one.split(",")), options)))
        return
    rows = []
    for world in map(int, options.worlds.split(",")):
        for rank in (0, world // 2, world - 1):
            report.progress(f"rank {rank} of {world} ...")
            command = [sys.executable, __file__, *sys.argv[1:], "--one", f"{world},{rank}"]
            answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            rows.append(json.loads(answer.stdout.splitlines()[-1]))
    print(report.table(rows, COLUMNS))
    report.write_json(rows, options.json)


if __name__ == "__main__":
    main()
