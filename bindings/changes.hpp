// A count of what may make something wrong that has been found out about shards: that a tensor
// looks at another store, that a store has other parts, that bytes are stale.
#pragma once

#include <cstdint>

namespace narrowcast {

// Python's lock guards it.
inline int64_t changes = 0;
inline void note_change() { ++changes; }

}  // namespace narrowcast
