"""Runs a function on several ranks: real processes, gloo on the CPU or NCCL on GPUs.

    results = ranks.run(2, "cpu", train, "nvfp4")     # train(mesh, "nvfp4") on each rank

    @ranks.on(2)
    def test_training(mesh, format): ...              # a test, of which each rank is a part

Where there are fewer GPUs than ranks, ranks share them (hosts.py).

The function is a module-level one of a test file; arguments and results are no tensors. Processes
stay for the next call on that device, so that torch is imported once; those of "cpu" see no GPU. An
exception on a rank is raised here, with the rank and its traceback.
"""

import datetime
import faulthandler
import gc
import importlib.util
import inspect
import multiprocessing
import os
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import hosts

SECONDS = 240  # of the slowest machine, with as many processes as there are ranks on two cores


class RankError(AssertionError):
    """What a rank raised; `kind` is the name of the exception's class, `message` its text."""

    def __init__(self, rank, kind, message, trace):
        super().__init__(f"rank {rank} raised {kind}: {message}\n{trace}")
        self.rank, self.kind, self.message = rank, kind, message


def run(world, device, function, *arguments):
    """Calls function(mesh, *arguments) on every rank and returns the results, by rank."""
    pool = _pool(world, device)
    try:
        return pool.run(inspect.getfile(function), function.__name__, arguments)
    except RankError:
        _stop(world, device)  # the other ranks may wait in a collective
        raise


def on(world, device=None):
    """Makes a test of a function of a mesh: what it is given beside the mesh are fixtures.

    world   how many ranks, or the name of the fixture that says it
    device  theirs; by default that of the fixture `device`
    """

    def test_of(task):
        _, *parameters = inspect.signature(task).parameters.values()
        names = [one.name for one in parameters if one.default is one.empty]

        def test(**given):
            arguments = (given[name] for name in names)
            run(given.get(world, world), device or given["device"], task, *arguments)

        asked = {
            *names,
            *([world] if isinstance(world, str) else []),
            *([] if device else ["device"]),
        }
        test.__name__, test.__module__, test.__doc__ = task.__name__, task.__module__, task.__doc__
        test.__signature__ = inspect.Signature(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in sorted(asked)
        )
        test.task = task
        return pytest.mark.ranks(test)

    return test_of


def run_alone(world, device, function, *arguments):
    """The same of processes of its own, which end with it: more of them than other tests need, or
    with process groups that torch would confuse with those of others.
    """
    if (world, device) in _pools:
        _stop(world, device)
    try:
        return run(world, device, function, *arguments)
    finally:
        if (world, device) in _pools:
            _stop(world, device)


def errors(world, device, function, *arguments):
    """The same for a function that returns its exception on every rank: their (kind, message)."""
    return run(world, device, _caught, inspect.getfile(function), function.__name__, arguments)


def _caught(mesh, path, name, arguments):
    try:
        _function(path, name)(mesh, *arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return None


class _Pool:
    def __init__(self, world, device):
        context = _context()
        self.pipes, self.processes, self.tasks = [], [], 0
        # Process groups hold their stores longer than a task, and want their folder as long.
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        for rank in range(world):
            here, there = context.Pipe()
            facts = there, rank, world, device, self.folder.name
            process = context.Process(target=_serve, args=facts, daemon=True)
            process.start()
            there.close()
            self.pipes.append(here)
            self.processes.append(process)

    def run(self, path, name, arguments):
        self.tasks += 1
        for pipe in self.pipes:
            pipe.send((path, name, arguments, f"{self.folder.name}/store{self.tasks}"))
        results, waiting = [None] * len(self.pipes), dict(enumerate(self.pipes))
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting.values()), timeout=SECONDS)
            if not ready:
                where = "\n".join(self._where(rank) for rank in sorted(waiting))
                raise RankError(sorted(waiting), "Timeout", f"no answer in {SECONDS} s", where)
            for rank in [rank for rank, pipe in waiting.items() if pipe in ready]:
                results[rank] = self._result(rank)
                del waiting[rank]
        return results

    def _result(self, rank):
        try:
            good, value = self.pipes[rank].recv()
        except EOFError:
            self.processes[rank].join()
            code = self.processes[rank].exitcode
            raise RankError(rank, "Exit", f"the process ended with {code}", "") from None
        if not good:
            raise RankError(rank, *value)
        return value

    def _where(self, rank):
        """What the threads of a rank are doing."""
        os.kill(self.processes[rank].pid, signal.SIGUSR1)
        time.sleep(1)  # a signal handler writes it
        return f"rank {rank}:\n{Path(self.folder.name, str(rank)).read_text()}"

    def stop(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


def _context():
    """Where no GPU forbids a fork, of a process that has imported torch: once, and not by rank."""
    context = multiprocessing.get_context("spawn" if torch.cuda.is_available() else "forkserver")
    if context.get_start_method() == "forkserver":
        compilers = "torch._dynamo", "torch._inductor.compile_fx", "torch.utils.cpp_extension"
        checkpoints = "torch.distributed.checkpoint.state_dict"
        context.set_forkserver_preload(["narrowcast", *compilers, checkpoints])
    return context


_pools = {}


def _pool(world, device):
    if (world, device) not in _pools:
        _pools[world, device] = _Pool(world, device)
    return _pools[world, device]


def _stop(world, device):
    _pools.pop((world, device)).stop()


def _serve(pipe, rank, world, device, folder):
    """A rank's process: runs tasks until the pipe is closed. It says where it is if it crashes, and
    where SIGUSR1 asks.
    """
    faulthandler.enable()
    traces = Path(folder, str(rank)).open("w")  # noqa: SIM115 - as long as the process
    faulthandler.register(signal.SIGUSR1, traces)
    if device == "cpu":
        _hide_gpus()
    os.environ["LOCAL_RANK"] = str(rank if device == "cpu" else hosts.local_rank(rank, world))
    while True:
        forget_what_is()
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            answer = True, _run_task(rank, world, device, *task)
        except Exception as error:
            answer = False, (type(error).__name__, str(error), traceback.format_exc())
        pipe.send(answer)


def forget_what_is():
    """What imports and what tests before have left, torch.compile's caches most of all, is none of
    the next test's: collections, and nc.convert where it looks for optimizers that hold a model's
    parameters, look through the rest alone.
    """
    gc.collect()
    gc.freeze()


def _hide_gpus():
    """As on a machine without any: libraries take a GPU where they see one. And as with a torch for
    CPUs: accelerate's barriers, and meshes that nobody names, are on what torch was built for.
    """
    os.environ["CUDA_VISIBLE_DEVICES"] = ""  # CUDA reads it when it is first asked
    torch._C._get_accelerator = lambda: torch.device("cpu")


def _run_task(rank, world, device, path, name, arguments, store):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world))
    torch.set_num_threads(1)  # libraries set it, and sums are in another order with more
    if device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "gloo" if device == "cpu" else "nccl",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    try:
        mesh = dist.init_device_mesh(device, (world,))
        dist.barrier()  # a rank that fails at once must not close connections being made
        return _function(path, name)(mesh, *arguments)
    finally:
        dist.destroy_process_group()


def _function(path, name):
    """A function of a file; ranks that share a file load it once."""
    module = "on_ranks_" + "_".join(Path(path).with_suffix("").parts[-2:])
    if module not in sys.modules:
        spec = importlib.util.spec_from_file_location(module, path)
        sys.modules[module] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[module])
    function = getattr(sys.modules[module], name)
    return getattr(function, "task", function)  # of a test, what each rank does
