"""Lightning, the real one: its training equals a loop's, its checkpoints go on, and its weight
averaging averages masters. The script is examples/lightning_fsdp.py.
"""

import os
import sys
import warnings
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, assert_quantized, same
from weights import value_of

pytest.importorskip("lightning", reason="lightning is not installed")
sys.path.append(str(Path(__file__).parents[3] / "examples"))
TESTED_FORMATS = [GATHERS[0], GATHERS[-1]]


def values(model):
    """Copies on the CPU: to it Lightning may have taken the model back."""
    return [value_of(p).to("cpu", copy=True) for p in model.layers.parameters()]


def fit(device, strategy, format, epochs, checkpoint=None, **options):
    import lightning_fsdp as example

    model = example.Model(format)
    accelerator = {"cpu": "cpu", "cuda": "gpu"}[device]
    trainer = example.trainer_of(strategy, accelerator, max_epochs=epochs, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of few workers and the like
        trainer.fit(model, example.batches(), example.batches(), ckpt_path=checkpoint)
    return model


ELASTIC = {"LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "0"}
ADDRESS = {"MASTER_ADDR": "localhost", "MASTER_PORT": "0"}  # asked for, and not used


def looped(mesh, format, loader):
    import lightning_fsdp as example

    model = example.Model(format).to(mesh.device_type)
    fully_shard(model.layers, mesh=mesh)
    optimizer = nc.optim.AdamW(model.parameters(), lr=1e-3)
    batches = []
    for epoch in range(2):
        loader.sampler.set_epoch(epoch)
        batches += loader
    for batch in batches:
        batch = batch.to(mesh.device_type)
        loss = F.mse_loss(model.layers(batch), batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
        optimizer.zero_grad()
        model.losses.append(loss.item())
    return model


@ranks.on(2)
def test_the_same_as_a_loop(mesh, format, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.strategies import ModelParallelStrategy

    def fitted(epochs, checkpoint=None):
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        callback = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        with mock.patch.dict(os.environ, ELASTIC | ADDRESS):
            options = {"devices": 2, "callbacks": [callback], "gradient_clip_val": 0.1}
            return fit(mesh.device_type, strategy, format, epochs, checkpoint, **options)

    whole = fitted(2)
    model = looped(mesh, format, whole.trainer.train_dataloader)
    assert whole.losses == model.losses
    assert all(map(same, values(whole), values(model)))
    resumed = fitted(2, f"{tmp_path}/epoch=0.ckpt")
    assert resumed.losses == whole.losses[len(whole.losses) // 2 :]
    assert all(map(same, values(resumed), values(whole)))


def test_averages(format, device, tmp_path):
    """Those of values; they are validated, saved, gone on with, and taken in the end."""
    from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

    def fitted(epochs, checkpoint=None):
        saving = ModelCheckpoint(tmp_path, filename="{epoch}", save_top_k=-1)
        callbacks = [EMAWeightAveraging(decay=0.9), saving]
        options = {"devices": 1, "callbacks": callbacks, "gradient_clip_val": 1.0}
        return fit(device, "auto", format, epochs, checkpoint, **options)

    whole = fitted(2)
    resumed = fitted(2, tmp_path / "epoch=0.ckpt")
    assert resumed.losses == whole.losses[len(whole.losses) // 2 :]
    assert all(map(same, values(resumed), values(whole)))
    model, average = averaged(format, device)
    assert whole.losses == model.losses
    for mine, theirs in zip(values(whole), average, strict=True):
        torch.testing.assert_close(mine, theirs)
    for one in whole.layers.parameters():
        if isinstance(one, nc.MasterWeight):
            assert_quantized(one.detach(), one.value)


def averaged(format, device):
    import lightning_fsdp as example

    model = example.Model(format).to(device)
    optimizer = nc.optim.AdamW(model.parameters(), lr=1e-3)
    average = None
    for batch in [*example.batches()] * 2:
        batch = batch.to(device)
        loss = F.mse_loss(model.layers(batch), batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        model.losses.append(loss.item())
        now = values(model)
        average = (
            now if average is None else [a.lerp(b, 0.1) for a, b in zip(average, now, strict=True)]
        )
    return model, average
