"""Hooks around an optimizer's step, and profilers that want to see it.

torch wraps the step of every optimizer's class in a function that names it to profilers and calls
hooks: some 20 us, whether anybody looks or not, which is as much as a step of ours takes. Ours goes
through that function only while somebody looks.
"""

import torch
from torch.autograd import profiler
from torch.optim import optimizer


def leave_to_class(optimizer_class: type[torch.optim.Optimizer]) -> None:
    """Tells torch that a class has seen to hooks and profilers itself."""
    optimizer_class.step.hooked = True


def is_on(one: torch.optim.Optimizer) -> bool:
    """Whether a profiler is running, or a step of this optimizer has hooks."""
    return bool(
        profiler._is_profiler_enabled
        or one._optimizer_step_pre_hooks
        or one._optimizer_step_post_hooks
        or optimizer._global_optimizer_pre_hooks
        or optimizer._global_optimizer_post_hooks
    )
