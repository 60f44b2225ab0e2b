/* What a rank casts for the others in a reduce-scatter, and adds of what they send: a part of the
   table (table.h). */
#ifndef NARROWCAST_RUNTIME_PLUGIN_PARTS_H_
#define NARROWCAST_RUNTIME_PLUGIN_PARTS_H_

#include <stdint.h>

#include "runtime/plugin/launch.h"

/* Each rank has the parts of all ranks, one after the other, and each part the same number of
   elements. Pointers are to the memory of the machine that runs it. */
typedef struct nc_parts {
  const void* values; /* [ranks, elements] of dtype: what this rank has of each rank's part */
  uint8_t* bytes;     /* [ranks - 1, PartLayout.bytes], at a multiple of 16 bytes. cast_parts: what
                         goes to each of the other ranks; add_parts: what came from each */
  void* sum;          /* add_parts: [elements] of dtype */
  int64_t elements;   /* of a part */
  int64_t ranks, rank;
  uint64_t seed, step; /* stochastic: what the random word of an element is a function of, with */
  uint64_t first;      /* its index in `values`, and a number to begin at */
  int32_t dtype;       /* nc_dtype */
  int32_t stochastic;
  float divisor; /* add_parts: of the sum */
  int32_t reserved;
  void* stream;                 /* cudaStream_t */
  nc_parallel_for parallel_for; /* CPU only; NULL: the calling thread does all */
} nc_parts;

#endif
