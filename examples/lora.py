"""Trains peft's LoRA adapters beside frozen weights in a narrow format, and merges them.

python examples/lora.py --format nvfp4
"""

import argparse

import torch
from peft import LoraConfig, get_peft_model

import narrowcast as nc
from transformers_trainer import MODEL, Counting, LlamaForCausalLM


def build(format):
    torch.manual_seed(0)
    model = LlamaForCausalLM(MODEL)  # or from_pretrained
    nc.convert(model, format, trainable=False)  # before peft adds layers of its own
    return get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj", "up_proj"]))


def train(model, steps):
    adapters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = nc.optim.AdamW(adapters, lr=1e-2)  # they are plain: torch's AdamW does as well
    losses = []
    for step in range(steps):
        tokens = torch.stack([Counting()[8 * step + i]["input_ids"] for i in range(8)])
        tokens = tokens.to(model.device)
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--format", default="mxfp8_e4m3", choices=nc.formats())
    parser.add_argument("--steps", type=int, default=30)
    args = parser.parse_args()
    model = build(args.format).to("cuda" if torch.cuda.is_available() else "cpu")
    losses = train(model, args.steps)
    print(f"loss: {losses[0]:.3f}, then {losses[-1]:.3f}")
    merged = model.merge_and_unload()
    print(nc.summary(merged))  # what was merged keeps its sum in float32 now
    nc.to_plain(merged)  # the exact sums; save_pretrained takes them


if __name__ == "__main__":
    main()
