#include "codegen/emit/emit.hpp"

#include "codegen/cpp_text.hpp"

namespace narrowcast::codegen {
namespace {

constexpr Emitter kEmitters[] = {{"/format.hpp", emit_format},
                                 {"/cast.hpp", emit_cast},
                                 {"/gather.hpp", emit_gather},
                                 {"/test.cpp", emit_test},
                                 {"/facts.json", emit_facts}};
constexpr Emitter kStateEmitters[] = {{".hpp", emit_state}, {".md", emit_state_page}};

}  // namespace

std::string folder_of(Kind kind) { return kind == Kind::kState ? "states/" : ""; }

std::span<const Emitter> emitters(Kind kind) {
  if (kind == Kind::kState) return kStateEmitters;
  return kEmitters;
}

Printer cpp_file(const Plan& plan, std::string_view what) {
  Printer printer({{"name", plan.name},
                   {"namespace", plan.name_space},
                   {"element", plan.types.element},
                   {"scale", plan.types.scale},
                   {"rule", plan.types.rule},
                   {"decoder", plan.types.decoder}});
  printer.print("$what$\n$origin$", {{"what", comment(what)}, {"origin", comment(plan.origin)}});
  return printer;
}

}  // namespace narrowcast::codegen
