"""torchtitan, the real one: its functions shard, initialize, step and save a model that
narrowcast.torchtitan's converter has converted (titan.py).
"""

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F

import narrowcast as nc
import ranks
from cut_weights import BY_SHARD, assert_part, give_gradients
from models import GATHERS, same
from narrowcast.tensor import dtensors
from titan import Job
from weights import value_of

TESTED_FORMATS = [GATHERS[0], GATHERS[-1]]
pytest.importorskip("torchtitan", reason="torchtitan is not installed")


def train(job, first, last):
    losses = []
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step * dist.get_world_size() + dist.get_rank())
        tokens = torch.randint(0, 2048, (2, 16), generator=generator)
        logits = job.forward(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())
        loss.backward()
        job.optimizers.step()
        job.schedulers.step()
        job.optimizers.zero_grad()
        losses.append(loss.item())
    return losses


def values(model):
    return [value_of(p).clone() for p in model.parameters()]


def trained(mesh, format, folder):
    job = Job(format)
    quantized = [p for p in job.model.parameters() if dtensors.local_of(p).dtype == torch.float32]
    assert sum(isinstance(dtensors.local_of(p), nc.MasterWeight) for p in quantized) > 8
    plain = Job(None)
    assert all(map(same, values(job.model), values(plain.model)))  # the same initial values
    nc.convert(plain.model, format)
    job.complete()
    plain.complete()
    losses = train(job, 0, 2)
    assert losses == train(plain, 0, 2)
    assert all(map(same, values(job.model), values(plain.model)))
    dcp.save(job.saved, checkpoint_id=folder)
    losses = train(job, 2, 4)
    other = Job(format).complete()
    dcp.load(other.saved, checkpoint_id=folder)
    other.schedulers.load_state_dict(plain.schedulers.state_dict())
    assert train(other, 2, 4) == losses
    assert all(map(same, values(other.model), values(job.model)))


def saved_before_training(mesh, format):
    """A checkpoint of the first step; torchtitan 0.3 would make the state by a step that counts."""
    found = []
    for is_asked in (False, True):
        job = Job(format).complete()
        if is_asked:
            state = job.optimizers.state_dict()
            assert {float(one) for name, one in state.items() if name.endswith(".step")} == {0}
        found.append((train(job, 0, 2), values(job.model)))
    assert found[0][0] == found[1][0]
    assert all(map(same, found[0][1], found[1][1]))


def on_ranks(mesh, formats, delayed, folder):
    for format in formats:
        trained(mesh, format, f"{folder}/{format}")
    saved_before_training(mesh, delayed)


def test_on_ranks(tmp_path):
    """The same as by hand; and a checkpoint before the first step, in a format with histories, in
    which a step without a gradient would be seen. torchtitan makes its meshes once a process, so
    this is one test.
    """
    delayed = next(name for name in nc.formats() if nc.format(name).amax == "delayed")
    ranks.run(2, "cpu", on_ranks, [GATHERS[0], GATHERS[-1]], delayed, str(tmp_path))


def parallel(mesh, format, degrees):
    """The whole model is given the same gradients, and steps as the parts do."""
    job = Job(format, **degrees).complete()
    whole = nc.convert(job.whole(), format)
    quantized = [isinstance(p, nc.MasterWeight) for p in whole.parameters()]
    parts = [isinstance(dtensors.local_of(p), nc.MasterWeight) for p in job.model.parameters()]
    assert parts == quantized
    assert sum(parts) > 8
    (mine,) = job.optimizers.optimizers
    (group,) = mine.param_groups
    options = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay")}
    optimizer = nc.FusedAdam(whole.parameters(), **options)
    groups = dist.get_world_size() // degrees.get("tp", 1)
    for step in range(2):
        source = dist.get_rank() // degrees.get("tp", 1)
        generator = torch.Generator().manual_seed(step * groups + source)
        tokens = torch.randint(0, 2048, (2, 16), generator=generator)
        logits = job.forward(tokens)
        if step == 0:
            with torch.no_grad():
                expected = job.forward(tokens, whole)
            torch.testing.assert_close(logits.float(), expected, rtol=0.1, atol=0.05)
        F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten()).backward()
        give_gradients(job.model, whole)
        job.optimizers.step()
        optimizer.step()
        job.optimizers.zero_grad()
    for (name, p), w in zip(job.model.named_parameters(), whole.parameters(), strict=True):
        assert_part(p, w, BY_SHARD, name)
    assert all("exp_avg" in mine.state[p] for p in job.model.parameters())
    if "ep" in degrees:
        biases = [one for name, one in job.model.named_buffers() if "expert_bias" in name]
        assert biases
        assert all(dtensors.local_of(one).any() for one in biases)  # torchtitan's own balancing


@pytest.mark.parametrize("degrees", [{"tp": 2}, {"tp": 2, "ep": 2}])
def test_tensor_and_expert_parallelism(format, degrees):
    ranks.run_alone(4, "cpu", parallel, format, degrees)


def test_other_backends_cut_in_ways_of_their_own():
    from torchtitan.models.llama3 import model_registry
    from torchtitan.models.llama3.config_registry import llama3_debugmodel

    import narrowcast.torchtitan as glue

    config = llama3_debugmodel()
    config.parallelism.tensor_parallel_degree = 2
    converters = [glue.Converter.Config(format=GATHERS[0])]
    model = model_registry("debugmodel", converters=converters).model
    with pytest.raises(NotImplementedError, match="partial_dtensor"):
        model.update_from_config(config=config)


def test_other_optimizers_are_refused():
    import narrowcast.torchtitan as glue

    with pytest.raises(NotImplementedError, match=r"is SGD: nc\.FusedAdam is AdamW or Adam"):
        glue.Optimizers._resolve_optimizer_factory("SGD")
