"""Parameters in the places of others: what torch and users have attached to those goes along."""

import torch
from torch import nn

from narrowcast.tensor import dtensors


def parameter_like(old: nn.Parameter, local: torch.Tensor, requires_grad: bool) -> nn.Parameter:
    """A parameter with another value on this rank, for the modules that have the old one: with its
    attributes, its hooks and, if it still requires one, the gradient that it has so far.
    """
    new = nn.Parameter(dtensors.like(old, local), requires_grad=requires_grad)
    new.__dict__.update(old.__dict__)
    if requires_grad:
        # The same dictionaries, so that handles which remove a hook still do.
        if old._backward_hooks is not None:
            new._backward_hooks = old._backward_hooks
        if old._post_accumulate_grad_hooks is not None:
            new._post_accumulate_grad_hooks = old._post_accumulate_grad_hooks
        new.grad = old.grad
    return new
