"""The example's training of a GPT by Megatron-Core: masters are those of one process that takes the
same gradients, bytes on each rank a cast of them, and losses those of bf16.
"""

import argparse
import contextlib

import pytest
import torch
import torch.distributed as dist

import narrowcast as nc
import ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core import parallel_state

import megatron_models as mm
import megatron_training as mt
from megatron_on_cpu import on_cpu
from megatron_run import Training
from text import read

STEPS = {"cuda": 100, "cpu": 8}
# Bits per byte from bfloat16's, and the share of its bytes that are gathered: embeddings are plain.
BOUNDS = {"mxfp8_e4m3": (0.05, 1.05), "nvfp4": (0.15, 0.45), "fp8_block128": (0.05, 0.6)}


def arguments(tensor, **changes):
    options = {"tp": tensor, "matmul": "dequantized", "batch": 8, "time": 64}
    options |= {"width": 128, "layers": 2, "lr": 1e-3, "seed": 0, "overlap": True}
    return argparse.Namespace(**{**options, **changes})


@contextlib.contextmanager
def parallel(mesh, tensor):
    device = mesh.device_type
    args = arguments(tensor, device=device, steps=STEPS[device])
    parallel_state.initialize_model_parallel(tensor)
    try:
        with on_cpu() if device == "cpu" else contextlib.nullcontext():
            yield args
    finally:
        parallel_state.destroy_model_parallel()


class Shadow:
    """One process's nc.FusedAdam over the whole masters of this tensor-parallel rank, on the CPU.
    Before each step of the run it takes the gradients and options that the ranks' shards have.
    """

    def __init__(self, training):
        self.names = {value: name for name, value in training.gpt.named_parameters()}
        self.shapes = {name: value.shape for value, name in self.names.items()}
        self.part = getattr(training.optimizer, "chained_optimizers", [training.optimizer])[0]
        values = self.gathered(lambda main, group: main)
        self.values = {name: torch.nn.Parameter(value) for name, value in values.items()}
        self.adam = nc.FusedAdam([{"params": [value]} for value in self.values.values()])
        self.part.optimizer.register_step_pre_hook(lambda *_: self.step())

    def gathered(self, of):
        """Collective: name -> the whole of what each shard's owner has, on the CPU."""
        owned = {}
        for parameter, (group, place) in self.part.model_param_group_index_map.items():
            options = self.part.optimizer.param_groups[group]
            begin = self.part._get_model_param_range_map(parameter)["param"].start
            value = of(options["params"][place], options)
            value = value.detach().cpu() if isinstance(value, torch.Tensor) else value
            owned[self.names[parameter]] = begin, value
        group = parallel_state.get_data_parallel_group()
        every = [None] * group.size()
        dist.all_gather_object(every, owned, group=group)
        wholes = {}
        for name, (begin, value) in (pair for one in every for pair in one.items()):
            if isinstance(value, torch.Tensor):
                whole = wholes.setdefault(name, torch.full(self.shapes[name], torch.nan))
                whole.view(-1)[begin : begin + len(value)] = value
            else:
                wholes[name] = value
        return wholes

    def step(self):
        keys = ("lr", "weight_decay", "betas", "eps")
        options = self.gathered(lambda main, group: {key: group[key] for key in keys})
        gradients = self.gathered(lambda main, group: main.grad)
        for group, (name, value) in zip(self.adam.param_groups, self.values.items(), strict=True):
            group.update(options[name])
            value.grad = gradients[name]
        self.adam.step()

    def check(self):
        """Masters to the bit, and this rank's bytes."""
        for name, master in self.gathered(lambda main, group: main).items():
            assert torch.equal(master, self.values[name].detach()), name
        for name, weight in mm.quantized(self.part.model_chunks[0].module.module).items():
            expected = nc.quantize(self.values[name].detach().to(weight.device), weight.format.name)
            assert mt.same_bytes(mt.bytes_of(weight), mt.bytes_of(expected)), name


def trained(mesh, format, tensor):
    """The last bits per byte, in the format and in bfloat16, and the bytes gathered."""
    with parallel(mesh, tensor) as args:
        text, held_out = read(None)
        results = []
        for kind in (format, None):
            one = Training(args, kind)
            shadow = Shadow(one) if kind else None
            one.run(text)
            if shadow:
                shadow.check()
            bits = one.forward(held_out, 0, 16, forward_only=True)
            results.append((bits, one.bytes_gathered()))
        return results


def check_run(results, format):
    (bits, gathered), (plain_bits, plain_gathered) = results[0]
    difference, share = BOUNDS[format]
    assert abs(bits - plain_bits) <= difference, (bits, plain_bits)
    assert gathered <= share * plain_gathered


# Each run takes its time on the CPU, so there each has a format of its own.


@pytest.mark.parametrize("name", BOUNDS)
def test_data_parallel(name, device):
    if device == "cpu" and name != "fp8_block128":
        pytest.skip("on GPUs")
    check_run(ranks.run(2, device, trained, name, 1), name)


@pytest.mark.parametrize("name", BOUNDS)
def test_tensor_and_data_parallel(name, device):
    if device == "cpu" and name != "nvfp4":
        pytest.skip("on GPUs")
    check_run(ranks.run(4, device, trained, name, 2), name)
