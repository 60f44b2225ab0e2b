"""Megatron-Core 0.16 on the CPU, over gloo: its training path takes memory from CUDA by name.

    with on_cpu():
        ...  # build, train, save and load as on GPUs

Nothing here knows of narrowcast. Autograd runs CPU backwards in the calling thread, so they are
within the context too.
"""

import contextlib
from unittest import mock

import torch
import torch.distributed as dist
from megatron.core.dist_checkpointing.strategies import filesystem_async
from megatron.core.distributed import param_and_grad_buffer
from megatron.core.optimizer import distrib_optimizer
from megatron.core.tensor_parallel import random
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class _CudaIsCpu(TorchFunctionMode):
    """What Megatron asks of CUDA by name, it gets on the CPU."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:
            # The optimizer takes tensors that are called torch.cuda.FloatTensor and the like.
            return function(*args).replace("torch.", "torch.cuda.")
        if function is torch.Tensor.to:
            args = tuple(_on_cpu(one) for one in args)
        if "device" in kwargs:
            kwargs["device"] = _on_cpu(kwargs["device"])
        return function(*args, **kwargs)


def _on_cpu(device):
    is_device = isinstance(device, str | torch.device) and not isinstance(device, torch.dtype)
    return CPU if is_device and str(device).startswith("cuda") else device


class _Works:
    def __init__(self):
        self.works = []

    def wait(self):
        for work in self.works:
            work.wait()


@contextlib.contextmanager
def _one_by_one(group=None, device=None, async_ops=False):
    """torch's _coalescing_manager: gloo has no collectives of many buffers, so each is its own."""
    started, plain = _Works(), {}
    names = "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"

    def kept(function):
        def run(*args, **kwargs):
            work = function(*args, **kwargs)
            if work is not None:
                started.works.append(work)
            return work

        return run

    with contextlib.ExitStack() as stack:
        # Megatron holds two of them as globals of its own.
        held = {"all_gather_into_tensor": "dist_all_gather_func"}
        held["reduce_scatter_tensor"] = "dist_reduce_scatter_func"
        for name in names:
            plain[name] = kept(getattr(dist, name))
            if name in held:
                patch = mock.patch.object(param_and_grad_buffer, held[name], plain[name])
            else:
                patch = mock.patch.object(dist, name, plain[name])
            stack.enter_context(patch)
        yield started


# Two of Megatron's methods go wrong where Adam is torch's, for Transformer Engine and apex are not
# installed: they know steps of groups, and torch's Adam has one for each parameter.


def _set_state(self, model_param, tensors):
    """Without the step, which no checkpoint has for a parameter."""
    group, place = self.model_param_group_index_map[model_param]
    main = self.optimizer.param_groups[group]["params"][place]
    for name, value in {"param": main, **self.optimizer.state[main]}.items():
        if name != "step":
            value.detach().copy_(tensors[name])


def _load_state(load):
    """With a step for each parameter: Megatron's has one tensor for all, which each would count."""

    def run(self, state_dict):
        load(self, state_dict)
        for state in self.optimizer.state.values():
            state["step"] = state["step"].clone()

    return run


def _nothing(*args, **kwargs):
    return None


@contextlib.contextmanager
def on_cpu():
    """Megatron's training path on the CPU. Its process groups are gloo's; with one microbatch or
    many, dense or with sequence parallelism, and dist_checkpointing.
    """
    optimizer = distrib_optimizer.DistributedOptimizer
    patches = [
        # Where new memory is put, and what collectives of checkpoints use.
        (torch.cuda, "current_device", lambda: CPU),
        (torch.cuda, "synchronize", _nothing),
        (torch.cuda, "current_stream", _nothing),
        (torch.cuda, "empty_cache", _nothing),
        # The states of random numbers that tensor-parallel ranks fork.
        (torch.cuda, "get_rng_state", lambda device=None: torch.get_rng_state()),
        (torch.cuda.random, "get_rng_state", lambda device=None: torch.get_rng_state()),
        (torch.cuda, "manual_seed", torch.manual_seed),
        (random, "_set_cuda_rng_state", lambda state, *a, **k: torch.set_rng_state(state)),
        (param_and_grad_buffer, "_coalescing_manager", _one_by_one),
        # What a checkpoint's writer logs, for which it wants psutil.
        (filesystem_async, "_process_memory", lambda: 0),
        (optimizer, "_set_main_param_and_optimizer_states", _set_state),
        (optimizer, "load_state_dict", _load_state(optimizer.load_state_dict)),
    ]
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            stack.enter_context(mock.patch.object(owner, name, value))
        stack.enter_context(_CudaIsCpu())
        yield
