// Scales in the order in which matrix units of sm_100 read them.
#pragma once

#include <ATen/core/Tensor.h>

namespace narrowcast {

// Scales [rows, groups] of a dtype of one byte, with any strides, as swizzled_index() orders them:
// 1-D, of the same dtype, padded with zero bytes to whole tiles. ValueError for other scales.
at::Tensor swizzled(const at::Tensor& scales);

}  // namespace narrowcast
