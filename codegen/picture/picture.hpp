// The picture of a format in memory: for both usages the data and the scales as they are stored,
// and the bytes that begin their rows. Every number and every place follows from the layouts.
#pragma once

#include <string>

#include "codegen/plan.hpp"

namespace narrowcast::codegen {

struct Picture {
  int width, height;
  std::string elements;  // of an SVG document, styled by the classes that emit/picture.cpp defines
};

// Of the plan's example.
Picture picture_of(const Plan& plan);

}  // namespace narrowcast::codegen
