"""Adam and AdamW, and the names that Transformer Engine and apex give their options."""

import torch

from narrowcast.optimizer import FusedOptimizer, options


class Adam(FusedOptimizer):
    """torch.optim.Adam in one pass over memory that also writes the bytes of quantized weights.

    lr, betas, eps, weight_decay, decoupled_weight_decay
                  as torch's: weight decay is an L2 term in the gradient, or with
                  decoupled_weight_decay=True as in AdamW
    amsgrad, maximize, differentiable, foreach, fused
                  NotImplementedError, but for False or None, and fused=True
    capturable, state_dtype, rounding, seed, residual_bits
                  narrowcast.optimizer.FusedOptimizer's, where all else is told
    """

    rule = "adamw"

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
        state_dtype: torch.dtype | str = torch.float32,
        rounding: str = "nearest",
        seed: int = 0,
        residual_bits: int = 8,
    ):
        options.refuse({"foreach": foreach, "fused": fused}, self.name)
        defaults = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
            "amsgrad": amsgrad,
            "maximize": maximize,
            "capturable": capturable,
            "differentiable": differentiable,
        }
        super().__init__(params, defaults, state_dtype, rounding, seed, residual_bits)

    @staticmethod
    def numbers(group: dict) -> dict:
        beta1, beta2 = group["betas"]
        return {
            "lr": group["lr"],
            "beta1": beta1,
            "beta2": beta2,
            "eps": group["eps"],
            "weight_decay": group["weight_decay"],
            "decoupled": bool(group["decoupled_weight_decay"]),
            "bias_correction": bool(group.get("bias_correction", True)),
        }


class AdamW(Adam):
    """torch.optim.AdamW: Adam whose weight decay is decoupled, 0.01 by default."""

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_dtype: torch.dtype | str = torch.float32,
        rounding: str = "nearest",
        seed: int = 0,
        residual_bits: int = 8,
    ):
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
            state_dtype=state_dtype,
            rounding=rounding,
            seed=seed,
            residual_bits=residual_bits,
        )

    def load_state_dict(self, state_dict) -> None:
        super().load_state_dict(state_dict)
        for group in self.param_groups:  # as torch's does, whatever class has saved it
            group["decoupled_weight_decay"] = True


class FusedAdam(FusedOptimizer):
    """Adam with the signature and the defaults of Transformer Engine's FusedAdam, and of apex's.

    adam_w_mode   True: weight decay as in AdamW. False: an L2 term in the gradient. A group has it
                  as torch's, decoupled_weight_decay
    bias_correction
                  False: moments are taken as they are, though they begin at 0
    amsgrad, set_grad_none
                  True and False are a NotImplementedError
    capturable, state_dtype, rounding, seed, residual_bits
                  narrowcast.optimizer.FusedOptimizer's, where all else is told. Masters are always
                  kept, and are float32
    """

    rule, numbers = Adam.rule, staticmethod(Adam.numbers)

    def __init__(
        self,
        params,
        lr: float | torch.Tensor = 1e-3,
        bias_correction: bool = True,
        betas: tuple[float | torch.Tensor, float | torch.Tensor] = (0.9, 0.999),
        eps: float = 1e-8,
        adam_w_mode: bool = True,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        set_grad_none: bool | None = None,
        capturable: bool = False,
        state_dtype: torch.dtype | str = torch.float32,
        rounding: str = "nearest",
        seed: int = 0,
        residual_bits: int = 8,
    ):
        if set_grad_none is not None and not set_grad_none:
            raise NotImplementedError("set_grad_none=False: call zero_grad(set_to_none=False)")
        defaults = {
            "lr": lr,
            "bias_correction": bias_correction,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": adam_w_mode,
            "amsgrad": amsgrad,
            "capturable": capturable,
        }
        super().__init__(params, defaults, state_dtype, rounding, seed, residual_bits)
