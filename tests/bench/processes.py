"""Ranks: those of torchrun, those that a program starts itself, or the program alone."""

import argparse
import contextlib
import os
import subprocess
import sys
import time
import warnings

import torch
import torch.distributed as dist


def add_device_option(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cuda" if torch.cuda.is_available() else "cpu",
        help="default: cuda where there is one",
    )


def add_options(parser: argparse.ArgumentParser):
    add_device_option(parser)
    parser.add_argument(
        "--ranks", type=int, help="processes, where torchrun starts none; default: one a GPU"
    )


# What NCCL is told, so that two GPUs of one machine send as over a network: through the host's
# memory (measured: 33 GB/s a GPU, what a network card of 400 Gb/s gives at best), or by sockets.
LINKS = {
    "fast": {},
    "host": {"NCCL_P2P_DISABLE": "1"},
    "sockets": {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}


def add_link_option(parser: argparse.ArgumentParser):
    parser.add_argument(
        "--link",
        choices=LINKS,
        default="fast",
        help="how GPUs reach each other: as fast as they can, through the host's memory, or by "
        "sockets, as slow links between machines; default: %(default)s",
    )


def use_link(options) -> None:
    """Before the first collective of this process, and before it starts others."""
    os.environ.update(LINKS[options.link])


def must_start(options) -> int:
    """How many ranks this program has to start: 0 if it is one, or the only one."""
    gpus = torch.cuda.device_count() if options.device == "cuda" else 1
    ranks = options.ranks or gpus
    return ranks if "RANK" not in os.environ and ranks > 1 else 0


def start(ranks: int) -> int:
    """Runs this program once a rank, on this machine; returns the exit status."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    environment = {"OMP_NUM_THREADS": str(threads), "GLOO_SOCKET_IFNAME": "lo", **os.environ}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={ranks}", *sys.argv]
    return subprocess.run(command, env=environment, check=False).returncode


@contextlib.contextmanager
def mesh(device: str):
    """The mesh of all ranks, for as long as the process group is there."""
    warnings.filterwarnings("ignore", "DTensor random operators")  # any values will do
    backend = "nccl" if device == "cuda" else "gloo"
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield dist.init_device_mesh(device, (dist.get_world_size(),))
    finally:
        dist.destroy_process_group()
        time.sleep(0.1)  # for gloo's threads: examples/launch.py says why


def wait(device: str) -> None:
    """Until the device is through."""
    if device == "cuda":
        torch.cuda.synchronize()


def reduced(value: float, device: str, operation) -> float:
    """The maximum (dist.ReduceOp.MAX) or the like of a number over all ranks."""
    tensor = torch.tensor(value, dtype=torch.float64, device=device)
    dist.all_reduce(tensor, operation)
    return tensor.item()
