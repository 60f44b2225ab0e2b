"""The definition of scaled products: those of the decoded values of cast operands, in float64;
and a layer that computes them.
"""

import torch
from torch import nn

import narrowcast as nc
from models import one_of_each
from weights import quantized

SCALED = [name for name in nc.formats() if nc.format(name).matmul]
# A format of each way of casting a gradient, and of each gather.
KINDS = one_of_each(
    lambda f: (f.matmul and f.matmul.stochastic_gradient, f.gather, f.tensor_amax, not f.matmul)
)
KINDS = [name for name in KINDS if name in SCALED]
ACCUMULATION = 2**-10  # of a row: the error of the accumulation


def values(x, format, usage):
    """What a cast leaves of a tensor, float64 [rows, columns]. A usage whose codes of neighbouring
    rows share bytes is that of the tensor with rows of zeros added.
    """
    x = x.detach().reshape(-1, x.shape[-1])
    padded = torch.cat([x, x.new_zeros(-len(x) % 24, x.shape[1])])
    cast = nc.quantize(padded, format, rowwise=usage == "rowwise", columnwise=usage != "rowwise")
    return cast.dequantize(usage=usage)[: len(x)].double()


def weight_values(weight, usage):
    return quantized(weight.detach()).dequantize(usage=usage).double()


def forward(x, weight):
    """[..., out_features], without a bias."""
    matmul = weight.format.matmul
    out = values(x, matmul.input, "rowwise") @ weight_values(weight, "rowwise").t()
    return out.view(*x.shape[:-1], out.shape[1])


def input_gradient(gradient, weight):
    """Of a format whose gradients are rounded to nearest."""
    matmul = weight.format.matmul
    out = values(gradient, matmul.gradient, "rowwise") @ weight_values(weight, "columnwise")
    return out.view(*gradient.shape[:-1], out.shape[1])


def weight_gradient(gradient, x, weight):
    """The same."""
    matmul = weight.format.matmul
    return values(gradient, matmul.gradient, "columnwise").t() @ values(
        x, matmul.input, "columnwise"
    )


def row_error(got, expected):
    """The largest relative error of a row, in the 2-norm. float."""
    got, expected = (one.double().reshape(-1, one.shape[-1]) for one in (got, expected))
    if got.numel() == 0:
        return 0.0
    norm = expected.norm(dim=1)
    error = (got - expected).norm(dim=1)
    return (error / norm.clamp_min(torch.finfo(torch.float32).tiny)).max().item()


def layer(format, device="cpu", dtype=torch.float32, inner=96, outer=64, **options):
    torch.manual_seed(0)
    plain = nn.Linear(inner, outer, device=device, dtype=dtype, **options)
    return nc.convert(plain, format, matmul="scaled")
