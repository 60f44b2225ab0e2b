/* What a format's plugin exports: its facts, and its functions for each machine. Plain C, so that a
   plugin and the library that loads it need not come from one compiler. A change here, or in what
   is included here, is a new NC_PLUGIN_VERSION; both sides compare a hash of these headers as well
   (headers_hash() of export.hpp). Structs have no padding. */
#ifndef NARROWCAST_RUNTIME_PLUGIN_TABLE_H_
#define NARROWCAST_RUNTIME_PLUGIN_TABLE_H_

#include <stdint.h>

#include "runtime/plugin/facts.h"
#include "runtime/plugin/launch.h"
#include "runtime/plugin/parts.h"
#include "runtime/plugin/rule.h"
#include "runtime/plugin/state.h"
#include "runtime/plugin/transfer.h"

#define NC_PLUGIN_VERSION 12u
#define NC_PLUGIN_ENTRY "narrowcast_plugin"

/* Each function returns NULL, or a sentence that says what failed; the string lives as long as the
   plugin. A function that a format does not need is NULL. */
typedef const char* (*nc_function)(const nc_launch* launch);
typedef const char* (*nc_transfer_function)(const nc_transfer* transfer);
typedef const char* (*nc_parts_function)(const nc_parts* parts);
typedef const char* (*nc_begin_function)(const nc_begin* begin);

/* A step by a rule. */
typedef struct nc_update {
  nc_function update; /* the step, then cast, in one pass; NULL where the cast must wait for the
                         amax. With delayed amax: encoded with history->next, and reduce_amax
                         in the same pass; then `record_amax` */
  nc_function update_amax; /* the step, and collect of the new master: the first of two passes; then
                              `cast`. NULL where `update` is not */
  nc_begin_function begin; /* before either, the steps of a launch; NULL on the CPU, where the host
                              makes them by nc_update_rule.at_step */
} nc_update;

typedef struct nc_machine {
  int64_t tile_rows, tile_columns;
  int64_t step_rows; /* of the steps in which a tile is worked through: a whole number of them */
  int64_t decode_tile_rows[2]; /* of dequantize_rowwise and dequantize_columnwise, in the place of
                                  tile_rows */
  int64_t derive_tile_rows;    /* of derive_columnwise, likewise */
  nc_function reduce_amax;     /* tensor_amax formats: amax[i] = max(amax[i], largest magnitude of
                                  value); NaN is dropped */
  nc_function cast;          /* value -> buffers (and the tensor's amax). With delayed amax: encoded
                                with history->present, and the amax is left to the history */
  nc_function collect;       /* of flat shards: the owner's part of what nc_seams shares, and
                                tensor_amax formats: reduce_amax. With delayed amax also the cast, as
                                an update's; then record_amax */
  const nc_update* updates;  /* one for each of nc_plugin.update_rules */
  nc_function start_history; /* delayed amax: a history that begins with amax[i], from which both
                                multipliers follow; then `cast` */
  nc_function record_amax;   /* delayed amax, after an update: amax[i] enters the history, `next`
                                becomes `present`, and a new `next` follows */
  nc_function derive_columnwise;  /* rowwise buffers -> columnwise buffers; NULL unless
                                     nc_format.columnwise_derived */
  nc_function dequantize_rowwise; /* buffers -> value, of value_dtype. Two levels: the tensor scale
                                     is left out where `amax` is NULL */
  nc_function dequantize_columnwise;
  nc_transfer_function pack;   /* shards' buffers -> this rank's payloads, every byte of them */
  nc_transfer_function unpack; /* the payloads of all ranks -> the whole matrices' buffers, every
                                  byte of them: padding is written as zeros */
  /* NULL unless casts_parts() of runtime/reduce/part.hpp: */
  nc_parts_function cast_parts; /* values -> bytes. What is not finite makes its scale NaN */
  nc_parts_function add_parts;  /* bytes, decoded, and the own part of the values, added in float32
                                   in the order of ranks, then divided -> sum */
} nc_machine;

typedef struct nc_plugin {
  uint64_t version; /* NC_PLUGIN_VERSION */
  uint64_t headers; /* headers_hash() */
  const nc_format* format;
  const nc_update_rule* update_rules;
  int64_t update_rule_count;
  const nc_state_format* state_formats;
  int64_t state_format_count;
  const nc_machine* cpu;  /* the fastest variant for this processor */
  const nc_machine* cuda; /* NULL if the plugin was built without CUDA */
  const char* const*
      cpu_variants; /* names of all CPU variants that this processor runs, NULL at the end */
  const nc_machine* (*cpu_variant)(
      const char* name); /* one of them, for tests; NULL for another name */
  /* What the gather of a phase (nc_phase) carries. `alone`: 1 if the weight is gathered for this
     phase alone; 0 if for the forward and the backward in turn, whose payloads then have the size
     of the larger. */
  void (*route)(int32_t phase, int32_t alone, int64_t rows, int64_t columns, int64_t shard_rows,
                int64_t world, nc_route* out);
} nc_plugin;

/* The one exported function: `const nc_plugin* narrowcast_plugin(void)`. */
typedef const nc_plugin* (*nc_plugin_entry)(void);

#endif
