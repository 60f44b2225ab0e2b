"""A small GPT over bytes, in plain PyTorch: nothing in it knows of narrowcast."""

import torch
import torch.nn.functional as F
from torch import nn

VOCABULARY = 256  # a byte is a token


def rotate(x):
    """Rotary position encoding of queries or keys, [batch, heads, time, width of a head]."""
    time, half = x.shape[-2], x.shape[-1] // 2
    speeds = 1000.0 ** -(torch.arange(half, device=x.device) / half)
    angles = torch.arange(time, device=x.device)[:, None] * speeds
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x.chunk(2, dim=-1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=-1)


class Block(nn.Module):
    """Attention, then a perceptron, each added to its input, which is [batch, time, width]."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x):
        batch, time, width = x.shape
        split = self.qkv(self.attention_norm(x)).view(batch, time, 3, self.heads, -1)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    """Bytes [batch, time] to logits [batch, time, 256]."""

    def __init__(self, width: int = 128, layers: int = 3, heads: int = 4):
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                narrow = name.endswith(("out.weight", "down.weight"))  # they add to the stream
                std = parameter.shape[1] ** -0.5 / (2 * layers if narrow else 1) ** 0.5
                nn.init.normal_(parameter, std=0.5 * std)

    def forward(self, tokens):
        x = self.byte(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
