"""Checkpoints of narrowcast.megatron's distributed optimizer: loaded with other numbers of ranks,
in other formats, into Megatron's own optimizer and from it, training goes on with equal masters.
"""

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core import dist_checkpointing, parallel_state
from megatron.core.distributed import DistributedDataParallelConfig

import megatron_models as mm
import megatron_saving as saving
import megatron_training as mt
from narrowcast import megatron

KINDS = ["fully_reshardable", "dp_reshardable", "dp_zero_gather_scatter"]
# Buckets whose ends are padded, so that there are gaps in the places of parameters.
BUCKETS = {"overlap_grad_reduce": True, "bucket_size": 20_000}


def save(mesh, format, tensor, kind, path, ddp=None, options=None):
    """Two steps, a checkpoint, another two steps; writes the masters at both."""
    with mt.megatron_on_cpu(tensor):
        run = mt.Run(format, ddp, **(options or {}))
        for step in range(2):
            feed(run, step)
        saving.save(run, f"{path}/checkpoint", kind)
        write(run, f"{path}/saved")
        for step in range(2, 4):
            feed(run, step)
        write(run, f"{path}/later")


def load(mesh, format, tensor, kind, path, ddp=None, options=None, exact=True):
    """The checkpoint into a fresh model, and another two steps."""
    with mt.megatron_on_cpu(tensor):
        run = mt.Run(format, ddp, seed=1, **(options or {}))
        if format is None:  # torch's Adam has no state before its first step, and Megatron asks
            run.feed(0)
        saving.load(run, f"{path}/checkpoint", kind)
        steps = {s["step"].item() for p in run.parts for s in p.optimizer.state.values()}
        assert steps == {2}
        compare(run, f"{path}/saved", 0.0)
        for step in range(2, 4):
            feed(run, step)
        compare(run, f"{path}/later", 0.0 if exact else 1e-5)


def feed(run, step):
    if run.ddp.ddp_config.overlap_grad_reduce:
        for group in run.ddp.bucket_groups:
            group.is_first_batch = True  # no backward says which gradients are ready
    run.feed(step)


def write(run, path):
    wholes = wholes_of(run)
    if dist.get_rank() == 0:
        torch.save(wholes, path)
    dist.barrier()


def wholes_of(run):
    """Collective: name -> master and moments, of all tensor-parallel ranks."""
    group = parallel_state.get_tensor_model_parallel_group()
    every = [None] * group.size()
    dist.all_gather_object(every, run.masters(), group=group)
    wholes = {}
    for name, parameter in run.model.named_parameters():
        parts = [*zip(*(of_rank[name] for of_rank in every), strict=True)]
        is_cut = getattr(parameter, "tensor_model_parallel", False)
        wholes[name] = [torch.cat(p, parameter.partition_dim) if is_cut else p[0] for p in parts]
    return wholes


def compare(run, path, tolerance):
    """Masters and moments with those written, and the bytes with a cast of the masters."""
    found = wholes_of(run)
    for name, expected in torch.load(path).items():
        torch.testing.assert_close(found[name], expected, rtol=tolerance, atol=tolerance)
    if run.format is None:
        return  # until its next step, Megatron's own model has the saved model's parameters
    masters = {name: whole[0] for name, whole in run.masters().items()}
    mt.assert_bytes_are_casts(run.model, masters)
    for name, parameter in run.model.named_parameters():
        if not mt.quantized(parameter):
            assert torch.equal(parameter, masters[name].to(parameter.dtype)), name


@pytest.mark.parametrize("kind", KINDS)
def test_training_goes_on(kind, tmp_path):
    ranks.run(2, "cpu", save, "nvfp4", 1, kind, str(tmp_path))
    ranks.run(2, "cpu", load, "nvfp4", 1, kind, str(tmp_path))


def test_buckets_with_another_number_of_data_parallel_ranks(tmp_path):
    ranks.run(2, "cpu", save, "nvfp4", 1, KINDS[1], str(tmp_path))
    ranks.run(1, "cpu", load, "mxfp8_e4m3", 1, KINDS[1], str(tmp_path))


def test_with_other_numbers_of_ranks_and_another_format(tmp_path):
    """Two data-parallel ranks; then two by two."""
    ranks.run(2, "cpu", save, "nvfp4", 1, KINDS[0], str(tmp_path))
    ranks.run(4, "cpu", load, "mxfp8_e4m3", 2, KINDS[0], str(tmp_path))


def test_gated_units(tmp_path):
    """Megatron cuts the value of one parameter into two of the checkpoint's."""
    options = {"gated_linear_unit": True, "add_bias_linear": False, "activation_func": F.silu}
    ranks.run(2, "cpu", save, "nvfp4", 2, KINDS[0], str(tmp_path), None, options)
    ranks.run(4, "cpu", load, "nvfp4", 2, KINDS[0], str(tmp_path), None, options)


@pytest.mark.parametrize("kind", KINDS[:2])
@ranks.on(2, "cpu")
def test_experts(mesh, tmp_path, kind, format="mxfp8_e4m3"):
    """Two optimizers in a chain, of which one has experts that the ranks share out."""
    options = {"layers": {"num_experts": 4}, "num_moe_experts": 4, "add_bias_linear": False}
    options |= {"moe_token_dispatcher_type": "allgather", "expert_model_parallel_size": 2}
    with mt.megatron_on_cpu(1, expert_model_parallel_size=2):
        run, other = mt.Run(format, **options), mt.Run(format, seed=1, **options)
        run.feed(0)
        saving.save(run, f"{tmp_path}/checkpoint", kind)
        saving.load(other, f"{tmp_path}/checkpoint", kind)
        for step in range(1, 3):
            for (name, (_, main, _)), (_, loaded, _) in zip(
                run.shards().items(), other.shards().values(), strict=True
            ):
                assert torch.equal(main, loaded), name
            for name, buffers in mt.all_bytes(run.model).items():
                assert mt.same_bytes(buffers, mt.all_bytes(other.model)[name]), name
            run.feed(step)
            other.feed(step)


class Chunks:
    """Two chunks of a model on a rank, as virtual pipeline stages are, with parameters of the same
    names, and their optimizer.
    """

    def __init__(self, format, seed):
        seeds, spec = (seed, seed + 1), megatron.get_gpt_layer_spec(format)
        self.models = [mm.gpt(spec, one, num_layers=1, **mt.MODEL) for one in seeds]
        ddp = {"use_distributed_optimizer": True, "grad_reduce_in_fp32": True}
        chunks = [
            megatron.DistributedDataParallel(one.config, DistributedDataParallelConfig(**ddp), one)
            for one in self.models
        ]
        self.optimizer = megatron.get_megatron_optimizer(mt.adam_config(), chunks)

    def sharded(self, is_loading, kind):
        models = {f"model{at}": one.sharded_state_dict() for at, one in enumerate(self.models)}
        metadata = {"distrib_optim_sharding_type": kind}
        return self.optimizer.sharded_state_dict(models, is_loading, metadata=metadata)

    def masters(self):
        (part,) = self.optimizer.chained_optimizers
        return [p.detach() for group in part.optimizer.param_groups for p in group["params"]]


@pytest.mark.parametrize("kind", KINDS[1:])
@ranks.on(1, "cpu")
def test_virtual_pipeline_stages(mesh, tmp_path, kind, format="mxfp8_e4m3"):
    with mt.megatron_on_cpu():
        saved, loaded = Chunks(format, 0), Chunks(format, 2)
        for parameter in (p for one in saved.models for p in one.parameters()):
            parameter.main_grad.fill_(1.0)
        saved.optimizer.step()
        saving.write({"optimizer": saved.sharded(False, kind)}, str(tmp_path))
        state = dist_checkpointing.load({"optimizer": loaded.sharded(True, kind)}, str(tmp_path))
        loaded.optimizer.load_state_dict(state["optimizer"])
        assert all(map(torch.equal, saved.masters(), loaded.masters()))
        for one, other in zip(saved.models, loaded.models, strict=True):
            expected, found = mt.all_bytes(one), mt.all_bytes(other)
            assert all(mt.same_bytes(expected[name], found[name]) for name in expected)


def test_with_fewer_ranks(tmp_path):
    """Two tensor-parallel ranks; then one data-parallel one alone."""
    ranks.run(2, "cpu", save, "fp8_block128", 2, KINDS[0], str(tmp_path))
    ranks.run(1, "cpu", load, "nvfp4", 1, KINDS[0], str(tmp_path))


@pytest.mark.parametrize("loaded", [None, "nvfp4"])
def test_megatrons_own_checkpoints(loaded, tmp_path):
    """Plain bfloat16 weights to quantized ones, and the other way round."""
    saved = "nvfp4" if loaded is None else None
    ranks.run(2, "cpu", save, saved, 1, KINDS[0], str(tmp_path))
    ranks.run(2, "cpu", load, loaded, 1, KINDS[0], str(tmp_path), None, None, False)


def test_buckets_that_are_padded(tmp_path):
    """Many buckets into one, and the other way round."""
    for place, (saved, loaded) in enumerate([(BUCKETS, None), (None, BUCKETS)]):
        path = str(tmp_path / str(place))
        (tmp_path / str(place)).mkdir()
        ranks.run(2, "cpu", save, "mxfp8_e4m3", 1, KINDS[0], path, saved)
        ranks.run(2, "cpu", load, "mxfp8_e4m3", 1, KINDS[0], path, loaded)
