"""Gradients off for a call, and as before however it ends."""

import functools

import torch


def without_gradients(function):
    """As torch.no_grad() does it; but that is code of Python's, and where the handler of a signal
    raises in its midst, gradients stay off. Here functions of C's switch them, and no handler runs
    between the last instruction of `function` and the second of them.
    """

    @functools.wraps(function)
    def call(*args):
        before = torch.is_grad_enabled()
        try:
            torch._C._set_grad_enabled(False)
            return function(*args)
        finally:
            torch._C._set_grad_enabled(before)

    return call
