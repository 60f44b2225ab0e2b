"""More ranks than GPUs: each as a host of its own, which sees one GPU.

NCCL takes no two ranks of one host for the same GPU. Ranks that it takes for hosts (NCCL_HOSTID) it
connects by sockets, and the GPU works for its ranks in turn. That is slow, and NCCL all the same.
"""

import os

import torch


def local_rank(rank: int, world: int) -> int:
    """The number of this rank's GPU, for this process, which has not yet asked CUDA for anything.
    Where there are fewer GPUs than ranks, it sees from now on one alone, which others may see, too.
    """
    gpus = torch.cuda.device_count()
    if gpus == 0 or gpus >= world:
        return rank
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(gpus)))).split(",")
    os.environ["CUDA_VISIBLE_DEVICES"] = visible[rank % gpus]
    os.environ.update(NCCL_HOSTID=f"rank{rank}", NCCL_SOCKET_IFNAME="lo")
    return 0
