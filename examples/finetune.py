"""Fine-tunes a causal model of Hugging Face, its weights kept and gathered in a narrow format.

    python examples/finetune.py                            # a tiny model, on one GPU or the CPU
    python examples/finetune.py --model Qwen/Qwen3-0.6B --data notes.txt
    torchrun --nproc-per-node 8 examples/finetune.py --model Qwen/Qwen3-4B --data notes.txt

The folder of --out gets checkpoints, a plot of the loss, and the model for inference engines.
docs/finetuning.md walks through this file.
"""

import argparse
import math
import os
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import narrowcast as nc
from launch import end_ranks, join_ranks
from measure import mean_over_ranks, peak_memory
from saving import Checkpoints
from text import read, windows

try:
    import transformers
    from matplotlib.figure import Figure
    from tqdm import tqdm
except ImportError as error:
    sys.exit(f"{error.name} is missing: pip install transformers matplotlib tqdm")

# Without --model: the tokens are bytes, and the weights random.
TINY = transformers.LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=384,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=False,
)
# The layout in which transformers reads a format. The second needs a package of that name.
LAYOUTS = {
    **dict.fromkeys(["fp8_block128", "fp8_block128_f32"], "deepseek"),
    **dict.fromkeys(["fp8_e4m3", "mxfp8_e4m3"], "compressed-tensors"),
    **dict.fromkeys(["mxfp6_e2m3", "mxfp4", "nvfp4"], "compressed-tensors"),
}
READERS = {
    "deepseek": lambda: transformers.FineGrainedFP8Config(dequantize=True),
    "compressed-tensors": lambda: transformers.CompressedTensorsConfig(run_compressed=False),
}
SHOWN_EVERY = 10  # steps: reading a loss waits for the GPU


def options():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", help="a name at huggingface.co or a folder; default: a tiny one")
    parser.add_argument("--tokenizer", help="of that kind, too; default: the model's")
    parser.add_argument("--data", help="a text, or a folder; default: Python's standard library")
    parser.add_argument("--out", type=Path, default=Path("finetuned"), help="a new folder")
    parser.add_argument("--resume", action="store_true", help="go on in that folder")
    parser.add_argument("--format", default="fp8_block128", choices=list(LAYOUTS))
    parser.add_argument("--matmul", default="dequantized", choices=["dequantized", "scaled"])
    parser.add_argument("--optimizer", default="FusedAdam", choices=["FusedAdam", "AdamW"])
    parser.add_argument("--lr", type=float, help="default: 2e-5, or 3e-3 for the tiny one")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=8, help="windows a step, over all ranks")
    parser.add_argument("--length", type=int, help="tokens in a window; default: 1024, or 64")
    parser.add_argument("--save-every", type=int, default=50, help="steps")
    parser.add_argument("--device", choices=["cpu", "cuda"], help="default: cuda if it can be")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="the blocks; default: on a GPU"
    )
    args = parser.parse_args()
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    if args.batch % ranks:
        parser.error(f"--batch {args.batch} is no multiple of {ranks} ranks")
    if args.matmul == "scaled" and not nc.format(args.format).matmul:
        parser.error(f"--matmul scaled: {args.format} has no scaled products, so leave it out")
    layout = LAYOUTS[args.format]
    if layout == "compressed-tensors" and find_spec("compressed_tensors") is None:
        parser.error(f"--format {args.format}: to read it back, pip install {layout}")
    if args.out.exists() and not args.resume:
        parser.error(f"--out {args.out} is there: name another folder, or go on with --resume")
    can_use_gpu = torch.cuda.is_available() and nc.format(args.format).cuda
    args.device = args.device or ("cuda" if can_use_gpu else "cpu")
    args.compile = args.device == "cuda" if args.compile is None else args.compile
    args.lr = args.lr or (2e-5 if args.model else 3e-3)
    args.length = args.length or (1024 if args.model else 64)
    return args


def load(args):
    """The model, in float32, and its tokenizer, or None where tokens are bytes."""
    if args.model is None:
        torch.manual_seed(0)  # on every rank: one initialization
        return transformers.LlamaForCausalLM(TINY), None
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    except (OSError, ValueError) as error:
        sys.exit(f"--model {args.model} cannot be loaded: {str(error).splitlines()[0]}")
    source = args.tokenizer or args.model
    try:
        return model, transformers.AutoTokenizer.from_pretrained(source)
    except (OSError, ValueError):
        sys.exit(f"{source} has no tokenizer: name a model that has one with --tokenizer")


def encode(text, tokenizer):
    """The tokens of a text, which is a tensor of bytes."""
    if tokenizer is None:
        return text
    text = bytes(text.numpy()).decode(errors="replace")
    parts = [text[i : i + 50_000] for i in range(0, len(text), 50_000)]  # encoded in parallel
    encoded = tokenizer(parts, add_special_tokens=False, verbose=False)["input_ids"]
    return torch.tensor([token for part in encoded for token in part])


def convert_and_shard(model, args, mesh):
    """The linear layers of its blocks get the format; embedding, norms and head stay plain."""
    blocks = {
        name: module
        for name, module in model.named_modules()
        if type(module).__name__ in (model._no_split_modules or ())
    }
    model.to(args.device)
    inside = [f"{name}.*" for name in blocks]
    nc.convert(model, args.format, matmul=args.matmul, filter=inside)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)  # values and moments stay float32
    for block in blocks.values():
        if args.compile:
            block.compile()
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)


def optimizer_of(model, args):
    constants = {"lr": args.lr, "betas": (0.9, 0.95), "weight_decay": 0.1}
    if args.optimizer == "AdamW":  # foreach=True, or torch updates one weight after the other
        return torch.optim.AdamW(model.parameters(), foreach=True, **constants)
    return nc.FusedAdam(model.parameters(), **constants)


def loss_of(model, tokens):
    return model(tokens, labels=tokens, use_cache=False).loss


def train(model, tokens, args, mesh):
    """Runs all steps, from the last checkpoint on; returns the loss of each."""
    optimizer, losses = optimizer_of(model, args), []
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, 1 - 0.9 * step / args.steps)
    )
    random = torch.Generator().manual_seed(1)  # of the windows, on every rank alike
    folder = args.out / "checkpoints"
    checkpoints = Checkpoints(folder, model, optimizer, scheduler, random, losses)
    first, rank = checkpoints.load(), mesh.get_rank()
    bar = tqdm(range(first, args.steps), args.format, args.steps, initial=first, disable=rank != 0)
    start = time.perf_counter()
    for step in bar:
        batch, _ = windows(tokens, args.batch, args.length, random)
        loss = loss_of(model, batch[rank :: mesh.size()].to(args.device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        losses.append(mean_over_ranks(loss))
        if (step + 1) % SHOWN_EVERY == 0:
            shown = losses[-1].item()
            pace = SHOWN_EVERY * batch.numel() / (time.perf_counter() - start)
            start = time.perf_counter()
            memory = peak_memory(args.device)
            bar.set_postfix_str(f"loss {shown:.3f}, {pace:,.0f} tokens/s, {memory:.2f} GB")
        if (step + 1) % args.save_every == 0 or step + 1 == args.steps:
            checkpoints.save(step + 1)
    return [float(loss) for loss in losses]


def plot(losses, path):
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(losses) + 1), losses)
    axes.set(title="Training loss", xlabel="step", ylabel="nats a token")
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def evaluate(model, batch, args):
    """The loss of the same windows on every rank."""
    model.eval()
    with torch.no_grad():
        return loss_of(model, batch.to(args.device)).item()


def read_back(folder, args):
    """The exported model, as transformers reads and decodes it."""
    config = READERS[LAYOUTS[args.format]]()
    load = transformers.AutoModelForCausalLM.from_pretrained
    return load(folder, quantization_config=config, dtype=torch.bfloat16).to(args.device)


def main():
    args = options()
    mesh = join_ranks(args.device)
    model, tokenizer = load(args)
    training, held_out = (encode(text, tokenizer) for text in read(args.data))
    held_out, _ = windows(held_out, 8, args.length, torch.Generator().manual_seed(0))
    model = convert_and_shard(model, args, mesh)
    losses = train(model, training, args, mesh)
    trained = evaluate(model, held_out, args)
    exported = args.out / "exported"
    nc.export(model, exported, LAYOUTS[args.format], overwrite=args.resume)
    if mesh.get_rank() == 0:
        if tokenizer is not None:
            tokenizer.save_pretrained(exported)
        plot(losses, args.out / "loss.png")
        as_read = evaluate(read_back(exported, args), held_out, args)
        print(f"{args.out / 'loss.png'}: the loss of each step, at last {losses[-1]:.3f}")
        print(f"{exported}: the model in {args.format}, for transformers and inference engines")
        print(f"held-out loss: {trained:.4f} in training, {as_read:.4f} as transformers reads it")
        if not math.isclose(trained, as_read, rel_tol=0.01):
            sys.exit("the exported model differs from the trained one")
    end_ranks()
    return 0


if __name__ == "__main__":
    sys.exit(main())
