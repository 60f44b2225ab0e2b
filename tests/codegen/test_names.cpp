// A format may have any name in lower snake case: what is generated of it compiles beside the
// runtime, whatever C++, the system's headers or the library call by that name.
#include <cstdlib>
#include <cstring>

#include "codegen/emit/emit.hpp"
#include "folder.hpp"
#include "specs.hpp"

namespace narrowcast::codegen::test {
namespace {

// Words of C++ and of Python, macros, namespaces, functions, types and build targets.
constexpr const char* kNames[] = {
    "int",          "float",        "namespace", "operator", "requires",    "co_await",
    "this",         "xor",          "lambda",    "yield",    "errno",       "stdin",
    "stdout",       "stderr",       "assert",    "unix",     "linux",       "offsetof",
    "signbit",      "isnan",        "alloca",    "std",      "narrowcast",  "golden",
    "test",         "baseline",     "avx2",      "avx512",   "cuda",        "mirror",
    "mirrored",     "smaller",      "larger",    "same",     "exchanged",   "ceil_div",
    "cut_step",     "power_of_two", "scale_of",  "row_of",   "data_shape",  "scale_shape",
    "spans_tensor", "table",        "variant",   "route_of", "cpu_machine", "machine_table",
    "cpu_transfer", "format",       "cast",      "gather",   "facts",       "data",
    "scales",       "carry",        "memcpy",    "sqrt",     "uint8_t",     "size_t",
    "nc_format",    "nc_plugin",    "main",      "all",      "install",     "x_options",
};

Plan named(const std::string& name) {
  std::string text = text_of(kSource / "spec/mxfp8_e4m3.toml");
  const size_t at = text.find("\"mxfp8_e4m3\"");
  REQUIRE(at != std::string::npos);
  return plan_of(Source{name + ".toml", text.replace(at + 1, std::strlen("mxfp8_e4m3"), name)});
}

TEST_CASE("whatever a format is called, its C++ compiles") {
  const Folder folder;
  // What a plugin's sources include, so that every name of it is there to be met.
  std::string unit =
      "#include <errno.h>\n#include <math.h>\n#include <signal.h>\n#include <stdio.h>\n"
      "#include \"runtime/gather/cpu_transfer.hpp\"\n#include \"runtime/gather/route.hpp\"\n"
      "#include \"runtime/golden/test_main.hpp\"\n#include \"runtime/launch/cpu_kernels.hpp\"\n"
      "#include \"runtime/launch/machine_table.hpp\"\n#include \"runtime/plugin/export.hpp\"\n";
  for (const std::string name : kNames) {
    const Plan plan = named(name);
    for (const Emitter& emitter : emitters(Kind::kWeight))
      put(folder.path / "generated" / (name + std::string(emitter.file)), emitter.emit(plan));
    for (const char* header : {"cast.hpp", "gather.hpp"})
      unit += "#include \"generated/" + name + "/" + header + "\"\n";
  }
  for (const std::string name : kNames) {
    unit.append("#define main test_of_").append(name);
    unit.append("\n#include \"generated/").append(name).append("/test.cpp\"\n#undef main\n");
  }
  // The sources of a plugin, for one name that no C++ could have.
  unit +=
      "#define NC_FORMAT format_int\n#include \"runtime/plugin/cpu_machine.cpp\"\n"
      "#include \"runtime/plugin/plugin.cpp\"\n";
  put(folder.path / "unit.cpp", unit);
  const std::string command =
      std::string(NARROWCAST_CXX_COMPILER) +
      " -std=c++20 -fsyntax-only -Wno-psabi -DNC_VARIANT=baseline -I" + folder.path.string() +
      " -I" + (folder.path / "generated/int").string() + " -I" + kSource.string() +
      " -I" NARROWCAST_RULES_FOLDER " " + (folder.path / "unit.cpp").string();
  CHECK(std::system(command.c_str()) == 0);
}

}  // namespace
}  // namespace narrowcast::codegen::test
