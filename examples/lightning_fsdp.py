"""Trains a small model with Lightning, under FSDP2.

    python examples/lightning_fsdp.py --format nvfp4

What narrowcast adds are two lines, which are marked.
"""

import argparse

import lightning
import torch
import torch.nn.functional as F
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc


class Model(lightning.LightningModule):
    """An autoencoder. Lightning calls configure_model() to have it sharded."""

    def __init__(self, format):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 128))
        nc.convert(self.layers, format)  # line 1
        self.losses = []

    def configure_model(self):
        if isinstance(self.trainer.strategy, ModelParallelStrategy):
            fully_shard(self.layers, mesh=self.device_mesh["data_parallel"])

    def configure_optimizers(self):
        return nc.optim.AdamW(self.parameters(), lr=1e-3)  # line 2

    def training_step(self, batch, index):
        loss = F.mse_loss(self.layers(batch), batch)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch, index):
        self.log("validation", F.mse_loss(self.layers(batch), batch), sync_dist=True)


def batches():
    """The same for all."""
    data = torch.randn(64, 128, generator=torch.Generator().manual_seed(1))
    return torch.utils.data.DataLoader(data, batch_size=8)


def trainer_of(strategy, accelerator=None, **options):
    return lightning.Trainer(
        accelerator=accelerator or ("gpu" if torch.cuda.is_available() else "cpu"),
        strategy=strategy,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--format", default="mxfp8_e4m3", choices=nc.formats())
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()
    strategy = ModelParallelStrategy(data_parallel_size=args.ranks, tensor_parallel_size=1)
    model = Model(args.format)
    options = {"devices": args.ranks, "max_epochs": args.epochs, "enable_checkpointing": False}
    trainer_of(strategy, **options).fit(model, batches(), batches())
    if model.global_rank == 0:
        print(nc.summary(model.layers))
        print(f"loss: {model.losses[0]:.3f}, then {model.losses[-1]:.3f}")


if __name__ == "__main__":
    main()
