"""The model in one process: losses and gradients from the decoded values of the oracle's bytes."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from net import build, groups, loss_of
from oracle import Oracle


class _Decoded(torch.autograd.Function):
    """A product with the value of one usage, and its gradient with that of the other."""

    @staticmethod
    def forward(ctx, x, weight, rowwise, columnwise, bias):
        ctx.save_for_backward(x, columnwise)
        ctx.has_bias = bias is not None
        return F.linear(x, rowwise, bias)

    @staticmethod
    def backward(ctx, gradient):
        x, columnwise = ctx.saved_tensors
        bias = gradient.sum(0) if ctx.has_bias else None
        return gradient @ columnwise, gradient.t() @ x, None, None, bias


class DecodedLinear(nn.Module):
    """In the place of a linear layer whose weight is quantized; somebody sets its values."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.rowwise = self.columnwise = None

    def forward(self, x):
        return _Decoded.apply(x, self.weight, self.rowwise, self.columnwise, self.bias)


class Twin:
    def __init__(self, setup):
        self._setup = setup
        self._model = model = build(setup, 0)
        model.block.up, model.block.down = map(DecodedLinear, (model.block.up, model.block.down))
        model.head = DecodedLinear(model.head)
        model.to(setup.device)

    def loss(self, oracle: Oracle, seed: int) -> torch.Tensor:
        """Of a batch; all bytes of the oracle are settled."""
        self._set(oracle)
        return loss_of(self._model, self._setup, seed)

    def gradients(self, loss: torch.Tensor) -> list[np.ndarray | None]:
        """Of each parameter, as float32."""
        loss.backward()
        given = [p.grad for p in self._parameters()]
        self._model.zero_grad()
        return [None if one is None else one.float().cpu().numpy() for one in given]

    def _parameters(self) -> list[torch.Tensor]:
        return [p for group in groups(self._model) for _, p in group["params"]]

    def _set(self, oracle: Oracle) -> None:
        for parameter, p in zip(oracle.parameters, self._parameters(), strict=True):
            if parameter.format is None:
                with torch.no_grad():
                    p.copy_(torch.from_numpy(parameter.value))
                continue
            layer = self._model.get_submodule(parameter.name.removesuffix(".weight"))
            for usage in ("rowwise", "columnwise"):
                value = torch.from_numpy(parameter.decoded(usage)).to(p.device, p.dtype)
                setattr(layer, usage, value)
