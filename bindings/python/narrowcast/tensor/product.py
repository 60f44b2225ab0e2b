"""Products of matrices with a weight, in training or of bytes alone: which operators they are, and
F.linear as one call of C++.
"""

import torch

from narrowcast import _C
from narrowcast.tensor import compiling

aten = torch.ops.aten
# The operators that functions of products come to.
PRODUCTS = {
    *(aten.mm.default, aten.bmm.default, aten.mv.default, aten.addmm.default),
    *(aten.addmv.default, aten.baddbmm.default, aten.addbmm.default, aten.linear.default),
    *(aten.matmul.default, aten._grouped_mm.default, aten.dot.default),
    *(aten.embedding.default, aten.convolution.default, aten.convolution_backward.default),
    *(aten._embedding_bag.default, aten._embedding_bag_forward_only.default),
    *(aten._trilinear.default, aten._cudnn_rnn.default, aten._cudnn_rnn_backward.default),
    *(aten.mkldnn_rnn_layer.default, aten.mkldnn_rnn_layer_backward.default),
    *(aten._native_multi_head_attention.default, aten._transformer_encoder_layer_fwd.default),
}


def by_one_call(input, weight, bias) -> torch.Tensor | None:
    """The product of a QuantizedTensor or a MasterWeight whose bytes are fresh. None: no matrix
    product of float32, bfloat16 or float16, or one of a nest of such.
    """
    view = weight._view
    is_scaled = view.store.config.matmul == "scaled"
    if _C.is_watched():
        compiling.check_export(weight.describe())
        return _C.linear(input, weight, bias, is_scaled)
    return _C.linear(input, weight, bias, is_scaled, view.operand(), view.key if is_scaled else 0)


def check_transform(weight) -> None:
    """NotImplementedError of a weight whose products are scaled."""
    if weight.config.matmul == "scaled":
        raise NotImplementedError(
            f"{weight.describe()}: scaled products are those of F.linear with the weight itself, "
            "outside of torch.func's transforms and forward-mode differentiation. Convert with "
            'matmul="dequantized" for others'
        )
