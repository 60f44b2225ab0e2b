/* What a format's plugin exports: its facts, and its functions for each machine. Plain C, so that a
   plugin and the library that loads it need not come from one compiler. A change here is a new
   NC_PLUGIN_VERSION. */
#ifndef NARROWCAST_RUNTIME_PLUGIN_TABLE_H_
#define NARROWCAST_RUNTIME_PLUGIN_TABLE_H_

#include <stdint.h>

#include "runtime/geometry/layout.h"

#define NC_PLUGIN_MAGIC 0x6e63706cu /* "ncpl" */
#define NC_PLUGIN_VERSION 2u
#define NC_PLUGIN_ENTRY "narrowcast_plugin"

typedef enum nc_dtype { NC_F32 = 0, NC_BF16 = 1, NC_F16 = 2 } nc_dtype;

/* The buffers of a quantized tensor, in the order of every table. */
typedef enum nc_buffer {
  NC_ROWWISE_DATA = 0,
  NC_ROWWISE_SCALE = 1,
  NC_COLUMNWISE_DATA = 2,
  NC_COLUMNWISE_SCALE = 3,
  NC_BUFFER_COUNT = 4
} nc_buffer;

/* Which all-gather carries a buffer. */
typedef enum nc_gather {
  NC_GATHER_NEVER = 0,   /* derived after arrival */
  NC_GATHER_FORWARD = 1, /* the forward's gather, when each pass gathers its own usage */
  NC_GATHER_BACKWARD = 2,
  NC_GATHER_ALWAYS = 3 /* both passes gather the same bytes */
} nc_gather;

/* How a cut of the matrix's rows lies in one buffer: `rows` rows of the matrix are `entries`
   entries (bytes of data, or scales) along `dimension` of the stored buffer, which is padded to
   multiples of `pad`. */
typedef struct nc_cut {
  int32_t buffer;    /* nc_buffer */
  int32_t dimension; /* 0 or 1; -1: one scale for the tensor, in every piece */
  int64_t rows;      /* a cut at a multiple of this leaves every byte whole */
  int64_t entries;   /* entries to `rows` rows */
  int64_t pad;       /* the stored dimension is padded to a multiple of this */
  int64_t
      repeat[2];  /* along each stored dimension, equal neighbours of which the wire carries one */
  int32_t gather; /* nc_gather */
  int32_t reserved;
} nc_cut;

/* The facts of a format, as derived from its spec. */
typedef struct nc_format {
  const char* name;
  const char* summary;
  const char* reference;
  const char* element;      /* "e4m3", ... */
  const char* packing;      /* "dense" or "byte" */
  const char* scale;        /* "e8m0", "e4m3" or "f32" */
  const char* tensor_scale; /* "f32", or NULL in a one-level format */
  const char* scale_rule;   /* "rceil", ... */
  const char* amax;         /* "current" or "delayed" */
  nc_layout rowwise;
  nc_layout columnwise;
  int32_t columnwise_derived; /* columnwise is a rearrangement of the rowwise bytes */
  int32_t tensor_amax;     /* a scale spans the tensor: `amax` is stored, and reduced over shards */
  int64_t row_step;        /* rows at whose multiples a tensor can be cut, both usages */
  int64_t shard_row_step;  /* the same for the buffers that a shard keeps */
  double bits_per_element; /* one usage as stored, without padding */
  double wire_bits_per_element; /* the same, without repetition */
  nc_cut cuts[NC_BUFFER_COUNT];
} nc_format;

#define NC_HISTORY_LENGTH 1024

/* What delayed scaling keeps for a tensor: docs/numerics.md, "Delayed scaling". */
typedef struct nc_history {
  float present;                 /* the multiplier of encoding behind the present bytes */
  float next;                    /* the one that the next update encodes with */
  float amax[NC_HISTORY_LENGTH]; /* of the tensor's last casts, the newest first; 0 where there was
                                    none */
} nc_history;

/* One matrix of a launch. Pointers are to the memory of the machine that runs it; a NULL buffer is
 * not written. */
typedef struct nc_tensor {
  int64_t rows, columns;
  int64_t first_tile; /* index of the tensor's first tile in the launch; see nc_machine.tile_rows */
  void* value;        /* [rows, columns] of value_dtype: the source of a cast, the fp32 master of an
                         update, the result of a decoding */
  void* exp_avg;      /* [rows, columns] of state_dtype */
  void* exp_avg_sq;
  void* parameter; /* [rows, columns] of value_dtype: where an unquantized parameter's rounded copy
                      goes; NULL otherwise */
  void* buffer[NC_BUFFER_COUNT];
  float* amax;         /* the tensor's stored amax, or NULL */
  nc_history* history; /* of formats whose amax is delayed; else NULL */
  /* Stochastic rounding: what the random word of an element is a function of. */
  uint64_t seed;
  uint64_t step;       /* outside an update; an update has nc_step.t */
  uint64_t first;      /* index of `value`'s first element in the whole tensor */
  int32_t value_dtype; /* nc_dtype */
  int32_t state_dtype; /* NC_F32 or NC_BF16 */
} nc_tensor;

/* What an update of one tensor needs anew each step: the constants of docs/numerics.md, "Adam". */
typedef struct nc_step {
  int64_t t;          /* the number of the update, from 1 */
  const void* grad;   /* NULL: no gradient, so nothing of the tensor changes */
  int32_t grad_dtype; /* nc_dtype */
  int32_t decoupled;  /* weight decay as in AdamW (1) or as an L2 term (0) */
  float beta1, beta2, one_minus_beta1, one_minus_beta2;
  float rcp_bias1, rcp_bias2; /* 1 / (1 - beta^t) */
  float learning_rate, epsilon, weight_decay;
  float grad_multiplier; /* 1 / grad_scale; used only if `scaled` */
  int32_t scaled;
  int32_t reserved;
} nc_step;

/* Runs body(context, begin, end) over disjoint ranges that cover [0, count), in any order and on
   any threads, and returns when all are done. The caller owns the threads. */
typedef void (*nc_parallel_for)(int64_t count,
                                void (*body)(void* context, int64_t begin, int64_t end),
                                void* context);

typedef struct nc_launch {
  const nc_tensor* tensors; /* in the machine's memory */
  const nc_step* steps;     /* likewise, one a tensor; NULL outside an update */
  float* amax; /* likewise, one float a tensor: what reduce_amax and update_amax find, and cast
                  uses. NULL if not nc_format.tensor_amax */
  const float* found_inf;       /* likewise, or NULL: if not 0, nothing changes */
  int64_t count;                /* tensors */
  int64_t tiles;                /* of all tensors */
  int32_t source_bf16;          /* round values to bf16 before the amax and the cast */
  int32_t stochastic;           /* codes are rounded stochastically, not to nearest */
  void* stream;                 /* cudaStream_t */
  nc_parallel_for parallel_for; /* CPU only; NULL: the calling thread does all */
} nc_launch;

/* Each function returns NULL, or a sentence that says what failed; the string lives as long as the
   plugin. A function that a format does not need is NULL. */
typedef const char* (*nc_function)(const nc_launch* launch);

typedef struct nc_machine {
  int64_t tile_rows, tile_columns;
  nc_function reduce_amax; /* tensor_amax formats: amax[i] = max(amax[i], largest magnitude of
                              value); NaN is dropped */
  nc_function cast;        /* value -> buffers (and the tensor's amax). With delayed amax: encoded
                              with history->present, and the amax is left to the history */
  nc_function update;      /* Adam, then cast, in one pass; NULL where the cast must wait for the
                              amax. With delayed amax: encoded with history->next, and reduce_amax
                              in the same pass; then `record_amax` */
  nc_function update_amax; /* Adam, and reduce_amax of the new master: the first of two passes; then
                              `cast`. NULL where `update` is not */
  nc_function start_history; /* delayed amax: a history that begins with amax[i], from which both
                                multipliers follow; then `cast` */
  nc_function record_amax;   /* delayed amax, after an update: amax[i] enters the history, `next`
                                becomes `present`, and a new `next` follows */
  nc_function derive_columnwise;  /* rowwise buffers -> columnwise buffers; NULL unless
                                     nc_format.columnwise_derived */
  nc_function dequantize_rowwise; /* buffers -> value, of value_dtype */
  nc_function dequantize_columnwise;
} nc_machine;

typedef struct nc_plugin {
  uint32_t magic;   /* NC_PLUGIN_MAGIC */
  uint32_t version; /* NC_PLUGIN_VERSION */
  uint32_t size;    /* sizeof(nc_plugin) of the plugin's compiler */
  uint32_t reserved;
  const nc_format* format;
  const nc_machine* cpu;  /* the fastest variant for this processor */
  const nc_machine* cuda; /* NULL if the plugin was built without CUDA */
  const char* const*
      cpu_variants; /* names of all CPU variants that this processor runs, NULL at the end */
  const nc_machine* (*cpu_variant)(
      const char* name); /* one of them, for tests; NULL for another name */
} nc_plugin;

/* The one exported function: `const nc_plugin* narrowcast_plugin(void)`. */
typedef const nc_plugin* (*nc_plugin_entry)(void);

#endif
