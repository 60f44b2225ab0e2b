// Whether a stream's work is recorded for a CUDA graph instead of done.
#pragma once

namespace narrowcast {

// `stream`: cudaStream_t.
bool is_captured(void* stream);

}  // namespace narrowcast
