"""Models of experts: parameters of three dimensions, multiplied in every way."""

import torch
import torch.nn.functional as F
from torch import nn

COUNT, WIDTH, HIDDEN, TOKENS = 4, 128, 64, 12
HOW = ["selected", "batched", "grouped"]


class Experts(nn.Module):
    """As transformers and torchtitan have them, [out, in] and [in, out]; `how`: by which
    operations.
    """

    def __init__(self, how):
        super().__init__()
        self.how = how
        self.up = nn.Parameter(torch.randn(COUNT, HIDDEN, WIDTH) / WIDTH**0.5)
        self.down = nn.Parameter(torch.randn(COUNT, HIDDEN, WIDTH) / HIDDEN**0.5)

    def forward(self, x):
        if self.how == "grouped":
            ends = torch.tensor([3, 3, 7, TOKENS], dtype=torch.int32)
            hidden = F.silu(F.grouped_mm(x, self.up.transpose(-2, -1), offs=ends))
            return x + F.grouped_mm(hidden, self.down, offs=ends)
        if self.how == "batched":
            hidden = F.silu(torch.bmm(x.view(COUNT, -1, WIDTH), self.up.mT))
            return x + (hidden @ self.down).flatten(0, 1)
        hidden = [F.silu(F.linear(one, w)) for one, w in zip(x.chunk(COUNT), self.up, strict=True)]
        return x + torch.cat([one @ self.down[expert] for expert, one in enumerate(hidden)])


def build(*how):
    torch.manual_seed(0)
    return nn.Sequential(*map(Experts, how), nn.Linear(WIDTH, WIDTH))


def loss_of(model, step):
    x = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(step))
    x = x.to(next(model.parameters()).dtype)
    return F.mse_loss(model(x).float(), x.roll(1).float())
