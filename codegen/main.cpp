// narrowcast-codegen: specs in, a folder of generated files for each format out.
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <vector>

#include "codegen/emit/emit.hpp"
#include "codegen/files.hpp"
#include "codegen/golden_file.hpp"
#include "codegen/load.hpp"
#include "codegen/origin.hpp"

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: narrowcast-codegen [--in-tree] [--golden DIR] [--known DIR] -o DIR SPEC...\n"
    "       narrowcast-codegen --check-specs [--known DIR] SPEC...\n"
    "\n"
    "  -o DIR         write DIR/<format>/ for each spec, or DIR/states/<format>.*: only what "
    "changed\n"
    "  --in-tree      files say that they are made from the source tree's spec/\n"
    "  --golden DIR   keep each format's golden bytes in DIR/<format>.txt: written once, compared "
    "ever after\n"
    "  --known DIR    the specs of DIR, too, can be named by [matmul] of these\n"
    "  --check-specs  only read the specs, and print every error\n";

struct Arguments {
  bool in_tree = false, check_specs = false;
  std::string output, golden, known;
  std::vector<std::string> specs;
};

// Nothing if the command line makes no sense.
std::optional<Arguments> parse(const std::vector<std::string>& words) {
  Arguments arguments;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    std::string* value = word == "-o"         ? &arguments.output
                         : word == "--golden" ? &arguments.golden
                         : word == "--known"  ? &arguments.known
                                              : nullptr;
    if (value != nullptr && i + 1 == words.size()) return std::nullopt;
    if (word == "--in-tree") {
      arguments.in_tree = true;
    } else if (word == "--check-specs") {
      arguments.check_specs = true;
    } else if (value != nullptr) {
      *value = words[++i];
    } else if (word.starts_with('-')) {
      return std::nullopt;
    } else {
      arguments.specs.push_back(word);
    }
  }
  const bool sensible =
      !arguments.specs.empty() && arguments.check_specs == arguments.output.empty();
  return sensible ? std::optional(arguments) : std::nullopt;
}

int run(const Arguments& arguments) {
  std::optional<std::vector<Plan>> plans = load_plans(arguments.specs, arguments.known, std::cerr);
  if (!plans) return 1;
  if (arguments.check_specs) return 0;

  Files files;
  bool golden = true;
  for (Plan& plan : *plans) {
    const std::string folder = folder_of(plan.kind);
    if (arguments.in_tree) plan.origin = origin_in_tree(folder + plan.name);
    for (const Emitter& emitter : emitters(plan.kind))
      files[folder + plan.name + std::string(emitter.file)] = emitter.emit(plan);
    if (arguments.golden.empty() || plan.kind == Kind::kState) continue;
    golden &= keep_golden(plan, arguments.golden, std::cout, std::cerr);
  }
  if (!golden) return 1;
  for (const std::string& path : write_files(arguments.output, files))
    std::cout << "wrote " << (fs::path(arguments.output) / path).string() << "\n";
  return 0;
}

}  // namespace
}  // namespace narrowcast::codegen

int main(int argc, char** argv) {
  using namespace narrowcast::codegen;
  try {
    const std::optional<Arguments> arguments = parse({argv + 1, argv + argc});
    if (!arguments) {
      std::cerr << kUsage;
      return 2;
    }
    const int status = run(*arguments);
    if (std::cout.flush()) return status;
    std::cerr << "narrowcast-codegen: cannot print what was done: standard output is closed or "
                 "full\n";
    return 1;
  } catch (const std::exception& error) {
    std::cerr << "narrowcast-codegen: " << error.what() << "\n";
    return 1;
  }
}
