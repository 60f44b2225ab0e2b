"""Weights that are their own masters under fully_shard equal one process to the bit, in losses and
values, where plain weights do: aligned shards, shards that share blocks, ranks without rows.
"""

import itertools
import warnings

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import format_utils
from torch.distributed.checkpoint import state_dict as dcp_state
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

import narrowcast as nc
import ranks
from by_hand import FORMATS, by_hand, converted, loss_of, plain, same, value_of, values

TESTED_FORMATS = FORMATS
SIZES = {"aligned": (256, 512, 64), "divided": (192, 320, 48), "empty": (96, 100, 4)}
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


def _adamw(model):
    return torch.optim.AdamW(model.parameters(), 1e-2, foreach=True)


def _fused(model):
    options = {"betas": (0.9, 0.999), "weight_decay": 0.01}
    return nc.FusedAdam(model.parameters(), 1e-2, **options)


# Ranks, options of fully_shard, batches for a step.
CASES = {
    "resharded": (3, {}, 1),
    "kept": (2, {"reshard_after_forward": False}, 1),
    "bfloat16, accumulated": (3, {"mp_policy": BF16}, 2),
    "offloaded": (2, {"offload_policy": CPUOffloadPolicy(pin_memory=False)}, 1),
}


def _shard(model, mesh, **options):
    for block in model[:-1]:
        fully_shard(block, mesh=mesh, **options)
    fully_shard(model, mesh=mesh, **options)
    for module in (model, *model[:-1]):  # the first rank alone has a loss, so sums are exact
        module.set_force_sum_reduction_for_comms(True)
        module.set_gradient_divide_factor(1.0)
    return model


def _steps(model, optimizer, batches, dtype, width, steps=3, first=0, is_first=True):
    losses = []
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for number in range(batches):
            if hasattr(model, "set_requires_gradient_sync"):
                model.set_requires_gradient_sync(number == batches - 1)
            loss = loss_of(model, 10 * step + number, dtype=dtype, width=width)
            losses.append(loss.item())
            (loss * float(is_first)).backward()
        optimizer.step()
    return losses


def _whole(model):
    """The values of all ranks' shards together."""
    model.reshard()
    whole = {name: one.detach().full_tensor() for name, one in model.named_parameters()}
    return {name: getattr(one, "value", one) for name, one in whole.items()}


def _locals(model):
    model.reshard()
    every = (one._local_tensor for one in model.parameters())
    return [one for one in every if isinstance(one, nc.MasterWeight)]


def _train_sharded(mesh, format, size, case):
    _, options, batches = CASES[case]
    sizes = SIZES[size]
    how = batches, torch.bfloat16 if "mp_policy" in options else torch.float32, sizes[0]
    reference = by_hand(format, *sizes)
    expected = _steps(reference, _adamw(reference), *how)
    model = _shard(converted(format, *sizes), mesh, **options)
    is_first = mesh.get_local_rank() == 0
    losses = _steps(model, _adamw(model), *how, is_first=is_first)
    assert losses == expected
    assert same(_whole(model), values(reference))
    assert len(_locals(model)) == 5
    assert any(one._store.is_stale for one in _locals(model))


# Each two of a case, a size and a format meet.
TRAININGS = [
    (FORMATS[(a + b) % len(FORMATS)], case, size)
    for a, case in enumerate(CASES)
    for b, size in enumerate(SIZES)
]


@pytest.mark.parametrize(("name", "case", "size"), TRAININGS)
def test_training(name, case, size):
    ranks.run(CASES[case][0], "cpu", _train_sharded, name, size, case)


@ranks.on(3, "cpu")
def test_a_step_after_a_load_that_assigns(mesh, format):
    """FusedAdam after a load that assigns, which leaves counts alike on no two ranks."""
    sizes = SIZES["empty"]
    models = [_shard(converted(format, *sizes), mesh) for _ in range(2)]
    state = {name: one.clone() for name, one in models[0].state_dict().items()}
    models[0].load_state_dict(state, assign=True)
    losses = [_steps(one, _fused(one), 1, torch.float32, sizes[0]) for one in models]
    assert losses[0] == losses[1]
    assert not any(one._store.is_stale for one in _locals(models[0]))
    assert same(_whole(models[0]), _whole(models[1]))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("first", [False, True])
@ranks.on(3, "cpu")
def test_a_state_dict_that_is_kept(mesh, size, first, format=FORMATS[1]):
    """One that is kept has what training makes of shards, and is loaded again, as it is."""
    sizes = SIZES[size]
    model = _shard(converted(format, *sizes), mesh)
    if first:
        model(torch.ones(8, sizes[0])).sum().backward()
    held, optimizer = model.state_dict(), _adamw(model)
    for step in range(2):
        model.load_state_dict(held)
        _steps(model, optimizer, 1, torch.float32, sizes[0], 1, first=step)
        model.reshard()
        for name, parameter in model.named_parameters():
            assert torch.equal(held[name].to_local(), value_of(parameter.to_local()))


@pytest.mark.parametrize("size", ["divided", "empty"])
@ranks.on(3, "cpu")
def test_writes_and_loads(mesh, format, size):
    """What is written to shards, and loaded into them, before and after the first forward."""
    sizes = SIZES[size]
    is_first = mesh.get_local_rank() == 0
    for reads_first, assign in ((False, False), (True, False), (False, True), (True, True)):
        other, reference = plain(*sizes, seed=1), by_hand(format, *sizes, seed=1)
        expected = _steps(reference, _adamw(reference), 1, torch.float32, sizes[0])
        model = _shard(converted(format, *sizes), mesh)
        if reads_first:
            model(torch.ones(8, sizes[0])).sum().backward()
        options = dcp_state.StateDictOptions(full_state_dict=True)
        if assign:
            state = _shard(plain(*sizes, seed=1), mesh).state_dict()
            model.load_state_dict({key: one.clone() for key, one in state.items()}, assign=True)
        else:
            dcp_state.set_model_state_dict(model, other.state_dict(), options=options)
        assert same(_whole(model), values(other))
        losses = _steps(model, _adamw(model), 1, torch.float32, sizes[0], is_first=is_first)
        assert losses == expected
        assert len(_locals(model)) == 5
        state = model.state_dict()
        assert {type(one.to_local()) for one in state.values()} == {torch.Tensor}
        full = dcp_state.get_model_state_dict(model, options=options)
        assert {type(one) for one in full.values()} == {torch.Tensor}
        assert same(full, values(reference))
    with torch.no_grad():
        for one in (*model.parameters(), *reference.parameters()):
            one.clamp_(-0.02, 0.03)
    losses = _steps(model, _adamw(model), 1, torch.float32, sizes[0], 1, is_first=is_first)
    assert losses == _steps(reference, _adamw(reference), 1, torch.float32, sizes[0], 1)


WRITES = {
    "copy_": lambda weight: weight.copy_(torch.ones(weight.shape)),
    "fill_": lambda weight: weight.fill_(1.0),
    "zero_": lambda weight: weight.zero_(),
    "initializers": lambda weight: torch.nn.init.normal_(weight),
    "trunc_normal_": lambda weight: torch.nn.init.trunc_normal_(weight),
    "merges": lambda weight: weight.add_(torch.ones(weight.shape)),
    "scales": lambda weight: weight.mul_(2.0),
    "of its format": lambda weight: weight.copy_(
        nc.quantize(torch.ones(weight.shape), weight.format)
    ),
    "data": lambda weight: setattr(weight, "data", torch.ones(weight.shape)),
    "data of its format": lambda weight: setattr(
        weight, "data", nc.quantize(torch.ones(weight.shape), weight.format)
    ),
    "through data": lambda weight: weight.data.zero_(),
    "steps": lambda weight: torch._foreach_add_([weight], 1.0),
    "collectives": lambda weight: torch.distributed.broadcast(weight.detach(), 0),
    "a part": lambda weight: weight[:128].copy_(torch.ones(128, weight.shape[1])),
}


@pytest.mark.parametrize("trainable", [True, False])
@ranks.on(2, "cpu")
def test_a_gathered_weight_is_not_written_to(mesh, format, trainable):
    """What is written to a gathered weight would be in no shard: an error, and nothing changes."""
    model = converted(format) if trainable else nc.convert(plain(), format, trainable=False)
    model = _shard(model, mesh)
    with torch.no_grad():
        expected = model(torch.ones(8, 256))  # the root stays gathered
        weight = model[2].weight
        assert isinstance(weight, nc.QuantizedTensor)
        for name, write in WRITES.items():
            if name == "a part":
                model[0].unshard()
                weight = model[0].up.weight
            with pytest.raises(ValueError, match="FSDP2 has gathered this weight"):
                write(weight)
        model[0].reshard()
        assert torch.equal(model(torch.ones(8, 256)), expected)
        for assign in (False, True) if trainable else ():  # state dicts are those of the shards
            model(torch.ones(8, 256))
            assert isinstance(model[2].weight, nc.QuantizedTensor)
            state = {key: 2 * one for key, one in model.state_dict().items()}
            model(torch.ones(8, 256))
            model.load_state_dict(state, assign=assign)
            assert same(_whole(model), {key: one.full_tensor() for key, one in state.items()})


class Standardized(torch.nn.Linear):
    def forward(self, x):
        weight = self.weight - self.weight.mean(1, keepdim=True)
        return torch.nn.functional.linear(x, weight, self.bias)


@ranks.on(2, "cpu")
def test_a_penalty_on_a_gathered_weight_is_told_of(mesh, format=FORMATS[1]):
    """Arithmetic under autograd with what has been gathered is told of once a weight; products, and
    all that records no gradient, are not.
    """
    model = converted(format)
    model[1].up.__class__ = Standardized
    model = _shard(model, mesh)
    for step in range(2):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            model(torch.ones(8, 256)).sum().backward()
            model(torch.ones(8, 256))
            weight = model[2].weight
            with torch.no_grad():
                assert weight.norm() > 0 and weight.detach().sum() != 0
            assert len(told) == (step == 0)
            weight.square().sum().backward()
            (weight.float() - 1).sum().backward()
        words = [str(one.message) for one in told]
        assert [one.split(":")[0] for one in words] == ([] if step else ["1.up.weight", "2.weight"])
        assert all("after the module's reshard()" in one for one in words)
        model.reshard()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sum(one.square().sum() for one in model.parameters()).backward()


@ranks.on(2, "cpu")
def test_a_weight_that_is_broadcast(mesh, format):
    """A collective that writes to a weight is counted."""
    model, reference = converted(format, seed=mesh.get_local_rank()), by_hand(format)
    model(torch.ones(8, 256))
    for one in model.parameters():
        torch.distributed.broadcast(one.detach(), 0)
    assert torch.equal(model(torch.ones(8, 256)), reference(torch.ones(8, 256)))


def _full(model):
    """A full state dict, which has the values."""
    options = dcp_state.StateDictOptions(full_state_dict=True)
    return dcp_state.get_model_state_dict(model, options=options)


@ranks.on(2, "cpu")
def test_training_in_bfloat16(mesh, format=FORMATS[1]):
    """Parameters of a bfloat16 model have one dtype, and so have gradients: as one process."""
    of_bfloat16 = {"dtype": torch.bfloat16}
    for size, optimizer_of in itertools.product(("aligned", "divided", "empty"), (_adamw, _fused)):
        sizes = SIZES[size]
        reference = converted(format, *sizes, **of_bfloat16)
        how = 1, torch.bfloat16, sizes[0]
        expected = _steps(reference, optimizer_of(reference), *how)
        if optimizer_of is _fused:
            model = _shard(converted(format, *sizes, **of_bfloat16), mesh)
        else:  # converted later
            model = converted(format, model=_shard(plain(*sizes).bfloat16(), mesh), **of_bfloat16)
        losses = _steps(model, optimizer_of(model), *how, is_first=mesh.get_local_rank() == 0)
        assert losses == expected
        assert {one.grad.dtype for one in model.parameters()} == {torch.bfloat16}
        assert same(_full(model), values(reference))
        model.to(torch.float32)
        assert {one.dtype for one in model.parameters()} == {torch.float32}
        assert same(_full(model), {k: one.float() for k, one in values(reference).items()})


@ranks.on(2, "cpu")
def test_checkpoints_of_bfloat16(mesh, tmp_path):
    """Checkpoints of a bfloat16 model have float32 values, and those of bfloat16 are loaded."""
    sizes, of_bfloat16 = SIZES["empty"], {"dtype": torch.bfloat16}
    model, other = (
        _shard(converted(FORMATS[1], *sizes, seed=seed, **of_bfloat16), mesh) for seed in (0, 1)
    )
    _steps(model, _adamw(model), 1, torch.bfloat16, sizes[0], 1)
    expected = _full(model)
    in_bfloat16 = {name: one.bfloat16().to(one.dtype) for name, one in expected.items()}
    assert not same(expected, in_bfloat16)
    with pytest.raises(TypeError, match="no memory of this dtype"):
        dcp.async_save(dict(model.named_parameters()), checkpoint_id=f"{tmp_path}/refused").result()
    dcp.async_save(model.state_dict(), checkpoint_id=f"{tmp_path}/saved").result()
    dcp.load(other.state_dict(), checkpoint_id=f"{tmp_path}/saved")
    assert same(_full(other), expected)
    if mesh.get_local_rank() == 0:
        format_utils.dcp_to_torch_save(f"{tmp_path}/saved", f"{tmp_path}/file")
        assert same(torch.load(f"{tmp_path}/file"), expected)
    rounded = {name: one.bfloat16() for name, one in model.state_dict().items()}
    dcp.save(rounded, checkpoint_id=f"{tmp_path}/rounded")
    dcp.load(other.state_dict(), checkpoint_id=f"{tmp_path}/rounded")
    assert same(_full(other), in_bfloat16)
    other.load_state_dict(model.state_dict(), assign=True)
    assert {one.dtype for one in other.parameters()} == {torch.bfloat16}
    assert same(_full(other), expected)
