"""How the examples' processes start and end."""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.run import main as torchrun


def start_ranks(ranks):
    """Runs this program once a rank, on this machine, as torchrun does."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torchrun(["--standalone", f"--nproc-per-node={ranks}", *sys.argv])
    return 0


def join_ranks(device):
    """The mesh of all ranks, which torchrun has started; without it, of this process alone."""
    if device == "cuda":
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
    dist.init_process_group("nccl" if device == "cuda" else "gloo", **alone)
    return init_device_mesh(device, (dist.get_world_size(),))


def end_ranks():
    """Ends the process group, before the process ends.

    The threads of gloo let go of a collective's tensors some time after its result is there. One
    that waits for Python's lock to do so when Python shuts down aborts the process ("terminate
    called without an active exception"; PyTorch's pull request 179291 has more). So they are given
    the lock for a moment.
    """
    dist.destroy_process_group()
    time.sleep(0.1)
