"""nc.quantize_master_weights of what is wrong: one error on every rank, no weight has changed."""

import pytest
import torch
import torch.distributed as dist

import flat
import narrowcast as nc
import ranks
from models import STORAGES, same
from narrowcast import zero

N = 64 * 64


def wrong(mesh, name, which):
    """Calls with something wrong on the last rank, and sees that no weight has changed."""
    rank, device = mesh.get_local_rank(), mesh.device_type
    value = flat.value_of((64, 64), special=False).to(device)
    weights = [nc.quantize(value, name) for _ in range(2)]
    before = [{k: v.clone() for k, v in flat.stored(weight).items()} for weight in weights]
    master, start = flat.shards(2 * value, [0, 2000, N], rank)
    masters, starts, options = [master, master.clone()], [start, start], {}
    if rank == mesh.size() - 1:
        weights, masters, starts, options = WRONG[which](weights, masters, starts)
    error = None
    try:
        nc.quantize_master_weights(weights, masters, starts, mesh.get_group(), **options)
    except Exception as raised:
        error = type(raised).__name__, str(raised)
    for weight, old in zip([w for w in weights if isinstance(w, nc.QuantizedTensor)], before):  # noqa: B905
        assert all(same(old[k], v) for k, v in flat.stored(weight).items() if k in old), which
    return error


WRONG = {
    "overlap": lambda w, m, s: (w, [torch.ones(N), m[1]], [0, s[1]], {}),
    "gap": lambda w, m, s: (w, [m[0][:-1], m[1]], s, {}),
    "dtype": lambda w, m, s: (w, [m[0].to(torch.bfloat16), m[1]], s, {}),
    "length": lambda w, m, s: (w, [torch.ones(N + 1), m[1]], s, {}),
    "negative": lambda w, m, s: (w, m, [-1, s[1]], {}),
    "offset": lambda w, m, s: (w, m, [None, s[1]], {}),
    "device": lambda w, m, s: (w, [m[0].to("meta"), m[1]], s, {}),
    "no format": lambda w, m, s: ([torch.ones(64, 64), w[1]], m, s, {}),
    "twice": lambda w, m, s: ([w[0], w[0]], m, s, {}),
    "lists": lambda w, m, s: (w, m[:1], s, {}),
    "fewer": lambda w, m, s: (w[:1], m[:1], s[:1], {}),
    "none": lambda w, m, s: ([], [], [], {}),
    "view": lambda w, m, s: ([w[0].t(), w[1]], m, s, {}),
    "source": lambda w, m, s: (w, m, s, {"source": "fp16"}),
    "rounding": lambda w, m, s: (w, m, s, {"rounding": "up"}),
    "seed": lambda w, m, s: (w, m, s, {"seed": -1}),
}


BETWEEN_RANKS = ("overlap", "gap", "fewer", "none")  # each rank's arguments make sense


@pytest.mark.parametrize("which", WRONG)
@pytest.mark.parametrize("name", STORAGES[:1])
def test_one_error_on_every_rank(name, which):
    """Nobody waits, and no weight has changed."""
    answers = ranks.run(2, "cpu", wrong, name, which)
    assert None not in answers, answers
    (other, message), (own, reason) = answers
    if which in BETWEEN_RANKS:
        assert answers[0] == answers[1]
        return
    assert own in ("ValueError", "TypeError")
    assert other == "DisagreementError"
    assert f"failed on rank 1 of the group: {own}: {reason}" in message


def later(mesh, name):
    """A second call that is wrong on one rank."""
    rank, device = mesh.get_local_rank(), mesh.device_type
    value = flat.value_of((64, 64), special=False).to(device)
    weight = nc.quantize(value, name)
    master, start = flat.shards(value, [0, 2000, N], rank)
    nc.quantize_master_weights([weight], [master], [start], mesh.get_group())
    before = weight.rowwise_data.clone()
    try:
        nc.quantize_master_weights([weight], [3 * master[rank:]], [start], mesh.get_group())
    except (ValueError, RuntimeError) as error:
        assert same(weight.rowwise_data, before)
        master, start = flat.shards(3 * value, [0, 1000, N], rank)
        nc.quantize_master_weights([weight], [master], [start], mesh.get_group())  # asks anew
        assert flat.gather(weight, nc.quantize(3 * value, name))
        return type(error).__name__
    return None


@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
def test_other_shards_later(name):
    assert ranks.run(2, "cpu", later, name) == ["DisagreementError", "ValueError"]


def test_forgotten_weights_are_cut_anew(format):
    value = flat.value_of((64, 64), special=False)
    weight = nc.quantize(value, format)
    nc.quantize_master_weights([weight], [value], [0])
    with pytest.raises(ValueError, match="no rank owns elements 4095 to 4096"):
        other = nc.quantize(value, format)
        nc.quantize_master_weights([other], [value.view(-1)[:-1]], [0])
    with pytest.raises(ValueError, match=r"narrowcast\.zero\.forget"):
        nc.quantize_master_weights([weight], [value.view(-1)[:-1]], [0])
    nc.quantize_master_weights([weight], [value], [0])
    zero.forget([weight])
    nc.quantize_master_weights([weight], [value], [0])


def in_two_orders(mesh, name):
    """Two lists of one size, handed in the other way round on the last rank."""
    rank = mesh.get_local_rank()
    values = [flat.value_of((64, 64), seed=place, special=False) for place in range(2)]
    calls = []
    for value in values:
        master, start = flat.shards(value, [0, 2000, N], rank)
        calls.append(([nc.quantize(value, name)], [master], [start], mesh.get_group()))
        nc.quantize_master_weights(*calls[-1])
    said = []
    for call in calls if rank == 0 else calls[::-1]:
        before = call[0][0].rowwise_data.clone()
        try:
            nc.quantize_master_weights(*call)
        except RuntimeError as error:
            said.append(f"{type(error).__name__}: {error}")
        assert same(call[0][0].rowwise_data, before)
    for call, value in zip(calls, values, strict=True):
        nc.quantize_master_weights(*call)
        assert flat.gather(call[0][0], nc.quantize(value, name))
    return said


@pytest.mark.parametrize("name", [n for n in STORAGES if not nc.format(n).is_delayed])
def test_lists_in_two_orders(name):
    for said in ranks.run(2, "cpu", in_two_orders, name):
        assert len(said) == 2
        assert all("lists of weights in different orders" in one for one in said)


class Exhausted(torch.Tensor):
    """Of which no copy can be made."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func in (torch.Tensor.reshape, torch.Tensor.contiguous, torch.Tensor.view):
            raise torch.OutOfMemoryError("no memory")
        return super().__torch_function__(func, types, args, kwargs or {})


def out_of_memory(mesh):
    """While the last rank reads what it is given, in a second call."""
    value = flat.value_of((64, 64), special=False)
    weight = nc.quantize(value, "mxfp4")
    master, start = flat.shards(value, [0, 2000, N], mesh.get_local_rank())
    nc.quantize_master_weights([weight], [master], [start], mesh.get_group())
    if mesh.get_local_rank() == 1:
        master = torch.stack([master, master]).t()[:, 0].as_subclass(Exhausted)
    try:
        nc.quantize_master_weights([weight], [master], [start], mesh.get_group())
    except Exception as error:
        return type(error).__name__
    return None


def test_whatever_a_rank_fails_with():
    assert ranks.run(2, "cpu", out_of_memory) == ["DisagreementError", "OutOfMemoryError"]


def another_group(mesh):
    """The weights of one process group, handed in with another of the same ranks."""
    value = flat.value_of((64, 64), special=False)
    weight = nc.quantize(value, "nvfp4")
    master, start = flat.shards(value, [0, 1000, 64 * 64], mesh.get_local_rank())
    groups = [dist.new_group([0, 1]) for _ in range(2)]
    nc.quantize_master_weights([weight], [master], [start], groups[0])
    try:
        nc.quantize_master_weights([weight], [master], [start], groups[1])
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_mixed_process_groups():
    first, second = ranks.run(2, "cpu", another_group)
    for said in (first, second):
        assert "ValueError: quantize_master_weights got another process group" in said
