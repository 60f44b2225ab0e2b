"""What torch.compile is told: functions that it shall call and not look into, and the shapes of our
operators.
"""

import torch
from torch._C._dynamo import eval_frame

from narrowcast import _C  # defines the operators


def leave_alone(function) -> None:
    """Has torch.compile run a function, and all that it calls, as it is. torch.compiler.disable
    does so too, by a wrapper that would cost each call more than most of ours take.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


@torch.library.register_fake("narrowcast::dequantize")
def _dequantize(data, scale, amax, present, format, usage, rows, columns, dtype):
    return data.new_empty((rows, columns), dtype=dtype)


@torch.library.register_fake("narrowcast::product")
def _product(operand, data, scale, amax, present, bias, format, usage, rows, columns, backward):
    width = columns if backward else rows
    return operand.new_empty((*operand.shape[:-1], width))


del _C
