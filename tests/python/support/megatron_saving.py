"""Checkpoints of the runs of megatron_training, by Megatron's dist_checkpointing."""

import contextlib
import multiprocessing
import queue
from pathlib import Path
from unittest import mock

import torch.distributed as dist
from megatron.core import dist_checkpointing
from megatron.core.dist_checkpointing.strategies import filesystem_async


def save(run, path, kind):
    """kind: Megatron's sharding type of the optimizer."""
    if dist.get_rank() == 0:
        Path(path).mkdir(parents=True)
    dist.barrier()
    write(_sharded(run, kind, False), path)


def write(sharded, path):
    """A sharded state dict into a folder that is there."""
    with _may_have_children():
        dist_checkpointing.save(sharded, path)


def load(run, path, kind):
    loaded = dist_checkpointing.load(_sharded(run, kind, True), path)
    run.model.load_state_dict(loaded["model"])
    run.optimizer.load_state_dict(loaded["optimizer"])


def _sharded(run, kind, is_loading):
    metadata = {"distrib_optim_sharding_type": kind, "chained_optim_avoid_prefix": True}
    model = run.model.sharded_state_dict(metadata=metadata)
    state = run.optimizer.sharded_state_dict(model, is_loading, metadata=metadata)
    return {"model": model, "optimizer": state}


@contextlib.contextmanager
def _may_have_children():
    """Megatron's writers are forked, which daemons, as the ranks of tests are, may not do; and the
    process that it starts for their results would outlive the rank.
    """
    options = multiprocessing.current_process()._config
    with (
        mock.patch.dict(options, {"daemon": False}),
        mock.patch.object(filesystem_async, "_get_write_results_queue", queue.Queue),
    ):
        yield
