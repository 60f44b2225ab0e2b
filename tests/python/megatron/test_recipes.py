"""narrowcast.megatron: which layers get which format, by the spec and by Megatron's recipes, and
what is refused.
"""

import pytest
import torch

import narrowcast as nc
import ranks
from internals import config_of
from models import one_of_each

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import megatron_models as mm
from narrowcast import megatron

FIRST, SECOND, THIRD = one_of_each(lambda f: (f.columnwise_derived, f.tensor_amax))[:3]
(WITHOUT_PRODUCTS,) = [name for name in nc.formats() if nc.format(name).matmul is None][:1]
(PACKED,) = [name for name in nc.formats() if nc.format(name).group > 2][:1]


def formats_of(mesh, configs, matchers, spec):
    """What each linear layer of a model of two layers got: its format, or None."""
    with mm.parallel():
        recipe = mm.recipe(configs, matchers) if matchers else None
        model = mm.gpt(mm.narrow_spec(**spec), quant_recipe=recipe)
        mm.loss_of(model).mean().backward()
        found = {}
        for path, module in model.named_modules():
            if isinstance(module, megatron.ColumnParallelLinear | megatron.RowParallelLinear):
                is_narrow = isinstance(module.weight, nc.QuantizedTensor)
                name = path.removeprefix("decoder.layers.").replace(".self_attention", "")
                found[name.replace(".mlp", "")] = module.weight.format.name if is_narrow else None
                if is_narrow and recipe and recipe.match(_context(path)):
                    assert config_of(module.weight).name == f"{path}.weight"
                assert module.weight.grad is not None
        return found


def _context(path):
    from megatron.core.quantization.quant_config import MatchContext

    return MatchContext(path, None)


def found(*arguments, **spec):
    (by_rank,) = ranks.run(1, "cpu", formats_of, *arguments, spec)
    assert len(by_rank) == 8
    return by_rank


def test_by_the_spec():
    assert set(found({}, [], format=FIRST).values()) == {FIRST}


def test_by_globs():
    """The first matcher that matches counts; two formats in one model, and plain weights."""
    configs = {
        "a": {"narrowcast": {"format": FIRST}},
        "b": {"narrowcast": {"format": SECOND}},
        "off": {"narrowcast": None},
    }
    matchers = [("*.0.mlp.linear_fc2", "off"), ("*.linear_fc*", "a"), ("*.1.*", "b")]
    expected = {
        "0.linear_proj": None,
        "0.linear_qkv": None,
        "0.linear_fc1": FIRST,
        "0.linear_fc2": None,
        "1.linear_proj": SECOND,
        "1.linear_qkv": SECOND,
        "1.linear_fc1": FIRST,
        "1.linear_fc2": FIRST,
    }
    assert found(configs, matchers) == expected
    # Where no matcher matches, the spec's format counts; null is plain there too.
    expected |= {"0.linear_proj": THIRD, "0.linear_qkv": THIRD}
    assert found(configs, matchers, format=THIRD) == expected


def by_the_command_line(mesh):
    """As Megatron looks up `--spec narrowcast.megatron gpt_layer_spec`."""
    from megatron.core.transformer.spec_utils import import_module

    spec = import_module(("narrowcast.megatron", "gpt_layer_spec"))
    with mm.parallel():
        recipe = mm.recipe({"a": {"narrowcast": {"format": FIRST}}}, [("*fc1", "a")])
        return sorted(mm.quantized(mm.gpt(spec, quant_recipe=recipe)))


def test_by_the_command_line():
    (names,) = ranks.run(1, "cpu", by_the_command_line)
    assert names == [f"decoder.layers.{i}.mlp.linear_fc1.weight" for i in range(2)]


# ---- what is refused ----

PAYLOADS = {
    "another library's": ({"other": 1}, "ValueError", ["does not say", "narrowcast: null"]),
    "no format": ({"narrowcast": {"matmul": "scaled"}}, "TypeError", ["format"]),
    "a misspelt key": ({"narrowcast": {"formt": FIRST}}, "TypeError", ["'formt'"]),
    "no such format": (
        {"narrowcast": {"format": FIRST[:-1] + "?"}},
        "ValueError",
        ["there is no format"],
    ),
    "products that it lacks": (
        {"narrowcast": {"format": WITHOUT_PRODUCTS, "matmul": "scaled"}},
        "ValueError",
        ["names no formats for activations"],
    ),
}


def with_payload(mesh, payload):
    with mm.parallel():
        mm.gpt(mm.narrow_spec(), quant_recipe=mm.recipe({"mine": payload}, [("*qkv", "mine")]))


@pytest.mark.parametrize("kind", PAYLOADS)
def test_payloads(kind):
    payload, error_kind, texts = PAYLOADS[kind]
    (error,) = ranks.errors(1, "cpu", with_payload, payload)
    assert error[0] == error_kind
    assert error[1].startswith("decoder.layers.0.self_attention.linear_qkv: ")
    for text in ['config "mine" of the recipe', *texts]:
        assert text in error[1]


def refused(mesh, what):
    with mm.parallel():
        if what == "no format at all":
            mm.gpt(mm.narrow_spec())
        elif what == "a layer that is not finished":
            _layer()(torch.ones(2, 1, 64))
        elif what == "a part that does not fit":
            _layer(columns=PACKED_COLUMNS, format=PACKED).finish_init(None)


PACKED_COLUMNS = 63


def _layer(columns=64, format=FIRST):
    made = megatron.SpecProvider(format=format).column_parallel_linear()
    options = {"init_method": torch.nn.init.normal_, "bias": False}
    return made(columns, 64, config=mm.config(), **options)


@pytest.mark.parametrize(
    ("what", "kind", "texts"),
    [
        (
            "no format at all",
            "ValueError",
            ["64 to 64 features: no format is chosen", "quant_recipe"],
        ),
        ("a layer that is not finished", "RuntimeError", ["call layer.finish_init(None)"]),
        ("a part that does not fit", "ValueError", ["64 features.weight", str(PACKED_COLUMNS)]),
    ],
)
def test_refused(what, kind, texts):
    (error,) = ranks.errors(1, "cpu", refused, what)
    assert error[0] == kind
    for text in texts:
        assert text in error[1]


def test_refused_by_the_spec():
    with pytest.raises(NotImplementedError, match="Use moe_grouped_gemm=False"):
        megatron.get_gpt_layer_spec(FIRST, num_experts=2, moe_grouped_gemm=True)
