"""Trains a small Llama with transformers' Trainer, under accelerate's FSDP2.

    torchrun --nproc-per-node 2 examples/transformers_trainer.py --format nvfp4

What narrowcast adds are two lines, which are marked. Run again, it goes on from the last
checkpoint.
"""

import argparse

import torch
import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import DistributedType
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import narrowcast as nc
from launch import end_ranks

MODEL = LlamaConfig(
    vocab_size=256,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    tie_word_embeddings=False,
)
FSDP = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}


class Counting(torch.utils.data.Dataset):
    """Sequences that count, each from a start and in a stride of its own."""

    def __len__(self):
        return 256

    def __getitem__(self, index):
        tokens = (index * 7 + torch.arange(16) * (index % 5 + 1)) % MODEL.vocab_size
        return {"input_ids": tokens, "labels": tokens}


def build(format, dtype=torch.float32):
    torch.manual_seed(0)
    model = LlamaForCausalLM(MODEL).to(dtype)  # or from_pretrained
    return nc.convert(model, format)  # line 1


def trainer_of(model, folder, fsdp=FSDP, **options):
    arguments = TrainingArguments(
        output_dir=folder,
        fsdp=True,
        fsdp_config=fsdp,
        use_cpu=not torch.cuda.is_available(),
        per_device_train_batch_size=2,
        report_to=[],
        **options,
    )
    if arguments.use_cpu:  # where accelerate would not shard
        PartialState().distributed_type = DistributedType.MULTI_GPU
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=Counting(),
        optimizer_cls_and_kwargs=(nc.optim.AdamW, {"lr": arguments.learning_rate}),  # line 2
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--format", default="mxfp8_e4m3", choices=nc.formats())
    parser.add_argument("--folder", default="trained")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    options = {"max_steps": args.steps, "save_steps": 20, "logging_steps": 10}
    trainer = trainer_of(build(args.format), args.folder, learning_rate=3e-3, **options)
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.folder))
    trainer.save_model(f"{args.folder}/final")  # plain float32 weights: from_pretrained reads them
    if dist.get_rank() == 0:
        print(nc.summary(trainer.model))
    end_ranks()


if __name__ == "__main__":
    main()
