/* How an optimizer's state can be stored in fewer bits: a part of the table (table.h). */
#ifndef NARROWCAST_RUNTIME_PLUGIN_STATE_H_
#define NARROWCAST_RUNTIME_PLUGIN_STATE_H_

#include <stdint.h>

/* A code of eight bits for each element, and a float32 scale for each block of a row, whose last
   one may be short. */
typedef struct nc_state_format {
  const char* name;
  const char* summary;
  const char* reference;
  int64_t block;   /* elements of a row */
  int64_t root[2]; /* codes are of the value's root: of a state of both signs, of a nonnegative one
                      (runtime/state/root_code.hpp) */
} nc_state_format;

#endif
