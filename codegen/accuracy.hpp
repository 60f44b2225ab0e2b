// What a format loses: the error of a fixed Gaussian matrix of 256 x 256 that is quantized and
// decoded by the scalar cast of golden.hpp.
#pragma once

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// sqrt(sum (Q - X)^2 / sum X^2) of the matrix X and what a usage of the plan keeps of it, Q: the
// same to the bit on every machine.
double relative_error(const Plan& plan, const nc_layout& usage);

}  // namespace narrowcast::codegen
