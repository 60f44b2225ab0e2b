"""What goes wrong with Megatron where ranks are made otherwise, or between saving and loading: an
error, which says what it is. And what Megatron's users do to a model that is wrapped already.
"""

import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import ranks

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

from megatron.core import dist_checkpointing

import megatron_models as mm
import megatron_saving as saving
import megatron_training as mt
import narrowcast as nc
from narrowcast import megatron

FORMAT = "mxfp8_e4m3"
BY_PLACE = ["dp_reshardable", "dp_zero_gather_scatter"]


def run_of(matchers, seed=0, **options):
    """A Run whose recipe quantizes the layers that the first matchers name "q"."""
    configs = {"q": {"narrowcast": {"format": FORMAT}}, "p": {"narrowcast": None}}
    recipe = mm.recipe(configs, matchers)
    return mt.Run(FORMAT, seed=seed, quant_recipe=recipe, **options)


FIRST, SECOND = ([(f"*layers.{layer}.*", "q"), ("*", "p")] for layer in (0, 1))


def error_of(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


# ---- conversions of a wrapped model ----


def converted(mesh, how):
    with mt.megatron_on_cpu():
        run = mt.Run(FORMAT)
        run.train()
        for change in {
            "nothing": [],
            "device": [lambda: run.ddp.to("cpu")],
            "dtype": [run.ddp.bfloat16, lambda: run.ddp.to(torch.bfloat16)],
            "shared": [run.ddp.share_memory],
        }[how]:
            change()
        losses = [run.train() for _ in range(2)]
        masters = {name: whole[0] for name, whole in run.masters().items()}
        mt.assert_bytes_are_casts(run.model, masters)
        return losses


@pytest.mark.parametrize("how", ["device", "dtype", "shared"])
def test_a_converted_model_trains_on(how):
    expected = ranks.run(2, "cpu", converted, "nothing")
    assert ranks.run(2, "cpu", converted, how) == expected


# ---- ranks that differ ----


def plain_on_one_rank(mesh, payload):
    with mt.megatron_on_cpu():
        own = {"format": FORMAT} if mesh.get_local_rank() == 0 else payload
        recipe = mm.recipe({"q": {"narrowcast": own}}, [("*", "q")])
        return error_of(lambda: mt.Run(FORMAT, quant_recipe=recipe))


@pytest.mark.parametrize(
    ("payload", "words"),
    [
        ({"format": "mxfp4"}, "linear_proj.weight: 96x96 matrix in mxfp4"),
        ({"format": FORMAT, "matmul": "scaled"}, "scaled products"),
    ],
)
def test_recipes_that_differ(payload, words):
    for said in ranks.run(2, "cpu", plain_on_one_rank, payload):
        assert said.startswith("DisagreementError") and words in said, said


# ---- other layers are quantized ----


def load_elsewhere(mesh, kind, path):
    options = {"add_bias_linear": False, "hidden_size": 128}  # buffers of equal sizes
    with mt.megatron_on_cpu():
        run = run_of(FIRST, **options)
        run.feed(0)
        saving.save(run, path, kind)
        other = run_of(SECOND, seed=1, **options)
        error = error_of(saving.load, other, path, kind)
        if error is None:
            for name, (master, *_) in run.masters().items():
                assert torch.equal(master, other.masters()[name][0]), name
        return error


@pytest.mark.parametrize("kind", BY_PLACE)
def test_parameters_that_lie_elsewhere(kind, tmp_path):
    for said in ranks.run(2, "cpu", load_elsewhere, kind, str(tmp_path / "checkpoint")):
        assert said.startswith("ValueError: parameter 3 of the optimizer's buffers was "), said
        assert 'save with distrib_optim_sharding_type="fully_reshardable"' in said


def test_parameters_that_lie_elsewhere_by_their_names(tmp_path):
    path = str(tmp_path / "checkpoint")
    assert ranks.run(2, "cpu", load_elsewhere, "fully_reshardable", path) == [None] * 2


# ---- one key for layers of which some are plain, or frozen ----


def _value(tensor):
    return tensor.dequantize() if isinstance(tensor, nc.QuantizedTensor) else tensor.float()


@ranks.on(2, "cpu")
def test_models_of_which_some_layers_are_plain(mesh, tmp_path):
    """Saved before there is an optimizer, and a trained one into a model without."""
    with mt.megatron_on_cpu():
        recipe = mm.recipe(
            {"q": {"narrowcast": {"format": FORMAT}}, "p": {"narrowcast": None}}, FIRST
        )
        options = {**mt.MODEL, "quant_recipe": recipe}
        models = [mm.gpt(megatron.get_gpt_layer_spec(FORMAT), seed, **options) for seed in (0, 1)]
        trained = run_of(FIRST)
        trained.feed(0)
        for number, model in enumerate((models[0], trained.model)):
            if dist.get_rank() == 0:
                (tmp_path / str(number)).mkdir(parents=True)
            dist.barrier()
            with saving._may_have_children():
                dist_checkpointing.save(model.sharded_state_dict(), str(tmp_path / str(number)))
            state = dist_checkpointing.load(
                models[1].sharded_state_dict(), str(tmp_path / str(number))
            )
            models[1].load_state_dict(state)
            for name, value in model.state_dict().items():
                if isinstance(value, torch.Tensor):
                    one, other = (_value(one) for one in (value, models[1].state_dict()[name]))
                    assert torch.equal(one, other), (number, name)


def some_frozen(mesh, path):
    with mt.megatron_on_cpu():
        run, other = (mt.Run(FORMAT, seed=seed, frozen=["layers.0"]) for seed in (0, 1))
        run.feed(0)
        saving.save(run, path, "dp_reshardable")
        saving.load(other, path, "dp_reshardable")
        for name, weight in mm.quantized(run.model).items():
            twin = mm.quantized(other.model)[name]
            assert torch.equal(weight.dequantize(), twin.dequantize()), name


def test_models_of_which_some_layers_are_frozen(tmp_path):
    ranks.run(2, "cpu", some_frozen, str(tmp_path / "checkpoint"))


# ---- a megatron-core that narrowcast was not written for ----

ANOTHER = """
import sys
import narrowcast
assert "megatron" not in sys.modules and "narrowcast.megatron" not in sys.modules
import megatron.core
megatron.core.__version__ = "0.15.3"
import narrowcast.megatron
"""


def test_another_version():
    result = subprocess.run([sys.executable, "-c", ANOTHER], capture_output=True, text=True)
    last = result.stderr.splitlines()[-1]
    assert "works with megatron-core 0.16.x, and 0.15.3 is installed" in last, last
