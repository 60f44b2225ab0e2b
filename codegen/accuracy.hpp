// What a format loses: the error of a fixed Gaussian matrix that is quantized and decoded by the
// scalar cast of golden.hpp.
#pragma once

#include <string>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

// Of the matrix X and what a usage keeps of it, Q.
struct Accuracy {
  double relative_error;   // sqrt(sum (Q - X)^2 / sum X^2)
  double signal_to_noise;  // the same in decibels, -20 log10
};

struct Accuracies {
  Accuracy rowwise, columnwise;
};
Accuracies accuracy_of(const Plan& plan);

// "2.62 %", "31.6 dB": in about the digits that another sample of this size would share.
std::string error_text(const Accuracy& accuracy);
std::string decibels_text(const Accuracy& accuracy);

// What was measured, and how: a paragraph for pages.
std::string accuracy_method();

}  // namespace narrowcast::codegen
