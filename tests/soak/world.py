"""Ranks: processes that stay for all rounds, and do what the driver tells them."""

import datetime
import faulthandler
import multiprocessing
import os
import signal
import time
import traceback
from multiprocessing import connection
from pathlib import Path

START = 120  # seconds in which a rank has torch
LONGEST = 3600  # a rank waits for others; the driver is the first to lose its patience


class RankError(Exception):
    """A rank has raised, died or hung; the text says what it knows."""


class World:
    """So many rank processes. `folder`: for their stacks; `fault`: one of faults.py, to be planted
    in them; `patience`: the seconds that an action may take.
    """

    def __init__(self, size: int, folder: Path, fault: str | None, patience: float):
        self.size, self.folder, self._patience = size, folder, patience
        context = multiprocessing.get_context("spawn")
        self._pipes, self._processes = [], []
        for rank in range(size):
            here, there = context.Pipe()
            arguments = there, rank, size, str(folder), fault
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)
        self._answers(START)

    def begin(self, setup, folder: str) -> None:
        facts = {"setup": setup, "store": f"{folder}/store-{self.size}", "folder": folder}
        self.ask("begin", facts)

    def ask(self, name: str, facts: dict | None = None) -> list[dict]:
        """What each rank returns. RankError if one does not."""
        for pipe in self._pipes:
            pipe.send((name, facts or {}))
        return self._answers(self._patience)

    def _answers(self, patience: float) -> list[dict]:
        answers, waiting = [None] * self.size, dict(enumerate(self._pipes))
        end = time.monotonic() + patience
        while waiting:
            ready = connection.wait(list(waiting.values()), timeout=max(0, end - time.monotonic()))
            if not ready:
                raise RankError(f"ranks {sorted(waiting)} hang\n{self._stacks()}")
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                answers[rank] = self._answer(rank)
                del waiting[rank]
        return answers

    def _answer(self, rank: int) -> dict:
        try:
            good, answer = self._pipes[rank].recv()
        except EOFError:
            self._processes[rank].join()
            code = self._processes[rank].exitcode
            raise RankError(f"rank {rank} ended with {code}") from None
        if not good:
            raise RankError(f"rank {rank} raised\n{answer}")
        return answer

    def _stacks(self) -> str:
        """What every rank is doing: each writes it down at a signal, wherever it waits."""
        for process in self._processes:
            os.kill(process.pid, signal.SIGUSR1)
        time.sleep(1)
        files = [_stack_file(self.folder, self.size, rank) for rank in range(self.size)]
        return "\n".join(f"rank {n}:\n{file.read_text()}" for n, file in enumerate(files))

    def stop(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


def _stack_file(folder, size: int, rank: int) -> Path:
    return Path(folder) / f"stack-{size}-{rank}"


def _serve(pipe, rank: int, size: int, folder: str, fault: str | None) -> None:
    """A rank's process, until the pipe is closed."""
    import torch

    import faults
    import trainee

    torch.set_num_threads(1)
    if fault is not None:
        faults.FAULTS[fault]()
    with _stack_file(folder, size, rank).open("w") as stack:
        faulthandler.register(signal.SIGUSR1, file=stack)
        one = None
        pipe.send((True, {}))
        while True:
            try:
                name, facts = pipe.recv()
            except EOFError:
                return
            try:
                if name == "begin":
                    one = _begin(rank, size, **facts)
                    answer = True, {}
                elif name == "end":
                    one = trainee.leave()
                    answer = True, {}
                else:
                    came = getattr(one, name)(**facts)
                    answer = True, {"came": came or {}, "seen": one.look()}
            except BaseException:  # torch's CheckpointException is no Exception
                answer = False, traceback.format_exc()
            pipe.send(answer)


def _begin(rank: int, size: int, setup, store: str, folder: str):
    import torch
    import torch.distributed as dist

    import disturbances
    import hosts
    import trainee

    if setup.device == "cuda":
        torch.cuda.set_device(hosts.local_rank(rank, size))
    dist.init_process_group(
        "gloo" if setup.device == "cpu" else "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=size,
        timeout=datetime.timedelta(seconds=LONGEST),
    )
    mesh = dist.init_device_mesh(setup.device, (size,))
    dist.barrier()  # a rank that fails at once must not close connections being made
    disturbances.keep_coming(rank in setup.signals)
    return trainee.Trainee(setup, mesh, folder)
