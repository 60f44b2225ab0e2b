"""How the examples' processes start and end."""

import gc
import os
import sys

import torch.distributed as dist
from torch.distributed.run import main as torchrun


def start_ranks(ranks):
    """Runs this program once a rank, on this machine, as torchrun does."""
    threads = max(1, (os.cpu_count() or 1) // ranks)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torchrun(["--standalone", f"--nproc-per-node={ranks}", *sys.argv])
    return 0


def end_ranks():
    """Ends the process group, when no model and no mesh is held any more.

    The threads of gloo live as long as anything that knows the group, and let go of the last
    collectives' tensors some time after the result is there. One that does so while Python ends
    aborts the process ("terminate called without an active exception"; PyTorch's pull request
    179291 has more).
    """
    dist.destroy_process_group()
    gc.collect()  # models and meshes are in circles
