"""What goes wrong in the field with views, copies and sizes, and not here. Each test says what
happens elsewhere: "TE" is Transformer Engine, "a fallback" a tensor class that decodes whatever it
does not know.
"""

import pytest
import torch

import narrowcast as nc
from internals import tensors_of
from matrices import of_units
from models import BUFFERS, assert_quantized, assert_same, unit
from narrowcast import _C
from narrowcast.tensor import casting, dispatch
from narrowcast.tensor.store import Store

aten = torch.ops.aten


def forbid_decoding(monkeypatch):
    """Decoding and casting raise from here on."""

    def refuse(*args, **kwargs):
        raise AssertionError("decoded or quantized")

    monkeypatch.setattr(casting, "decode", refuse)
    monkeypatch.setattr(Store, "dequantize", refuse)
    for name in ("CastList", "with_columnwise"):
        monkeypatch.setattr(_C, name, refuse)


def test_a_view_with_columnwise_data_only(format):
    # TE takes shape and device of a view from the rowwise data, and fails where there is none.
    x, q = of_units(format, rowwise=False)
    value, u = q.dequantize(usage="columnwise"), unit(format)
    names = [*BUFFERS[2:4], "tensor_amax"]
    assert_same(q.view(3, u, 2 * u), q, names)
    assert_same(q.detach().clone(), nc.quantize(x, format), names)
    for view, index in ((q[u:], slice(u, None)), (q[:, u:], (slice(None), slice(u, None)))):
        assert view.rowwise_data is None
        assert view.shape == value[index].shape
        assert torch.equal(view.dequantize(usage="columnwise"), value[index])


def test_record_stream_does_not_requantize(format, monkeypatch):
    # Where what a class does not know goes through decode, run, quantize, record_stream records a
    # temporary tensor, and makes the bytes anew beside a kernel that reads them.
    (_, q), seen = of_units(format), []
    forbid_decoding(monkeypatch)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: seen.append(self))
    dispatch.run_operator(aten.record_stream.default, (q, "a stream"), {})
    assert {id(tensor) for tensor in seen} == {id(tensor) for tensor in tensors_of(q)}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_record_stream_on_a_gpu(format):
    x, q = of_units(format)
    q, stream = q.cuda(), torch.cuda.Stream()
    q.record_stream(stream)
    assert_quantized(q, x.cuda())


def test_copies_write_in_place(format):
    # A copy_ that runs on a decoded copy leaves the weight as it was; one that makes new buffers
    # leaves views, and the pointers that a captured graph holds, behind.
    x, q = of_units(format)
    view = q[unit(format) :]
    before = [tensor.data_ptr() for tensor in tensors_of(q)]
    assert q.copy_(torch.zeros_like(x)) is q
    assert [tensor.data_ptr() for tensor in tensors_of(q)] == before
    assert_quantized(q, torch.zeros_like(x))
    assert not view.dequantize().any()


def test_scale_padding_in_slices(format):
    # A slice of padded scales carries its neighbour's scales where its own padding should be zero.
    f, u = nc.format(format), unit(format)
    _, q = of_units(format, rows=5, columns=3)
    for part in (q[u : 2 * u], q[u : 2 * u, u : 2 * u], q[4 * u :, u:], q[u : 2 * u].clone()):
        for buffer, name in enumerate(BUFFERS[:4]):
            tensor, used = getattr(part, name).clone(), f.used_shape(buffer, *part.shape)
            assert tensor.shape == f.buffer_shape(buffer, *part.shape)
            tensor[tuple(map(slice, used))] = 0
            assert not tensor.any()


def test_split_does_not_dequantize(format, monkeypatch):
    # A fallback decodes in split: FSDP2 then shards plain tensors, in silence.
    _, q = of_units(format)
    u = unit(format)
    with monkeypatch.context() as patch:
        forbid_decoding(patch)
        parts = [*q.split(u), *q.chunk(3), *q.split(u, dim=1), q[u:], q[:, u:], q.view(-1)]
        parts += [q.detach(), q.clone(), torch.zeros_like(q)]
        parts += [
            torch.empty_like(q).copy_(q),
            q.to(torch.bfloat16),
            q.as_strided((u, u), (2 * u, 1)),
        ]
    assert all(isinstance(part, nc.QuantizedTensor) for part in parts)


def test_odd_numbers_of_nibbles():
    # TE finds the byte of an element by halving an index, and everything after an odd start is one
    # byte early; an odd row length has no whole bytes at all.
    packed = [name for name in nc.formats() if nc.format(name).rowwise.element_bits < 8]
    assert packed
    for name in packed:
        q = nc.quantize(torch.randn(64, 64), name)
        for cut in (lambda q=q: q[:, 33:], lambda q=q: q[31:]):
            with pytest.raises(ValueError, match=name):
                cut()
