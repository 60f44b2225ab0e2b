// Whether two libraries speak of the same thing: what both say of it is equal.
#pragma once

#include "runtime/plugin/table.h"

namespace narrowcast {

// The formats, their texts included, and the tiles of each machine that both have. Neither format,
// that both are of plain parameters, is the same too.
bool same_format(const nc_plugin& one, const nc_plugin& other);

// The options of a rule and what it keeps. What it computes cannot be compared.
bool same_rule(const nc_update_rule& one, const nc_update_rule& other);

}  // namespace narrowcast
