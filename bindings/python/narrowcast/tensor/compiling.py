"""What torch.compile is told: which functions not to look into, and what no trace may do."""

import sys
from contextlib import AbstractContextManager, nullcontext

import torch
from torch._C._dynamo import eval_frame
from torch.utils._python_dispatch import _disable_current_modes

from narrowcast import _C


def leave_alone(function) -> None:
    """Has torch.compile run a function, and all that it calls, as it is. torch.compiler.disable
    does so too, by a wrapper that would cost each call more than most of ours take.
    """
    skip = eval_frame._FrameAction.SKIP
    strategy = eval_frame._FrameExecStrategy(skip, skip)
    eval_frame.set_code_exec_strategy(function.__code__, strategy)


def storage_of(memory: torch.Tensor) -> torch.UntypedStorage:
    """An object of its own, for torch.compile asks which tensors share one."""
    storage = memory.untyped_storage()
    return storage[:] if type(memory) is torch.Tensor and not memory.is_meta else storage


_PROXY = torch._C._TorchDispatchModeKey.PROXY


def is_recorded() -> bool:
    """Whether operators become a graph of torch.compile, torch.export or make_fx."""
    return torch._C._get_dispatch_mode(_PROXY) is not None


def without_modes() -> AbstractContextManager:
    """No mode sees what happens in it: bytes that outlive a trace are made there."""
    return _disable_current_modes() if _C.is_watched() else nullcontext()


def check_write(what: str) -> None:
    """NotImplementedError in a trace (of torch.compile, make_fx or torch.jit): bytes are made by no
    operator, and whether they are stale is no tensor.
    """
    if is_recorded() or torch.jit.is_tracing() or torch._guards.TracingContext.try_get():
        raise NotImplementedError(
            f"{what}: a compiled function cannot write to it, because its graph would not know "
            "that the bytes are to be made anew. Write outside of it, or in a function under "
            "torch.compiler.disable"
        )


def check_export(what: str) -> None:
    """NotImplementedError while torch.onnx.export traces: ONNX has no operators of narrowcast's."""
    onnx = sys.modules.get("torch.onnx")  # which `import torch` leaves out
    if onnx is not None and onnx.is_in_onnx_export():
        raise NotImplementedError(
            f"{what}: torch.onnx.export has no operator that decodes its bytes. Export the model "
            "that nc.to_plain(model) makes, of copy.deepcopy(model) if the training goes on"
        )
