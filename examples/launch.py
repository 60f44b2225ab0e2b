"""How the examples' processes start and end."""

import os
import sys
import time

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
    """Ends the process group, before the process ends.

    The threads of gloo let go of a collective's tensors some time after its result is there. One
    that waits for Python's lock to do so when Python shuts down aborts the process ("terminate
    called without an active exception"; PyTorch's pull request 179291 has more). So they are given
    the lock for a moment.
    """
    dist.destroy_process_group()
    time.sleep(0.1)
