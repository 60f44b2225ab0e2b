"""Faults that a soak finds, to be planted in its ranks: `soak.py --fault NAME`."""

import torch.distributed as dist


def unreduced_amax() -> None:
    """Rank 1 casts with the amax of its own shard."""
    from narrowcast.ranks import reduction

    all_reduce = reduction._all_reduce

    def broken(words, group):
        begin = all_reduce(words, group)

        def reduce():
            before = words.clone()
            work = begin()
            if dist.get_rank() == 1:
                work.wait()
                words.copy_(before)
            return work

        return reduce

    reduction._all_reduce = broken


def failure_forgotten() -> None:
    """After a reduction that has failed, old bytes are taken for those of the new values."""
    from narrowcast.optimizer import FusedOptimizer, parameters

    step = FusedOptimizer._step

    def broken(self, closure):
        try:
            return step(self, closure)
        except ConnectionError:
            for entry in parameters.entries(self):
                if entry.store is not None:
                    entry.store.mark_fresh()
            raise

    FusedOptimizer._step = broken


def lost_rank() -> None:
    """Rank 1 leaves out a step for which the others wait."""
    from narrowcast.optimizer import FusedOptimizer, parameters

    step = FusedOptimizer._step

    def broken(self, closure):
        stores = [entry.store for entry in parameters.entries(self)]
        is_collective = any(one is not None and one.format.tensor_amax for one in stores)
        return None if is_collective and dist.get_rank() == 1 else step(self, closure)

    FusedOptimizer._step = broken


FAULTS = {
    one.__name__.replace("_", "-"): one for one in (unreduced_amax, failure_forgotten, lost_rank)
}
