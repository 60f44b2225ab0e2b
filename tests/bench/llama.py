"""A language model in the proportions of Llama-3-8B, of any width."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    """Grouped-query attention without positions, which cost the same in every mode."""

    def __init__(self, width):
        super().__init__()
        self.head = min(128, width // 4)
        shared = max(width // 4, self.head)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, shared, bias=False)
        self.value = nn.Linear(width, shared, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        hidden = width * 7 // 2
        self.attention_norm, self.norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.attention = Attention(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        h = self.norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):
    """At a width of 4096 the blocks are those of Llama-3-8B. Returns the loss."""

    def __init__(self, layers, width, vocabulary):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())


def initialize(model):
    """Fills a model that was made on the meta device: norms with ones, the rest at random."""
    for parameter in model.parameters():
        if parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.02)
        else:
            nn.init.ones_(parameter)


def batch(size, time, vocabulary, device, rank):
    """The tokens and targets of a rank, the same in every run."""
    generator = torch.Generator().manual_seed(rank)
    tokens = torch.randint(vocabulary, (size, time), generator=generator).to(device)
    return tokens, tokens.roll(-1, 1)
