"""What an input's blocks of 128 x 128 cost a weight's gradient beside groups of 128, and what they
leave alone: decision 0019.
"""

import pytest
import torch

import narrowcast as nc
from models import DEVICES

GROUPS, MIXED = "fp8_block1x128", "fp8_block1x128_128x128"
TOKENS, FEATURES, OUT = 1024, 384, 128


def normal(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)))


def one_large_feature():
    x = normal(TOKENS, FEATURES)
    x[::128, 7] = 3000
    return x


INPUTS = {
    "normal": lambda: normal(TOKENS, FEATURES),
    "features of many sizes": lambda: normal(TOKENS, FEATURES) * torch.exp(2 * normal(FEATURES)),
    "tokens of many sizes": lambda: normal(TOKENS, FEATURES) * torch.exp(2 * normal(TOKENS, 1)),
    "one large feature": one_large_feature,
}


def gradient_error(x, gradient, format):
    """Relative, in the Frobenius norm, of a weight's gradient."""
    expected = gradient.double().t() @ x.double()
    cast = nc.quantize(x, format, rowwise=False).dequantize(usage="columnwise").double()
    of_output = nc.quantize(gradient, GROUPS, rowwise=False).dequantize(usage="columnwise").double()
    return ((of_output.t() @ cast - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("which", INPUTS)
def test_a_weights_gradient_is_as_near(which, device):
    x, gradient = INPUTS[which]().to(device), normal(TOKENS, OUT).to(device)
    in_groups, in_blocks = (gradient_error(x, gradient, one) for one in (GROUPS, MIXED))
    assert 0.01 < in_groups < 0.05
    assert in_blocks <= 1.01 * in_groups


@pytest.mark.parametrize("device", DEVICES)
def test_rowwise_is_that_of_groups(device):
    """So an output is the same in any batch, and the same as with groups."""
    x = normal(TOKENS, FEATURES).to(device)
    mixed, groups = (nc.quantize(x, one, columnwise=False) for one in (MIXED, GROUPS))
    assert torch.equal(mixed.rowwise_data, groups.rowwise_data)
    assert torch.equal(mixed.rowwise_scale_inv, groups.rowwise_scale_inv)
    alone = nc.quantize(x[5:6], MIXED, columnwise=False)
    assert torch.equal(alone.rowwise_data, mixed.rowwise_data[5:6])


@pytest.mark.parametrize("device", DEVICES)
def test_columnwise_is_that_of_squares(device):
    x = normal(TOKENS, FEATURES).to(device)
    mixed, squares = (nc.quantize(x, one, rowwise=False) for one in (MIXED, "fp8_block128"))
    assert torch.equal(mixed.columnwise_data, squares.columnwise_data)
    assert torch.equal(mixed.columnwise_scale_inv, squares.columnwise_scale_inv)


def test_a_layer_uses_it():
    """All three products of such a weight are of the faster kind."""
    matmul = nc.format("fp8_block128").matmul
    assert matmul.input == MIXED
    assert matmul.gradient == GROUPS
    kinds = {one.kind for one in (matmul.forward, matmul.input_gradient, matmul.weight_gradient)}
    assert kinds == {"1x128 by 128x128"}
