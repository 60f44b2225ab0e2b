"""SGD with momentum."""

import torch

from narrowcast.optimizer import FusedOptimizer, options


class SGD(FusedOptimizer):
    """torch.optim.SGD in one pass over memory that also writes the bytes of quantized weights.

    lr, momentum, dampening, weight_decay, nesterov
                  as torch's. The state has a momentum_buffer also with momentum=0
    decoupled_weight_decay
                  False: weight decay is an L2 term in the gradient. True: it is none, and the
                  value shrinks by lr * weight_decay
    maximize, differentiable, foreach, fused
                  NotImplementedError, but for False or None, and fused=True
    capturable, state_dtype, rounding, seed
                  narrowcast.optimizer.FusedOptimizer's, where all else is told
    """

    rule = "sgd"

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        capturable: bool = False,
        state_dtype: torch.dtype = torch.float32,
        rounding: str = "nearest",
        seed: int = 0,
    ):
        options.refuse({"foreach": foreach, "fused": fused}, self.name)
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "dampening": dampening,
            "weight_decay": weight_decay,
            "nesterov": nesterov,
            "decoupled_weight_decay": decoupled_weight_decay,
            "maximize": maximize,
            "differentiable": differentiable,
            "capturable": capturable,
        }
        super().__init__(params, defaults, state_dtype, rounding, seed)

    @staticmethod
    def numbers(group: dict) -> dict:
        if group["nesterov"] and (group["momentum"] <= 0 or group["dampening"] != 0):
            raise ValueError("nesterov=True needs a momentum above 0, and no dampening")
        names = ("lr", "momentum", "dampening", "weight_decay", "nesterov")
        return {
            **{name: group[name] for name in names},
            "decoupled": group.get("decoupled_weight_decay", False),
        }

    @staticmethod
    def adopted(saved: dict) -> dict:
        """torch counts no steps, and has no buffer where there was no momentum."""
        if "step" in saved:
            return saved
        return {"step": 1.0, **saved} if saved.get("momentum_buffer") is not None else {}
