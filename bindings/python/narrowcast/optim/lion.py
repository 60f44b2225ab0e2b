"""Lion."""

import torch

from narrowcast.optimizer import FusedOptimizer


class Lion(FusedOptimizer):
    """Lion in one pass over memory that also writes the bytes of quantized weights. A value moves
    by lr against the sign of an average of momentum and gradient.

    lr, betas, weight_decay
                  as in the paper (Chen et al., 2023, "Symbolic discovery of optimization
                  algorithms", program 2): betas are those of the average and of the momentum, and
                  the decay is decoupled
    capturable, state_dtype, rounding, seed
                  narrowcast.optimizer.FusedOptimizer's, where all else is told
    """

    rule = "lion"

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-4,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        capturable: bool = False,
        state_dtype: torch.dtype = torch.float32,
        rounding: str = "nearest",
        seed: int = 0,
    ):
        defaults = {
            "lr": lr,
            "betas": betas,
            "weight_decay": weight_decay,
            "capturable": capturable,
        }
        super().__init__(params, defaults, state_dtype, rounding, seed)

    @staticmethod
    def numbers(group: dict) -> dict:
        beta1, beta2 = group["betas"]
        decay = group["weight_decay"]
        return {"lr": group["lr"], "beta1": beta1, "beta2": beta2, "weight_decay": decay}
