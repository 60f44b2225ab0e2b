"""The kinds of weights that train_step.py compares, and how a model of each is made."""

from __future__ import annotations

import dataclasses
import importlib.util

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import llama
import narrowcast as nc

PLAIN, TORCHAO = "bf16", "tensorwise"
EAGER, NARROW, BF16_GRADIENTS = "+e", "+r", "+b"
STATE, MUON, TORCH = OPTIMIZERS = "+s", "+m", "+t"
VALUES, WHOLE = "+v", "+h"
SUFFIXES = EAGER, NARROW, BF16_GRADIENTS, VALUES, WHOLE, *OPTIMIZERS
PRODUCTS = {"nc": "dequantized", "scaled": "scaled"}  # by how a mode begins
ADAM = {"lr": 1e-4, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}


@dataclasses.dataclass(frozen=True)
class Mode:
    """`weights`: bf16, tensorwise (torchao's float8), nc:FORMAT, or scaled:FORMAT with scaled
    products. Written with +e if eager; else each block is compiled. `gradients`: in what ranks send
    them to each other: in float32, with +b in bfloat16, with +r in a format. `optimizer`: with +s
    AdamW's moments are in a state format, with +m hidden matrices are Muon's, with +t it is torch's
    fused AdamW; else AdamW with moments in float32. `narrow_values`, with +v: a quantized weight's
    value is bfloat16, and AdamW keeps 8 bits more of it; else float32. `is_whole`, with +h:
    embedding and head are in the format, too, and their products are of the decoded weight.
    """

    weights: str
    eager: bool = False
    gradients: str = ""
    optimizer: str = ""
    narrow_values: bool = False
    is_whole: bool = False

    def __str__(self):
        flags = VALUES * self.narrow_values + WHOLE * self.is_whole + EAGER * self.eager
        return self.weights + self.gradients + self.optimizer + flags

    @property
    def format(self) -> str | None:
        """narrowcast's format, if that is what the weights are in."""
        kind, _, name = self.weights.partition(":")
        return name if kind in PRODUCTS else None

    @property
    def matmul(self) -> str:
        """nc.convert's option."""
        return PRODUCTS[self.weights.partition(":")[0]]

    def convert(self, model: nn.Module):
        """The linear layers of its blocks, if the format is narrowcast's; with +h embedding and
        head too. With +v all of it becomes bfloat16, because FSDP2 wants one dtype in a group.
        """
        if self.format is None:
            return
        options = {}
        if self.narrow_values:
            model.to(torch.bfloat16)
            options["value_dtype"] = torch.bfloat16
        nc.convert(model, self.format, filter=is_converted, matmul=self.matmul, **options)
        if self.is_whole:
            nc.convert(model, self.format, filter=is_outside, matmul="dequantized", **options)

    @property
    def baseline(self) -> Mode:
        """What it is compared with: plain weights, as eager or as compiled as it, and gradients in
        float32.
        """
        return Mode(PLAIN, self.eager)


def parse(text: str) -> Mode:
    """ValueError, with what there is, for a mode that cannot run here."""
    weights, suffixes = text, []
    while weights.endswith(SUFFIXES):
        weights, suffixes = weights[:-2], [*suffixes, weights[-2:]]
    gradients = [one for one in suffixes if one in (NARROW, BF16_GRADIENTS)]
    optimizers = [one for one in suffixes if one in OPTIMIZERS]
    if len(set(suffixes)) < len(suffixes) or len(gradients) > 1 or len(optimizers) > 1:
        raise ValueError(
            f"{text!r}: a suffix stands once, and one alone of +b and +r, and of +s, +m and +t"
        )
    chosen = "".join(gradients), "".join(optimizers)
    mode = Mode(weights, EAGER in suffixes, *chosen, VALUES in suffixes, WHOLE in suffixes)
    if (mode.narrow_values or mode.is_whole) and mode.format is None:
        raise ValueError(f"{text}: +v and +h are for quantized weights")
    if mode.weights == TORCHAO and importlib.util.find_spec("torchao") is None:
        raise ValueError(f"{text}: torchao is not installed")
    if mode.weights not in (PLAIN, TORCHAO):
        if mode.format is None:
            raise ValueError(
                f"{text!r} is not a mode: bf16, tensorwise, nc:FORMAT, scaled:FORMAT, each with +e "
                "(eager), +b or +r (gradients sent in bfloat16, or in a format), +v (values in "
                "bfloat16), +h (embedding and head too), +s (moments in a state format), +m (Muon) "
                "or +t (torch's fused AdamW)"
            )
        if nc.format(mode.format).matmul is None and mode.matmul == "scaled":
            raise ValueError(f"{text}: {mode.format} names no formats for scaled products")
    return mode


def selection(modes: str, formats: str | None) -> list[Mode]:
    """The modes of two options, each once; those that others are compared with come first."""
    texts = [text.strip() for text in modes.split(",") if text.strip()]
    if formats:
        eager = EAGER if formats.endswith(EAGER) else ""
        names = formats.removesuffix(EAGER)
        names = nc.formats() if names == "all" else names.split(",")
        texts += [f"nc:{name}{eager}" for name in names]
    chosen = [parse(text) for text in texts]
    return [*dict.fromkeys([mode.baseline for mode in chosen] + chosen)]


def is_converted(name: str, module: nn.Module) -> bool:
    """The linear layers of the blocks."""
    return isinstance(module, nn.Linear) and name != "head"


def is_outside(name: str, module: nn.Module) -> bool:
    """Embedding and head."""
    return isinstance(module, nn.Embedding) or name == "head"


def model_on_meta(mode: Mode, options) -> nn.Module:
    """Of the mode's weights, without memory and before it is sharded."""
    torch.manual_seed(0)
    with torch.device("meta"):
        model = llama.Llama(options.layers, options.width, options.vocabulary)
    mode.convert(model)
    if mode.weights == TORCHAO:
        _convert_with_torchao(model)
    return model


def build(mode: Mode, options, mesh):
    """The sharded model and its optimizer."""
    model = model_on_meta(mode, options)
    shard(model, mesh, compiled=not mode.eager, reduce_dtype=reduce_dtype(mode))
    if mode.gradients == NARROW and mesh.size() > 1:
        nc.set_reduce_scatter_format(model, options.gradient_format)
    model.to_empty(device=mesh.device_type)
    llama.initialize(model)
    if not mode.format and not mode.optimizer:
        mode = dataclasses.replace(mode, optimizer=TORCH)
    optimizer = optimizer_of(mode, model, **ADAM)
    if mode.weights == TORCHAO:
        optimizer.register_step_post_hook(lambda *_: _precompute_scales(model))
    return model, optimizer


def reduce_dtype(mode: Mode) -> torch.dtype:
    """MixedPrecisionPolicy's."""
    return torch.bfloat16 if mode.gradients == BF16_GRADIENTS else torch.float32


def optimizer_of(mode: Mode, model: nn.Module, **adam):
    """The optimizer of a mode, with options of AdamW; narrowcast's, unless the mode says torch's.
    Muon takes its learning rate and weight decay, and adjusts them to the size of AdamW's updates.
    """
    if mode.optimizer == TORCH:
        return torch.optim.AdamW(model.parameters(), fused=True, **adam)
    if mode.optimizer != MUON:
        state = {"state_dtype": nc.state_formats()[0]} if mode.optimizer == STATE else {}
        return nc.FusedAdam(model.parameters(), **adam, **state)
    same = {key: adam[key] for key in ("lr", "weight_decay")}
    split = lambda name, _: 3 if "qkv" in name else None  # noqa: E731
    own = {"filter": is_hidden_matrix, "split": split, "adjust_lr_fn": "match_rms_adamw"}
    return nc.optim.Muon(model.named_parameters(), **same, **own, adamw=adam)


def is_hidden_matrix(name: str, parameter: torch.Tensor) -> bool:
    return parameter.dim() == 2 and name.startswith("blocks.")


def shard(model, mesh, compiled=False, reduce_dtype=torch.float32):
    """fully_shard on each block and on the whole: bf16 products."""
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce_dtype)
    for i, block in enumerate(model.blocks):
        if compiled:
            model.blocks[i] = block = torch.compile(block)
        fully_shard(block, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _convert_with_torchao(model):
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    config = Float8LinearConfig(enable_fsdp_float8_all_gather=True)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda module, name: is_converted(name, module)
    )


def _precompute_scales(model):
    from torchao.float8 import precompute_float8_dynamic_scale_for_fsdp

    precompute_float8_dynamic_scale_for_fsdp(model)
