"""A QuantizedTensor that is saved and loaded, or flattened: the same bytes."""

import io
import pickle

import pytest
import torch
from torch import nn

import narrowcast as nc
from internals import config_of
from matrices import of_shape, weight_of
from models import assert_same, unit


@pytest.mark.parametrize("weights_only", [True, False])
def test_saved_and_loaded(format, weights_only):
    one = unit(format)
    longer = of_shape(format, rows=2 * one)[1]
    for q in (longer, weight_of(format), weight_of(format, dtype=torch.bfloat16)):
        file = io.BytesIO()
        torch.save({"q": q, "part": longer[one:]}, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=weights_only)
        assert type(loaded["q"]) is nc.QuantizedTensor
        assert isinstance(loaded["q"], nn.Parameter) == isinstance(q, nn.Parameter)
        assert loaded["q"].dtype == q.dtype
        assert_same(loaded["q"], q)
        assert_same(loaded["part"], longer[one:])
        assert_same(pickle.loads(pickle.dumps(q)), q)


def test_flatten_and_unflatten(format):
    q = weight_of(format).detach()
    names, context = q.__tensor_flatten__()
    assert "_inner_rowwise_data" in names
    assert all(type(getattr(q, name)) is torch.Tensor for name in names)
    inner = {name: getattr(q, name).clone() for name in names}
    other = nc.QuantizedTensor.__tensor_unflatten__(inner, context, q.shape, q.stride())
    assert_same(other, q)
    assert config_of(other) == config_of(q)._replace(name=None)
