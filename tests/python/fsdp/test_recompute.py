"""Gathers whose purpose FSDP2 does not say: right with recompute=True, else an error that names it,
on every rank and before the first wrong number.
"""

import contextlib

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import narrowcast as nc
import ranks
from disagreements import assert_named
from models import FEW, batch, build, loss_of, same, shard

TESTED_FORMATS = FEW


def gradients(parameters):
    return [p.grad.full_tensor() for p in parameters]


def assert_equal_gradients(parameters, expected):
    for a, b in zip(gradients(parameters), gradients(expected), strict=True):
        assert same(a, b)


def assert_equal_step(models, parameters, step, device):
    """The same loss and gradients, to the bit, of a forward and a backward."""
    losses = [loss_of(m, step, device) for m in models]
    assert same(*losses)
    for loss in losses:
        loss.backward()
    assert_equal_gradients(*parameters)


def with_reference(mesh, format, recompute, reshard):
    """A model, one that recomputes nothing, and the parameters of both."""
    device, options = mesh.device_type, {"reshard_after_forward": reshard}
    model = shard(build(format, device, recompute=recompute), mesh, **options)
    reference = shard(build(format, device), mesh, **options)
    # That gradients come to: a module that is not resharded holds others.
    return model, reference, [[*one.parameters()] for one in (model, reference)]


def compare_checkpointed(mesh, format, reentrant, recompute):
    """The checkpoint is within each block's forward, so that the hooks run outside of it."""
    model, reference, parameters = with_reference(mesh, format, recompute, True)
    for block in model.blocks:
        plain = block.forward
        block.forward = lambda x, plain=plain: checkpoint(plain, x, use_reentrant=reentrant)
    for step in range(2):
        x, y = batch(model, step, mesh.device_type)
        for one in (model, reference):
            F.mse_loss(one(x.requires_grad_()), y).backward()
        assert_equal_gradients(*parameters)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_with_recompute(format, device, reentrant):
    ranks.run(2, device, compare_checkpointed, format, reentrant, True)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_without_recompute(format, reentrant):
    assert_names_the_option_if_needed(format, compare_checkpointed, format, reentrant, False)


def assert_names_the_option_if_needed(format, *task):
    """On every rank, or gradients are right."""
    if nc.format(format).gather != "by pass":
        ranks.run(2, "cpu", *task)
        return
    answers = ranks.errors(2, "cpu", *task)
    assert_named(answers, "recompute=True", ".weight", kind="ValueError")


def keep_after_backward(mesh, format, recompute):
    """The next forward uses what the backward gathered."""
    device = mesh.device_type
    model, reference, parameters = with_reference(mesh, format, recompute, True)
    model.set_reshard_after_backward(False)
    for step in range(2):
        assert_equal_step((model, reference), parameters, step, device)


def unshard_first(mesh, format, recompute):
    """An explicit unshard(), whose gather serves forward and backward."""
    device = mesh.device_type
    model, reference, parameters = with_reference(mesh, format, recompute, False)
    for step in range(2):
        for module in (model, *model.blocks):
            module.unshard()
        assert_equal_step((model, reference), parameters, step, device)


def change_resharding(mesh, format, recompute):
    """Resharding switched off after the first gather has fixed the payloads."""
    device = mesh.device_type
    model, reference, parameters = with_reference(mesh, format, recompute, True)
    for step in range(2):
        assert_equal_step((model, reference), parameters, step, device)
        model.set_reshard_after_forward(False)


PATHS = [keep_after_backward, change_resharding]


@pytest.mark.parametrize("path", [*PATHS, unshard_first])
def test_paths_with_recompute(format, device, path):
    ranks.run(2, device, path, format, True)


@pytest.mark.parametrize("path", PATHS)
def test_paths_without_recompute(format, path):
    assert_names_the_option_if_needed(format, path, format, False)


@ranks.on(2, "cpu")
def test_unshard_before_a_forward(mesh, format):
    """Without recompute, an explicit unshard() of a module that reshards serves the forward."""
    device = mesh.device_type
    model, reference = (
        shard(build(format, device), mesh, reshard_after_forward=True) for _ in range(2)
    )
    for module in (model, *model.blocks):
        module.unshard()
    with torch.no_grad():
        assert same(loss_of(model, 0, device), loss_of(reference, 0, device))


@ranks.on(2, "cpu")
def test_forwards_without_a_backward(mesh, format):
    """Evaluation, forwards without a backward and two forwards for one backward."""
    device = mesh.device_type
    model, reference = (shard(build(format, device), mesh) for _ in range(2))
    loss_of(model, 7, device)
    with torch.no_grad():
        loss_of(model, 8, device)
    first = loss_of(model, 0, device)
    loss_of(model, 1, device)
    first.backward()
    loss_of(reference, 0, device).backward()
    assert_equal_gradients(model.parameters(), reference.parameters())


@ranks.on(2)
def test_evaluation_in_inference_mode(mesh, format):
    """Between two steps of training."""
    device = mesh.device_type
    model, reference = (shard(build(format, device), mesh) for _ in range(2))
    for step in range(2):
        for m in (model, reference):
            m.zero_grad()
            loss_of(m, step, device).backward()
        assert_equal_gradients(model.parameters(), reference.parameters())
        with torch.inference_mode():
            inferred = loss_of(model, 8, device).item()
        with torch.no_grad():
            assert loss_of(reference, 8, device).item() == inferred


def go_on_after_failure(mesh, format):
    """A backward ends in an exception, which FSDP2 takes for one that goes on."""
    model = shard(build(format), mesh, reshard_after_forward=True)
    loss_of(model, 0).backward()

    def fail(*_):
        raise MemoryError

    hook = model.blocks[1].register_full_backward_pre_hook(fail)
    with contextlib.suppress(MemoryError):
        loss_of(model, 0).backward()
    hook.remove()
    loss_of(model, 0).backward()


def test_after_a_backward_that_failed(format):
    assert_names_the_option_if_needed(format, go_on_after_failure, format)
