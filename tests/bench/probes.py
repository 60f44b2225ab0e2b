"""Looks at steps that are not timed: host time of FSDP2's hooks, kernels launched."""

import collections
import contextlib
import functools
import re
import statistics
import time

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from narrowcast import MasterWeight

HOOKS = ("fsdp_pre_all_gather", "fsdp_post_all_gather")


@contextlib.contextmanager
def timed_hooks():
    """Gives a dict of the seconds of each call, by hook."""
    seconds = {name: [] for name in HOOKS}
    plain = {name: getattr(MasterWeight, name) for name in HOOKS}
    for name in HOOKS:
        setattr(MasterWeight, name, _timed(plain[name], seconds[name]))
    try:
        yield seconds
    finally:
        for name in HOOKS:
            setattr(MasterWeight, name, plain[name])


def _timed(function, seconds):
    @functools.wraps(function)  # FSDP2 counts the parameters
    def outer(*args, **kwargs):
        begin = time.perf_counter()
        result = function(*args, **kwargs)
        seconds.append(time.perf_counter() - begin)
        return result

    return outer


def hook_microseconds(step, steps=3) -> dict[str, float | None]:
    """Mean host microseconds of each hook's calls, one a weight and gather, over some steps. No
    median: a group's first weight may do the work of all. None for a hook that is not called.
    """
    with timed_hooks() as seconds:
        for _ in range(steps):
            step()
    return {
        name: 1e6 * statistics.mean(times) if times else None for name, times in seconds.items()
    }


def kernels(work) -> collections.Counter:
    """The kernels that work() launches on the GPU, by name."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    on_device = [event for event in profiler.events() if event.device_type == DeviceType.CUDA]
    return collections.Counter(
        event.name
        for event in on_device
        if not (event.is_user_annotation or event.name.startswith(("Memcpy", "Memset")))
    )


def own(counter: collections.Counter) -> collections.Counter:
    """Those of narrowcast among the kernels, by what they do."""
    categories = collections.Counter()
    for name, count in counter.items():
        if "narrowcast" in name:
            categories[category(name)] += count
    return categories


def category(name: str) -> str:
    """What a kernel of narrowcast does: the action that a tile kernel is made for, or its name."""
    if action := re.search(r"(\w+)Action\b(<[^<>]*>)?", name):
        return action[1] + re.sub(r"\w+::", "", action[2] or "")
    function = re.search(r"(\w+)\s*(?:<.*>)?\s*\(", name)
    return function[1] if function else name
