"""Products of matrices with quantized weights.

One F.linear(x, w), x: [..., in], w: [out, in]. In brackets, what an arrow launches; each name is a
file of this package or of bindings/matmul/ and a function there.

    eager: one entry into Python in the forward, and one in the backward

    F.linear
      | __torch_function__ of MasterWeight, or of a gathered or frozen QuantizedTensor
      v
    master/products.py: _linear  casts.before_product: fresh bytes    [a cast, if w was written to]
    linear.py: linear            bytes as they were gathered, or made once
      | tensor/product.py: by_one_call, _C.linear          with w._view.operand(), the bytes
      v
    linear.cpp: linear           autocast, shapes                  [x's conversion, under autocast]
      | apply_linear             saves w itself, and x or x's columnwise bytes
      v
    layer.cpp: layer_forward
      |-- matmul="dequantized"   decode, then ATen's product                [decoding, product]
      '-- matmul="scaled"        cast_input, then scaled_mm        [amax where a scale spans, cast,
                                                                               product, bias]
    backward: Linear::backward   checks that w is the forward's
      | buffers_of_weight        w._view.operand(): what has been gathered for this pass
      v
    layer.cpp: LayerBackward     scaled: ScaledBackward, which casts the gradient      [amax, cast]
      |-- input_gradient         decoded: [decoding, product]; scaled: [product]
      '-- weight_gradient        [product]: of x, or of the bytes that were saved
    scaled_mm.cpp: scaled_mm     tensor cores (tensor_cores.cpp, cublaslt_matmul.cpp)    [product]
                                 or decoded operands               [two decodings, product]

    compiled, traced or under a mode: the same functions, and each step is an operator

    linear.py: linear            narrowcast::linear, which no graph holds: its derivative is taken
      v                          while torch traces
    layer.cpp
      |-- matmul="dequantized"   operators.py: weight_value -> narrowcast::dequantize, aten::mm
      '-- matmul="scaled"        narrowcast::cast, narrowcast::scaled_forward
    backward                     narrowcast::dequantize (with the gradient among its operands, so
                                 that no graph decodes before the backward's gather), aten::mm; or
                                 narrowcast::scaled_backward
    when the graph runs          dequantize.cpp, scaled_mm.cpp, scaled_backward.cpp, which find the
                                 bytes by the weight's key: the kernels            [as above]

narrowcast.megatron calls layer_forward and LayerBackward itself, and communicates between the two
products of the backward. Products without F.linear (x @ w, torch.bmm, what composite functions come
to) are products.py: ATen's own, of decoded values. operators.py has the operators' shapes and
counts of operations.
"""

from narrowcast.matmul import linear, operators, products  # which enter handlers

__all__ = ["linear", "operators", "products"]
