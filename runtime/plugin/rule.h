/* An optimizer's rule, beside its kernels: a part of the table (table.h). */
#ifndef NARROWCAST_RUNTIME_PLUGIN_RULE_H_
#define NARROWCAST_RUNTIME_PLUGIN_RULE_H_

#include <stdint.h>

/* The most that a rule has: numbers that it keeps of an element, a group's options, and constants
   of a step. */
#define NC_STATE_COUNT 2
#define NC_OPTION_COUNT 16
#define NC_CONSTANT_COUNT 10

typedef struct nc_update_rule {
  const char* name;
  const char* const* states;  /* their names in an optimizer's state, NULL behind the last */
  const int32_t* nonnegative; /* of each state whether it never is below 0; NULL: the rule's states
                                 are kept in float32 or bfloat16, not in state formats */
  const char* const* options; /* of a group, NULL behind the last */
  /* The constants of the step with number t, from 1. `options`: a number for each name. In float64,
     in the caller's rounding mode, which is to nearest. */
  void (*at_step)(const double* options, int64_t t, float* constants);
} nc_update_rule;

#endif
