"""torch.distributed.checkpoint asks an optimizer without state for some: it sets gradients of zeros
and a learning rate of 0, and calls step(). A step of FusedAdam would be counted, rounded and
remembered in histories like any other, and perhaps wait for other ranks.
"""

from narrowcast import callers


def is_for_state() -> bool:
    """Whether the present step is such a one. There is nothing else to know it by: a schedule may
    begin at 0, and a rank may have gradients of zeros alone.
    """
    return callers.is_running("torch.distributed.checkpoint.state_dict", "_init_optim_state")
