// One function for each file that the generator makes of a format. An emitter spells what the plan
// says: it holds no arithmetic and no policy.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "codegen/plan.hpp"
#include "codegen/printer.hpp"

namespace narrowcast::codegen {

std::string emit_format(const Plan& plan);      // format.hpp
std::string emit_cast(const Plan& plan);        // cast.hpp
std::string emit_gather(const Plan& plan);      // gather.hpp
std::string emit_test(const Plan& plan);        // test.cpp
std::string emit_facts(const Plan& plan);       // facts.json
std::string emit_state(const Plan& plan);       // a state format's header
std::string emit_state_page(const Plan& plan);  // and its page

// Where the specs of a kind lie under spec/, and what is made of them: "", or a folder with a
// slash.
std::string folder_of(Kind kind);

struct Emitter {
  std::string_view file;  // behind the format's name
  std::string (*emit)(const Plan&);
};
std::span<const Emitter> emitters(Kind kind);

// The constant of format.hpp that the plugin's table points to.
std::string table_facts(const Plan& plan);

// A printer that knows the plan's names, and has printed the head of a C++ file: what the file is,
// and where it comes from.
Printer cpp_file(const Plan& plan, std::string_view what);

}  // namespace narrowcast::codegen
