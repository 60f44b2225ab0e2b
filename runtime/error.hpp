// Errors of the runtime: what was expected, what came, and what to do.
#pragma once

#include <stdexcept>
#include <string>

namespace narrowcast {

// A file that cannot be loaded as a plugin.
class PluginError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace narrowcast
