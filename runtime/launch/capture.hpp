// Whether a stream's work is recorded for a CUDA graph instead of done.
#pragma once

#include <cstdint>

namespace narrowcast {

// The number of the capture that records it, unlike all others' of the process; 0: it is done.
// `stream`: cudaStream_t.
uint64_t capture_of(void* stream);

}  // namespace narrowcast
