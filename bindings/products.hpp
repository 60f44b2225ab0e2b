// Operators of torch on the buffers of a weight: what graphs of torch.compile hold.
#pragma once

#include <torch/library.h>

namespace narrowcast {

// Adds narrowcast::dequantize and narrowcast::product, for CPU and CUDA, to the library.
void define_products(torch::Library& library);

}  // namespace narrowcast
