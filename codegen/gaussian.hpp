// A fixed sample of the standard normal distribution, for the errors that pages state.
//
// The same on every machine: fp64 sums, products, quotients and square roots, which IEEE rounds in
// one way, and nothing from the mathematical library, which every machine has its own of.
#pragma once

#include <cstdint>
#include <vector>

namespace narrowcast::codegen {

// The first `count` numbers, by Marsaglia's polar method. Pair i = 0, 1, ... is made from the words
// scrambled(2i + 1) and scrambled(2i + 2) of runtime/golden/matrix.hpp: with
//   u, v = (word + 1/2) / 2^31 - 1    and    s = u^2 + v^2,
// it is skipped unless s < 1, else gives u f and v f, f = sqrt(-2 ln(s) / s), each rounded to fp32.
std::vector<float> gaussian_sample(int64_t count);

// The natural logarithm of a positive normal number, to about an ulp or two.
double logarithm(double x);

}  // namespace narrowcast::codegen
