// What the end of a plugin's build writes behind its file, and what is read before the file is
// opened: the system's loader trusts a library's headers, and faults where they are damaged.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/plugin/export.hpp"
#include "runtime/plugin/table.h"

namespace narrowcast {

// The last bytes of the file, the same in every version. The checksum tells a file that is as it
// was built from one that was damaged. It is no signature: whoever changes a file on purpose can
// write another trailer behind it.
struct Trailer {
  char mark[16];
  uint64_t version;        // NC_PLUGIN_VERSION
  uint64_t headers;        // headers_hash() of the library that the plugin is for
  uint64_t library_bytes;  // of the file before the trailer
  uint64_t checksum;       // of those bytes, and of the trailer above
};

// A library's bytes with a trailer, in the place of one that is there.
std::vector<char> with_trailer(std::span<const char> library, uint64_t version = NC_PLUGIN_VERSION,
                               uint64_t headers = headers_hash());

// Empty, or a sentence that says why the file cannot be read.
std::string read_file(const std::string& path, std::vector<char>& bytes);

// Empty if the file is a plugin of this library's version and headers, and as it was built;
// otherwise a sentence that says what is wrong with it, and what to do.
std::string file_fault(std::span<const char> file);

// The same of the file that a path names, which need not be one.
std::string plugin_fault(const std::string& path);

// The same of the version and the headers that a plugin says it was built with.
std::string build_fault(uint64_t version, uint64_t headers);

}  // namespace narrowcast
