"""What all runs of learning.py read: the windows of every step, and the held-out ones."""

import functools
import hashlib

import torch

import python_sources
from demo_parts import read

TEXTS = {"library": read, "machine": python_sources.read}
HELD_OUT_SEED = 0  # whatever the run's, so that all runs are measured on the same windows
DRAWN_AHEAD = 64  # steps whose windows are told to the device together


class Text:
    """The whole text is on the device, as bytes. Of each batch of windows a rank has its part."""

    def __init__(self, args, rank: int):
        self.args, self.rank = args, rank
        training, held_out = TEXTS.get(args.text, functools.partial(read, args.text))()
        for part in (training, held_out):
            if len(part) <= args.seq:
                raise SystemExit(f"--text: {len(part)} bytes have no window of {args.seq}")
        checksum = hashlib.sha256(training.numpy())
        checksum.update(held_out.numpy())
        self.facts = {
            "text": args.text if args.text in TEXTS else "files",
            "training_bytes": len(training),
            "held_out_bytes": len(held_out),
            "text_sha256": checksum.hexdigest(),
        }
        self.training, self.held_out = training.to(args.device), held_out.to(args.device)

    def steps(self):
        """The inputs and targets of each step, in the same order for every mode; endless."""
        random = torch.Generator().manual_seed(self.args.seed + 1)
        while True:
            yield from self._windows(self.training, DRAWN_AHEAD, random)

    def evaluation(self):
        """The held-out ones, the same each time."""
        same = torch.Generator().manual_seed(HELD_OUT_SEED)
        return self._windows(self.held_out, self.args.held_out, same)

    def _windows(self, text, count: int, generator):
        """Inputs and targets of some batches; the host waits for no device."""
        seq, device = self.args.seq, self.args.device
        starts = torch.randint(len(text) - seq, (count, self.args.batch, 1), generator=generator)
        own = starts[:, self.rank :: self.args.world].contiguous().to(device, non_blocking=True)
        for batch in own:
            stretch = text[batch + torch.arange(seq + 1, device=device)].long()
            yield stretch[:, :-1], stretch[:, 1:]
