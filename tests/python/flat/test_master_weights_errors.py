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


BETWEEN_RANKS = ("overlap", "gap", "fewer")  # each rank's arguments make sense


@pytest.mark.parametrize("which", BETWEEN_RANKS)
@pytest.mark.parametrize("name", STORAGES[:1])
def test_one_error_on_every_rank(name, which):
    """No rank waits, and no weight has changed."""
    answers = ranks.run(2, "cpu", wrong, name, which)
    assert None not in answers, answers
    assert answers[0] == answers[1]


@pytest.mark.parametrize("which", [one for one in WRONG if one not in BETWEEN_RANKS])
@pytest.mark.parametrize("name", STORAGES[:1])
def test_wrong_arguments(name, which):
    error = wrong(None, name, which)
    assert error is not None and error[0] in ("ValueError", "TypeError"), error


def later(mesh, name):
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


@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
def test_other_shards_later(name):
    ranks.run(2, "cpu", later, name)


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
