"""transformers' Trainer, the real one, over accelerate's FSDP2: the same training, to the bit, as a
loop over fully_shard; and its checkpoints. The script is examples/transformers_trainer.py.
"""

import os
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import narrowcast as nc
import ranks
from models import GATHERS, same

for package in ("transformers", "accelerate"):
    pytest.importorskip(package, reason=f"{package} is not installed")
sys.path.append(str(Path(__file__).parents[3] / "examples"))

STEPS, LEARNING_RATE = 4, 1e-2
OPTIONS = {
    "max_steps": STEPS,
    "save_steps": 2,
    "learning_rate": LEARNING_RATE,
    "lr_scheduler_type": "constant",
    "logging_steps": 1,
    "disable_tqdm": True,
    "train_sampling_strategy": "sequential",
}


def run(mesh, model, folder, options, resume=False):
    """The losses that the Trainer logs, and the trained model."""
    from accelerate.state import AcceleratorState

    import transformers_trainer as example

    with mock.patch.dict(os.environ, MASTER_ADDR="localhost", MASTER_PORT="0"):  # not used
        try:
            trainer = example.trainer_of(model, folder, **{**OPTIONS, **options})
            assert trainer.is_fsdp_enabled
            assert trainer.args.device.type == mesh.device_type
            trainer.train(resume_from_checkpoint=f"{folder}/checkpoint-2" if resume else None)
            trainer.save_model(f"{folder}/final")
        finally:
            AcceleratorState._reset_state(True)
    dist.barrier()
    return [one["loss"] for one in trainer.state.log_history if "loss" in one], trainer.model


def looped(mesh, model):
    """The same in a loop of one's own."""
    import transformers_trainer as example

    model.to(mesh.device_type)
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = nc.FusedAdam(model.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
    data, losses = example.Counting(), []
    for step in range(STEPS):
        first = 2 * (step * mesh.size() + mesh.get_local_rank())
        tokens = torch.stack([data[i]["input_ids"] for i in (first, first + 1)])
        tokens = tokens.to(mesh.device_type)
        count = torch.tensor(tokens[:, 1:].numel() * mesh.size())
        loss = model(tokens, labels=tokens, num_items_in_batch=count).loss * mesh.size()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        total = loss.detach().clone()
        dist.all_reduce(total)
        losses.append((total / mesh.size()).item())
    return losses, model


def values(model):
    """What a state dict holds, whole."""
    names = model.state_dict().items()
    return {name: one.full_tensor() if hasattr(one, "full_tensor") else one for name, one in names}


@pytest.mark.parametrize(
    ("weights", "kind", "dtype", "ram_efficient"),
    [
        (GATHERS[0], "FULL_STATE_DICT", torch.float32, False),
        (GATHERS[-1], "FULL_STATE_DICT", torch.float32, True),
        (GATHERS[-1], "SHARDED_STATE_DICT", torch.bfloat16, False),
    ],
)
@ranks.on(2)
def test_the_same_as_a_loop(mesh, weights, tmp_path, kind, dtype, ram_efficient):
    import transformers_trainer as example

    def plain_built():
        model = example.build(weights, dtype)
        if mesh.device_type == "cuda":  # whose fused kernels may add gradients in any order
            model.set_attn_implementation("eager")
        return model

    def build():
        model = plain_built()
        if ram_efficient and mesh.get_local_rank():  # accelerate takes rank 0's
            model.apply(model._init_weights)
        return model

    options = {"bf16": dtype == torch.bfloat16}
    options["fsdp"] = {
        **example.FSDP,
        "state_dict_type": kind,
        "cpu_ram_efficient_loading": ram_efficient,
    }
    losses, model = run(mesh, build(), str(tmp_path), options)
    found = {name: one.clone() for name, one in values(model).items()}
    again, resumed = run(mesh, build(), str(tmp_path), options, resume=True)
    assert again == losses
    assert all(same(found[name], one) for name, one in values(resumed).items())
    assert {one.dtype for one in found.values()} == {torch.float32}
    if options["bf16"]:  # accelerate makes bfloat16 parameters float32 ones, by assigning to .data
        expected = run(mesh, build().to(torch.float32), f"{tmp_path}/float32", options)
    else:
        expected = looped(mesh, plain_built())
    expected_losses, expected = expected
    assert losses == expected_losses
    assert all(same(found[name], one) for name, one in values(expected).items())
    if kind == "FULL_STATE_DICT":
        from transformers import LlamaForCausalLM

        saved = LlamaForCausalLM.from_pretrained(f"{tmp_path}/final", dtype=torch.float32)
        assert all(same(found[name], one) for name, one in saved.state_dict().items())
