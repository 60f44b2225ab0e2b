// The update of plain parameters as a file that is loaded: of a rule that narrowcast itself lacks.
#include "runtime/optimizer/plain.hpp"
#include "runtime/plugin/export.hpp"

NC_EXPORT const nc_plugin* narrowcast_plugin() { return &narrowcast::plain_plugin(); }
