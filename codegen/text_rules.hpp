// The rules of validate.hpp that speak of one key each: the vocabulary's number, names and texts.
#pragma once

#include "codegen/diagnostic.hpp"
#include "codegen/format.hpp"

namespace narrowcast::codegen {

void vocabulary_is_known(const Format& format, Diagnostics& diagnostics);
void name_is_an_identifier(const Format& format, Diagnostics& diagnostics);
void name_is_not_self(const Format& format, Diagnostics& diagnostics);
void name_is_short(const Format& format, Diagnostics& diagnostics);
void name_is_the_file_name(const Format& format, Diagnostics& diagnostics);
void summary_is_one_sentence(const Format& format, Diagnostics& diagnostics);
void reference_is_one_line(const Format& format, Diagnostics& diagnostics);

}  // namespace narrowcast::codegen
