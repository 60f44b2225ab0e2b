"""narrowcast.megatron: GPTs of Megatron-Core with weights in formats, against those with Megatron's
own layers and the decoded values; and what their weights keep.
"""

import pytest
import torch

import ranks
from models import assert_quantized, one_of_each, same

pytest.importorskip("megatron.core", reason="megatron-core is not installed")

import megatron_models as mm

FORMATS = one_of_each(lambda f: (f.columnwise_derived, f.tensor_amax))
ATTRIBUTES = ("tensor_model_parallel", "partition_dim", "partition_stride", "allreduce")


def compare_with_plain(mesh, format, dtype, layers, options):
    """The losses and all gradients. layers: of get_gpt_layer_spec and Megatron's local spec."""
    dtype = getattr(torch, dtype)
    with mm.parallel():
        model = mm.gpt(mm.narrow_spec(format, **layers), dtype=dtype, **options)
        twin = mm.plain_twin(model, mm.plain_spec(**layers), dtype=dtype, **options)
        names = {name for name, module in model.named_modules() if name.endswith(mm.LINEARS)}
        assert {f"{name}.weight" for name in names} == mm.quantized(model).keys()
        losses = [mm.loss_of(one) for one in (model, twin)]
        assert same(*losses)
        for loss in losses:
            loss.mean().backward()
        plain = dict(twin.named_parameters())
        for name, parameter in model.named_parameters():
            assert type(parameter.grad) is type(plain[name].grad), name
            assert same(parameter.grad, plain[name].grad), name
        return len(names)


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", FORMATS)
def test_a_gpt_is_megatrons(world, name):
    assert ranks.run(world, "cpu", compare_with_plain, name, "float32", {}, {}) == [8] * world


def test_a_gpt_in_bfloat16():
    options = {"gated_linear_unit": True, "add_bias_linear": False, "normalization": "RMSNorm"}
    layers = {"normalization": "RMSNorm", "qk_layernorm": True}
    ranks.run(2, "cpu", compare_with_plain, FORMATS[0], "bfloat16", layers, options)


def compare_experts(mesh, format):
    """Those of a layer, given the tokens that its router would: the router of 0.16.1 itself needs
    Transformer Engine.
    """
    layers = {"num_experts": 3}
    options = {"num_moe_experts": 3, "add_bias_linear": False}
    options["moe_token_dispatcher_type"] = "allgather"
    with mm.parallel():
        model = mm.gpt(mm.narrow_spec(format, **layers), **options)
        twin = mm.plain_twin(model, mm.plain_spec(**layers), **options)
        results = []
        for one in (model, twin):
            experts = one.decoder.layers[1].mlp.experts
            generator = torch.Generator().manual_seed(0)
            tokens = torch.randn(12, mm.HIDDEN, generator=generator).requires_grad_()
            probabilities = torch.rand(12, generator=generator).requires_grad_()
            out, _ = experts(tokens, torch.tensor([5, 0, 7]), probabilities)
            out.square().sum().backward()
            gradients = [p.grad for p in experts.parameters()]
            assert len(gradients) == 2 * 3
            results.append([out.detach(), tokens.grad, probabilities.grad, *gradients])
        for got, expected in zip(*results, strict=True):
            assert same(got, expected)
        return len(mm.quantized(model))


def test_experts_one_after_the_other():
    """Each has linear layers of its own, one sees no token."""
    assert ranks.run(1, "cpu", compare_experts, FORMATS[0]) == [2 * 2 + 2 * 2 * 3]


@pytest.mark.parametrize("world", [1, 2])
@ranks.on("world", "cpu")
def test_what_weights_keep(mesh, format=FORMATS[0]):
    """Megatron's initial value, as master, and all that Megatron wrote on the parameter."""
    with mm.parallel():
        plain = dict(mm.gpt(mm.plain_spec()).named_parameters())
        for dtype in (torch.float32, torch.bfloat16):
            # bfloat16 is what all of the model is made once it stands.
            model = mm.gpt(mm.narrow_spec(format)).to(dtype)
            assert len(mm.quantized(model)) == 8
            for name, weight in mm.quantized(model).items():
                assert weight.dtype == dtype
                assert weight.tensor_model_parallel
                for attribute in ATTRIBUTES:
                    assert getattr(weight, attribute) == getattr(plain[name], attribute)
                assert same(weight.get_high_precision_init_val(), plain[name])
                assert_quantized(weight.detach(), weight.get_high_precision_init_val(), name)


def sharded_entries(mesh, format, options):
    """Of each weight in a sharded state dict: where this rank's part lies, and its values."""
    with mm.parallel():
        model = mm.gpt(mm.narrow_spec(format), **options)
        plain = mm.gpt(mm.plain_spec(), **options).sharded_state_dict()
        sharded = model.sharded_state_dict()
        assert sharded.keys() == plain.keys()
        found = []
        for name, weight in mm.quantized(model).items():
            one, other = (
                entries if isinstance(entries, list) else [entries]
                for entries in (_built(sharded[name]), _built(plain[name]))
            )
            for entry, expected in zip(one, other, strict=True):
                assert type(entry.data) is torch.Tensor
                assert (entry.key, entry.replica_id) == (expected.key, expected.replica_id)
                assert entry.global_shape == expected.global_shape
                assert entry.global_offset == expected.global_offset
                assert entry.dtype == entry.data.dtype == torch.float32
                place = [list(entry.global_shape), list(entry.global_offset)]
                found.append((name, *place, entry.data.tolist()))
            if not options:
                assert one[0].data.data_ptr() == weight.kept_value.data_ptr()
        return found


def _built(entry):
    """The ShardedTensors of an entry, which may be the recipe for some."""
    return entry.build() if hasattr(entry, "build") else entry


def assembled(by_rank):
    """The whole weights by name, from all ranks' parts."""
    wholes = {}
    for name, shape, offset, values in [entry for found in by_rank for entry in found]:
        whole = wholes.setdefault(name, torch.full(shape, float("nan")))
        part = torch.tensor(values)
        missing = len(shape) - part.dim()
        part = part[(None,) * missing]
        whole[tuple(slice(o, o + n) for o, n in zip(offset, part.shape, strict=True))] = part
    return wholes


@pytest.mark.parametrize("options", [{}, {"gated_linear_unit": True}], ids=["", "gated"])
def test_sharded_state_dicts_have_the_masters(options):
    """In Megatron's places, so that the values are those of any number of ranks."""
    one, two = (
        assembled(ranks.run(world, "cpu", sharded_entries, FORMATS[0], options)) for world in (1, 2)
    )
    assert one.keys() == two.keys()
    assert len(one) == 8
    for name in one:
        assert same(one[name], two[name]), name


def _other(format):
    return mm.gpt(mm.narrow_spec(format), seed=1, dtype=torch.bfloat16)


@ranks.on(1, "cpu")
def test_states_can_be_loaded(mesh, format=FORMATS[0]):
    """States of a model that has been trained, and that of a plain one, in models of other seeds:
    masters come with all of their bits, and bytes are made from them.
    """
    with mm.parallel():
        model = mm.gpt(mm.narrow_spec(format), dtype=torch.bfloat16)
        with torch.no_grad():
            for weight in mm.quantized(model).values():
                weight.copy_(torch.randn(weight.shape) / 8)
        masters = {
            name: weight.get_high_precision_init_val()
            for name, weight in mm.quantized(model).items()
        }
        assert any(not same(one, one.bfloat16().float()) for one in masters.values())
        plain = mm.gpt(mm.plain_spec(), seed=2, dtype=torch.bfloat16)
        values = {name: plain.get_parameter(name).float() for name in masters}

        def assert_loaded(other, state, expected):
            found = other.load_state_dict(state)
            assert not found.missing_keys
            assert not found.unexpected_keys
            for name, weight in mm.quantized(other).items():
                assert same(weight.get_high_precision_init_val(), expected[name]), name
                assert_quantized(weight.detach(), expected[name], name)

        sharded = model.sharded_state_dict()
        assert_loaded(_other(format), model.state_dict(), masters)
        assert_loaded(_other(format), plain.state_dict(), values)
        assert_loaded(_other(format), {name: e.data for name, e in sharded.items()}, masters)
        # As Megatron loads: into what the model hands out.
        other = _other(format)
        mine = other.sharded_state_dict()
        for name, entry in mine.items():
            if isinstance(entry.data, torch.Tensor):
                entry.data.detach().copy_(sharded[name].data)
        assert_loaded(other, {name: entry.data for name, entry in mine.items()}, masters)
        # And from a sharded state into Megatron's own layers.
        plain.load_state_dict({name: entry.data for name, entry in sharded.items()})
        for name, master in masters.items():
            assert same(plain.get_parameter(name), master.bfloat16()), name
