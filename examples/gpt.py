"""A small GPT over bytes, in plain PyTorch: nothing in it knows of narrowcast."""

import torch.nn.functional as F
from torch import nn

VOCABULARY = 256  # a byte is a token


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
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, time, width))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x))))


class GPT(nn.Module):
    """Bytes [batch, time] to logits [batch, time, 256]."""

    def __init__(self, width: int = 192, layers: int = 4, heads: int = 6, time: int = 256):
        super().__init__()
        self.byte = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(time, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.ndim == 2:
                narrow = name.endswith(("out.weight", "down.weight"))  # they add to the stream
                std = 0.02 / (2 * layers) ** 0.5 if narrow else 0.02
                nn.init.normal_(parameter, std=std)

    def forward(self, tokens):
        x = self.byte(tokens) + self.position.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))
