"""nc.quantize_master_weights of what is wrong: an error, and no weight has changed."""

import pytest
import torch

import flats
import narrowcast as nc
import ranks
from models import STORAGES, same
from narrowcast import flat

N = 64 * 64


def wrong(mesh, name, which):
    """Calls with something wrong on the last rank, and sees that no weight has changed. Without a
    mesh: this process has everything.
    """
    rank, cuts = (mesh.get_local_rank(), [0, 2000, N]) if mesh else (0, [0, N])
    value = flats.value_of((64, 64), special=False)
    weights = [nc.quantize(value, name) for _ in range(2)]
    before = [{k: v.clone() for k, v in flats.stored(weight).items()} for weight in weights]
    master, start = flats.shards(2 * value, cuts, rank)
    masters, starts, options = [master, master.clone()], [start, start], {}
    if mesh is None or rank == mesh.size() - 1:
        weights, masters, starts, options = WRONG[which](weights, masters, starts)
    group, error = mesh and mesh.get_group(), None
    try:
        nc.quantize_master_weights(weights, masters, starts, group, **options)
    except Exception as raised:
        error = type(raised).__name__, str(raised)
    for weight, old in zip([w for w in weights if isinstance(w, nc.QuantizedTensor)], before):  # noqa: B905
        assert all(same(old[k], v) for k, v in flats.stored(weight).items() if k in old), which
    return error


WRONG = {
    "overlap": lambda w, m, s: (w, [torch.ones(N), m[1]], [0, s[1]], {}),
    "gap": lambda w, m, s: (w, [m[0][:-1], m[1]], s, {}),
    "fewer": lambda w, m, s: (w[:1], m[:1], s[:1], {}),
    "dtype": lambda w, m, s: (w, [m[0].to(torch.bfloat16), m[1]], s, {}),
    "length": lambda w, m, s: (w, [torch.ones(N + 1), m[1]], s, {}),
    "negative": lambda w, m, s: (w, m, [-1, s[1]], {}),
    "device": lambda w, m, s: (w, [m[0].to("meta"), m[1]], s, {}),
    "no format": lambda w, m, s: ([torch.ones(64, 64), w[1]], m, s, {}),
    "view": lambda w, m, s: ([w[0].t(), w[1]], m, s, {}),
    "source": lambda w, m, s: (w, m, s, {"source": "fp16"}),
    "rounding": lambda w, m, s: (w, m, s, {"rounding": "up"}),
    "seed": lambda w, m, s: (w, m, s, {"seed": -1}),
}
# The errors of those in which each rank's arguments make sense, and of the others.
COVER = "the ranks' shards of weight 0 are not its 4096 elements, each once: "
BETWEEN_RANKS = {
    "overlap": ("ValueError", COVER + "the one from 0 to 4096 comes where 2000 is due"),
    "gap": ("ValueError", COVER + "the one from 4096 to 4096 comes where 4095 is due"),
    "fewer": ("DisagreementError", "the ranks disagree about a list of flat shards: entry 1: "),
}
OF_ONE = {
    "dtype": ("TypeError", "weight 0: its master shard is torch.bfloat16; float32 is needed"),
    "length": ("ValueError", COVER + "the one from 0 to 4097 comes where 0 is due"),
    "negative": ("ValueError", COVER + "the one from -1 to 4095 comes where 0 is due"),
    "device": ("ValueError", "the master shard is on meta, not on cpu"),
    "no format": ("TypeError", "weight 0 is a Tensor, not a QuantizedTensor"),
    "view": ("ValueError", "weight 0 is a view of a 64x64 matrix in "),
    "source": ("ValueError", 'source is "master" or "bf16", not \'fp16\''),
    "rounding": ("ValueError", 'rounding is "nearest" or "stochastic", not \'up\''),
    "seed": ("ValueError", "seed is from 0 to 2^64 - 1, not -1"),
}


def assert_is(error, kind, words):
    assert error[0] == kind and error[1].startswith(words), error


@pytest.mark.parametrize("which", BETWEEN_RANKS)
@pytest.mark.parametrize("name", STORAGES[:1])
def test_one_error_on_every_rank(name, which):
    """No rank waits, and no weight has changed."""
    first, second = ranks.run(2, "cpu", wrong, name, which)
    assert_is(first, *BETWEEN_RANKS[which])
    assert first == second


@pytest.mark.parametrize("which", OF_ONE)
@pytest.mark.parametrize("name", STORAGES[:1])
def test_wrong_arguments(name, which):
    assert_is(wrong(None, name, which), *OF_ONE[which])


def resized(tensor, bytes):
    """Of which the storage has so many bytes, as FSDP2 frees and makes it."""
    tensor.untyped_storage().resize_(bytes)
    return tensor


def zeros(*shape, **options):
    return torch.zeros(*shape, **{"dtype": torch.uint8} | options)


# The second entry of fsdp_shard_model_weights, for 4096 bytes, and the error about it.
TARGETS = {
    "freed": (lambda: resized(zeros(N), 0), "has been freed: its storage has 0 bytes, .* at 4096"),
    "cut off": (
        lambda: resized(zeros(N), 100),
        "has been freed: its storage has 100 bytes, .* at 4096",
    ),
    "short": (lambda: zeros(N - 1), "has 4095 elements, and 4096 are needed"),
    "long": (lambda: zeros(N + 1), "has 4097 elements, and 4096 are needed"),
    "strided": (lambda: zeros(2 * N)[::2], "is not contiguous"),
    "expanded": (lambda: zeros(1).expand(N), "is not contiguous"),
    "float": (lambda: zeros(N, dtype=torch.float32), "is Float, not Byte"),
    "device": (lambda: zeros(N, device="meta"), "is on meta, not on cpu"),
    "list": (lambda: [0] * N, "is a list, not a uint8 tensor"),
}


@pytest.mark.parametrize("which", TARGETS)
def test_wrong_targets(which):
    """Nothing is written, neither to the weights nor to the right target ahead of the wrong one."""
    value, (make, message) = flats.value_of((64, 64), special=False), TARGETS[which]
    weights, targets = [nc.quantize(value, "fp8_e4m3") for _ in range(2)], [zeros(N), make()]
    before = [{k: v.clone() for k, v in flats.stored(weight).items()} for weight in weights]
    message = f"^weight 1: its entry of fsdp_shard_model_weights {message}"
    with pytest.raises((TypeError, ValueError), match=message):
        nc.quantize_master_weights(weights, [2 * value] * 2, [0, 0], None, targets)
    for weight, old in zip(weights, before, strict=True):
        assert all(same(old[k], v) for k, v in flats.stored(weight).items())
    assert not targets[0].any()
    # Of a weight of which nothing is owned no target is looked at.
    with pytest.raises(ValueError, match="the ranks' shards of weight 1"):
        nc.quantize_master_weights(weights, [value, None], [0, None], None, targets)


@pytest.mark.parametrize("entries", [0, 1, 3])
def test_wrong_number_of_targets(entries):
    value = flats.value_of((64, 64), special=False)
    weights = [nc.quantize(value, "fp8_e4m3") for _ in range(2)]
    before = weights[0].rowwise_data.clone()
    with pytest.raises(ValueError, match=rf"has {entries} entries, and model_weights 2: hand in"):
        nc.quantize_master_weights(weights, [-value] * 2, [0, 0], None, [None] * entries)
    assert same(weights[0].rowwise_data, before)


@pytest.mark.parametrize("stride", [1, 2])
def test_freed_masters(stride):
    """Also of one that is to be copied together before any kernel looks at it."""
    weight = nc.quantize(flats.value_of((64, 64), special=False), "fp8_e4m3")
    master, before = torch.ones(stride * N)[::stride], weight.rowwise_data.clone()
    with pytest.raises(ValueError, match=r"^weight 0: its master shard has been freed.* 0 bytes"):
        nc.quantize_master_weights([weight], [resized(master, 0)], [0])
    assert same(weight.rowwise_data, before)


@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
@ranks.on(2, "cpu")
def test_other_shards_later(mesh, name):
    """A second call whose shards are cut otherwise than those of the first, on all ranks."""
    rank, device = mesh.get_local_rank(), mesh.device_type
    value = flats.value_of((64, 64), special=False).to(device)
    weight = nc.quantize(value, name)
    master, start = flats.shards(value, [0, 2000, N], rank)
    nc.quantize_master_weights([weight], [master], [start], mesh.get_group())
    before = weight.rowwise_data.clone()
    master, start = flats.shards(3 * value, [0, 1000, N], rank)
    with pytest.raises(ValueError, match=r"narrowcast\.flat\.forget"):
        nc.quantize_master_weights([weight], [master], [start], mesh.get_group())
    assert same(weight.rowwise_data, before)
    flat.forget([weight])
    nc.quantize_master_weights([weight], [master], [start], mesh.get_group())
    assert flats.gather(weight, nc.quantize(3 * value, name))


def test_forgotten_weights_are_cut_anew(format):
    value = flats.value_of((64, 64), special=False)
    weight = nc.quantize(value, format)
    nc.quantize_master_weights([weight], [value], [0])
    with pytest.raises(ValueError, match="from 4096 to 4096 comes where 4095 is due"):
        other = nc.quantize(value, format)
        nc.quantize_master_weights([other], [value.view(-1)[:-1]], [0])
    with pytest.raises(ValueError, match=r"narrowcast\.flat\.forget"):
        nc.quantize_master_weights([weight], [value.view(-1)[:-1]], [0])
    nc.quantize_master_weights([weight], [value], [0])
    flat.forget([weight])
    nc.quantize_master_weights([weight], [value], [0])
