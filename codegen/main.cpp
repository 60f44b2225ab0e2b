// narrowcast-codegen: specs in, a folder of generated files for each format out.
#include <exception>
#include <filesystem>
#include <iostream>
#include <optional>
#include <vector>

#include "codegen/emit/emit.hpp"
#include "codegen/golden_file.hpp"
#include "codegen/load.hpp"
#include "codegen/origin.hpp"
#include "codegen/output.hpp"

namespace narrowcast::codegen {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUsage =
    "usage: narrowcast-codegen [--all] [--check] [--golden DIR] [--known DIR] -o DIR SPEC...\n"
    "       narrowcast-codegen --check-specs [--known DIR] SPEC...\n"
    "\n"
    "  -o DIR         write DIR/<format>/ for each spec: only what changed; what is stale there is "
    "removed\n"
    "  --all          the specs are all formats of DIR, as in the source tree: also write "
    "DIR/README.md, which\n"
    "                 compares them, and remove what was made in DIR of specs that are gone\n"
    "  --check        write nothing; fail if DIR is not what the specs make\n"
    "  --golden DIR   keep each format's golden bytes in DIR/<format>.txt: written once, compared "
    "ever after\n"
    "  --known DIR    the specs of DIR, too, can be named by [matmul] of these\n"
    "  --check-specs  only read the specs, and print every error\n";

struct Arguments {
  bool all = false, check = false, check_specs = false;
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
    if (word == "--all") {
      arguments.all = true;
    } else if (word == "--check") {
      arguments.check = true;
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

void print(const std::string& what, const fs::path& root, const std::vector<std::string>& paths) {
  for (const std::string& path : paths) std::cout << what << " " << (root / path).string() << "\n";
}

int run(const Arguments& arguments) {
  std::optional<std::vector<Plan>> plans = load_plans(arguments.specs, arguments.known, std::cerr);
  if (!plans) return 1;
  if (arguments.check_specs) return 0;

  Output output(arguments.all ? Scope::kAllFormats : Scope::kOwnFolders);
  if (arguments.all) output.add("README.md", emit_index(*plans));
  bool golden = true;
  for (Plan& plan : *plans) {
    if (arguments.all) plan.origin = origin_in_tree(plan.name);
    for (const Emitter& emitter : emitters())
      output.add(plan.name + "/" + std::string(emitter.file), emitter.emit(plan));
    if (arguments.golden.empty()) continue;
    golden &= keep_golden(plan, arguments.golden, arguments.check, std::cout, std::cerr);
  }
  if (!golden) return 1;

  const Difference difference =
      arguments.check ? output.compare(arguments.output) : output.write(arguments.output);
  print(arguments.check ? "not fresh:" : "wrote", arguments.output, difference.changed);
  print(arguments.check ? "stale:" : "removed", arguments.output, difference.stale);
  if (!arguments.check || difference.empty()) return 0;
  std::cerr << "error: " << arguments.output
            << " is not what the specs make; run `make regenerate`\n";
  return 1;
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
