"""Checkpoints of a training run: from any number of ranks, for any other."""

import shutil

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


class Checkpoints:
    """Folders of a folder, one a checkpoint. It is complete when it has `.metadata`, which DCP
    writes last; until then the one before it is the last. So a run may be killed at any time.
    """

    def __init__(self, folder, model, optimizer, scheduler, random, losses=None):
        """losses: a list of a number for each step, which goes along."""
        self._folder = folder
        self._model, self._optimizer = model, optimizer
        self._scheduler, self._random = scheduler, random
        self._losses = [] if losses is None else losses

    def save(self, step):
        """After so many steps. Older ones than the last go."""
        older = self._complete()
        dcp.save(self._states(), checkpoint_id=self._folder / f"step-{step:08d}")
        if dist.get_rank() == 0:
            for path in older[:-1]:
                (path / ".metadata").unlink()
                shutil.rmtree(path)

    def load(self):
        """The last one, if there is one. Returns how many steps it has seen."""
        complete = self._complete()
        if not complete:
            return 0
        states = self._states()
        dcp.load(states, checkpoint_id=complete[-1])
        loaded = {"model_state_dict": states["model"], "optim_state_dict": states["optimizer"]}
        set_state_dict(self._model, self._optimizer, **loaded)
        self._scheduler.load_state_dict(states["scheduler"])
        self._random.set_state(states["random"])
        self._losses[:] = states["losses"]
        return int(complete[-1].name.removeprefix("step-"))

    def _states(self):
        model, optimizer = get_state_dict(self._model, self._optimizer)
        rest = {"scheduler": self._scheduler.state_dict(), "random": self._random.get_state()}
        rest["losses"] = [float(loss) for loss in self._losses]
        return {"model": model, "optimizer": optimizer, **rest}

    def _complete(self):
        found = self._folder.glob("step-*/.metadata") if self._folder else ()
        return sorted(path.parent for path in found)
