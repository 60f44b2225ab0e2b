"""narrowcast.megatron's DDP and distributed optimizer: masters and bytes are those of one process
with the same gradients, and communication beside computation changes nothing.
"""

import pytest
import torch
import torch.distributed as dist

import narrowcast as nc
import ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core.distributed import DistributedDataParallelConfig

import megatron_models as mm
import megatron_training as mt
from narrowcast import megatron

FORMATS = ["mxfp8_e4m3", "nvfp4", "fp8_block128"]


def feed_and_compare(mesh, format, tensor, options=None, parallel=None):
    """The masters of three steps, bit for bit, and the bytes."""
    with mt.megatron_on_cpu(tensor, **(parallel or {})):
        run = mt.Run(format, **(options or {}))
        reference = mt.Reference(run)
        frozen = {n: b for n, b in mt.all_bytes(run.model).items() if n not in reference.values}
        for step in range(3):
            assert run.feed(step)[0]
            reference.feed(step)
        owned = run.shards()
        for name, (begin, main, _) in owned.items():
            expected = reference.values[name].view(-1)[begin : begin + len(main)]
            assert torch.equal(main, expected), name
        trained = {n: w for n, w in mm.quantized(run.model).items() if n in reference.values}
        assert all(weight.get_high_precision_init_val() is None for weight in trained.values())
        for name, weight in trained.items():
            expected = nc.quantize(reference.values[name].view(weight.shape), format)
            assert mt.same_bytes(mt.bytes_of(weight), mt.bytes_of(expected)), name
        for name, value in run.model.named_parameters():
            if not mt.quantized(value) and value.requires_grad:
                assert torch.equal(value, reference.values[name].to(value.dtype)), name
        for name, before in frozen.items():
            assert mt.same_bytes(before, mt.bytes_of(dict(run.model.named_parameters())[name]))
        return len(owned), len(trained), len(frozen), len(run.parts)


@pytest.mark.parametrize("name", FORMATS)
def test_masters_and_bytes_are_those_of_one_process(name):
    results = ranks.run(2, "cpu", feed_and_compare, name, 1)
    assert [one[1:] for one in results] == [(8, 0, 1)] * 2


def delayed(mesh, format):
    """Codes that earlier amaxes decide: against casts of whole masters in one process."""
    alone, _ = dist.new_subgroups(1)
    with mt.megatron_on_cpu():
        run = mt.Run(format)
        reference = mt.Reference(run)
        weights = mm.quantized(run.model)
        values = [reference.values[name] for name in weights]
        twins = [nc.quantize(value, format) for value in values]
        for step in range(3):
            run.feed(step)
            reference.feed(step)
            nc.quantize_master_weights(twins, values, [0] * len(twins), alone)
            for twin, (name, weight) in zip(twins, weights.items(), strict=True):
                assert mt.same_bytes(mt.bytes_of(weight), mt.bytes_of(twin)), name


@pytest.mark.parametrize("name", [name for name in nc.formats() if nc.format(name).is_delayed])
def test_delayed_scaling(name):
    ranks.run(2, "cpu", delayed, name)


def test_with_tensor_parallel_ranks():
    ranks.run(4, "cpu", feed_and_compare, FORMATS[1], 2)


def test_float32_and_float16_models():
    for dtype in (torch.float32, torch.float16):
        options = {"dtype": dtype, "adam": {"bf16": False, "params_dtype": dtype}}
        ranks.run(2, "cpu", feed_and_compare, FORMATS[0], 1, options)


def test_frozen_weights_stay_as_they_are():
    options = {"frozen": ("linear_fc2", "layers.0.self_attention")}
    results = ranks.run(2, "cpu", feed_and_compare, FORMATS[0], 1, options)
    assert [one[1:] for one in results] == [(4, 4, 1)] * 2


def test_experts_have_an_optimizer_of_their_own():
    """Two expert-parallel ranks among four data-parallel ones."""
    layers = {"num_experts": 4}
    options = {"num_moe_experts": 4, "add_bias_linear": False, "layers": layers}
    options |= {"moe_token_dispatcher_type": "allgather", "expert_model_parallel_size": 2}
    parallel = {"expert_model_parallel_size": 2}
    results = ranks.run(4, "cpu", feed_and_compare, FORMATS[0], 1, options, parallel)
    assert [one[1:] for one in results] == [(2 * 2 + 2 * 2 * 2, 0, 2)] * 4


OVERLAPS = [
    {},
    {"overlap_grad_reduce": True, "bucket_size": 30_000},
    {"overlap_grad_reduce": True, "overlap_param_gather": True, "bucket_size": 30_000},
]


def train_with_each(mesh, format, tensor):
    """Losses and bytes of training with each overlap."""
    with mt.megatron_on_cpu(tensor):
        results = []
        for ddp in OVERLAPS:
            run = mt.Run(format, ddp, {"lr": 2.0**-9})
            losses = [run.train() for _ in range(3)]
            if ddp.get("overlap_param_gather"):
                run.ddp.disable_forward_pre_hook()  # gathers what the last step has made
            masters = {name: whole[0] for name, whole in run.masters().items()}
            mt.assert_bytes_are_casts(run.model, masters)
            results.append((losses, mt.all_bytes(run.model)))
        for losses, others in results[1:]:
            assert losses == results[0][0]
            for name, expected in results[0][1].items():
                assert mt.same_bytes(others[name], expected), name
        return results[0][0]


@pytest.mark.parametrize("name", FORMATS)
def test_communication_beside_computation_changes_nothing(name):
    losses = ranks.run(2, "cpu", train_with_each, name, 1)
    assert all(one[-1] < one[0] for one in losses)


def test_communication_beside_computation_with_tensor_parallel_ranks():
    ranks.run(4, "cpu", train_with_each, FORMATS[0], 2)


@ranks.on(2, "cpu")
def test_gradients_are_clipped_by_the_norm_over_all_shards(mesh, format=FORMATS[0]):
    with mt.megatron_on_cpu():
        run = mt.Run(format, adam={"clip_grad": 0.5})
        reference = mt.Reference(run)
        _, norm, _ = run.feed(0)
        every = range(dist.get_world_size())
        parameters = dict(run.model.named_parameters()).items()
        means = [sum(mt.gradient(n, p, 0, r) for r in every) / len(every) for n, p in parameters]
        expected = torch.cat([mean.view(-1) for mean in means]).norm().item()
        assert norm == pytest.approx(expected, rel=1e-5)
        reference.feed(0, scale=0.5 / (norm + 1e-6))
        for name, (begin, main, _) in run.shards().items():
            values = reference.values[name].view(-1)[begin : begin + len(main)]
            torch.testing.assert_close(main, values, rtol=1e-5, atol=1e-6)


@ranks.on(2, "cpu")
def test_a_step_with_an_overflow_changes_nothing(mesh, format=FORMATS[0]):
    with mt.megatron_on_cpu():
        fp16 = {"fp16": True, "initial_loss_scale": 2.0**10, "hysteresis": 1}
        run = mt.Run(format, adam=fp16, dtype=torch.float16)
        run.train()
        before = mt.all_bytes(run.model), {n: s[1].clone() for n, s in run.shards().items()}
        run.ddp.zero_grad_buffer()
        if mesh.get_local_rank() == 1:  # an overflow on one rank is one on all
            run.ddp.buffers[0].grad_data[7] = torch.inf
        run.ddp.finish_grad_sync()
        assert run.optimizer.step() == (False, None, None)
        assert run.optimizer.get_loss_scale().item() == 2.0**9
        for name, buffers in mt.all_bytes(run.model).items():
            assert mt.same_bytes(buffers, before[0][name])
        assert all(torch.equal(s[1], before[1][n]) for n, s in run.shards().items())
        run.train()
        assert any(not torch.equal(s[1], before[1][n]) for n, s in run.shards().items())


@ranks.on(2, "cpu")
def test_broadcast_params(mesh, format=FORMATS[1]):
    """Before there is an optimizer, and after."""
    with mt.megatron_on_cpu():
        run = mt.Run(format, seed=mesh.get_local_rank())
        config = DistributedDataParallelConfig(use_distributed_optimizer=True)
        model = mm.gpt(megatron.get_gpt_layer_spec(format), mesh.get_local_rank(), **mt.MODEL)
        ddp = megatron.DistributedDataParallel(model.config, config, model)
        for one in (run.ddp, ddp):
            one.broadcast_params()
            own = mt.all_bytes(one), [p.detach().float() for p in one.parameters()]
            every = [None, None]
            dist.all_gather_object(every, own)
            for name in own[0]:
                assert mt.same_bytes(every[0][0][name], every[1][0][name])
            assert all(map(torch.equal, every[0][1], every[1][1]))
        weights = mm.quantized(model).values()
        assert len(weights) == 8
        assert all(one.get_high_precision_init_val() is not None for one in weights)


@pytest.mark.parametrize("with_state", [False, True])
@ranks.on(2, "cpu")
def test_masters_of_a_model_that_was_loaded_alone(mesh, with_state, format=FORMATS[0]):
    """The masters after loading a model's values alone."""
    with mt.megatron_on_cpu():
        trained, run = mt.Run(format), mt.Run(format, seed=1)
        trained.feed(0)
        values = {name: whole[0] for name, whole in trained.masters().items()}
        run.model.load_state_dict(values, strict=False)
        run.optimizer.reload_model_params({"model": values} if with_state else None)
        masters = {name: whole[0] for name, whole in run.masters().items()}
        for name, p in run.model.named_parameters():
            decoded = p.detach().dequantize() if mt.quantized(p) else p.detach().float()
            assert torch.equal(masters[name], values[name] if with_state else decoded), name
        mt.assert_bytes_are_casts(run.model, values)
        run.feed(1)
