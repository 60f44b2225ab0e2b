// What a table must hold before anything is computed from it: a number that no spec gives would be
// divided by, or take a product out of 64 bits.
#pragma once

#include <string>

#include "runtime/plugin/table.h"

namespace narrowcast {

// Empty, or a sentence that names the first field that cannot be, and its value. The table was
// built with this library's headers.
std::string table_fault(const nc_plugin& table);

}  // namespace narrowcast
