/* What a format's plugin exports: its facts, and its functions for each machine. Plain C, so that a
   plugin and the library that loads it need not come from one compiler. A change here is a new
   NC_PLUGIN_VERSION, and runtime/plugin/structs.hpp proves that both sides were built from the same
   text. Structs have no padding. */
#ifndef NARROWCAST_RUNTIME_PLUGIN_TABLE_H_
#define NARROWCAST_RUNTIME_PLUGIN_TABLE_H_

#include <stdint.h>

#include "runtime/geometry/layout.h"

#define NC_PLUGIN_MAGIC 0x6e63706cu /* "ncpl" */
#define NC_PLUGIN_VERSION 7u
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

/* What is done with a tensor and depends on its format. */
typedef enum nc_operation {
  NC_CUT = 0,        /* a part of it, over the same bytes */
  NC_TRANSPOSE = 1,  /* rows and columns exchanged, over the same bytes */
  NC_JOIN = 2,       /* one of several */
  NC_WRITE_PART = 3, /* values into a part of it */
  NC_MAKE = 4,       /* a new one of a given shape */
  NC_OPERATION_COUNT = 5
} nc_operation;

typedef struct nc_rule {
  int32_t exact; /* 1: exact on the bytes; 0: an error */
  int32_t reserved;
  const char* text; /* under which condition, or for which reason */
} nc_rule;

/* The matrix products of a linear layer, of operands that are cast: */
typedef enum nc_product_of {
  NC_PRODUCT_FORWARD = 0,         /* input rowwise by weight rowwise */
  NC_PRODUCT_INPUT_GRADIENT = 1,  /* gradient rowwise by weight columnwise */
  NC_PRODUCT_WEIGHT_GRADIENT = 2, /* gradient columnwise by input columnwise */
  NC_PRODUCT_COUNT = 3
} nc_product_of;

/* What a matrix unit multiplies, by the scales of its operands: runtime/products/kinds.hpp. */
typedef enum nc_product_kind {
  NC_DECODED = 0,          /* no unit does: the operands are decoded */
  NC_TENSOR_BY_TENSOR = 1, /* one scale by one scale */
  NC_1X128_BY_128X128 = 2,
  NC_1X128_BY_1X128 = 3,
  NC_1X32_E8M0 = 4,
  NC_1X16_E4M3 = 5, /* under a tensor scale */
  NC_PRODUCT_KIND_COUNT = 6
} nc_product_kind;

typedef struct nc_product {
  int32_t kind; /* nc_product_kind */
  int32_t reserved;
  const char* reason;
} nc_product;

typedef struct nc_products {
  const char* input;    /* the format that a linear layer's input is cast to; NULL: none */
  const char* gradient; /* likewise of its output's gradient */
  nc_product product[NC_PRODUCT_COUNT];
  int64_t stochastic_gradient; /* the gradient's codes are rounded stochastically */
} nc_products;

/* The facts of a format, as derived from its spec. */
typedef struct nc_format {
  const char* name;
  const char* summary;
  const char* reference;
  const char* element;      /* "e4m3", ... */
  const char* packing;      /* "dense" or "byte" */
  const char* scale;        /* "e8m0", "e4m3", "f32", ... */
  const char* scale_dtype;  /* of a stored scale, as torch names it: "uint8", "float32", ... */
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
  nc_rule rules[NC_OPERATION_COUNT];
  nc_products products;
  float tensor_range; /* two levels: a value is element * scale * amax / tensor_range; else 0 */
  int32_t significant_bits; /* of a decoded value, a scale that spans the tensor left aside */
} nc_format;

#define NC_HISTORY_LENGTH 1024

/* What delayed scaling keeps for a tensor: docs/numerics.md, "Delayed scaling". */
typedef struct nc_history {
  float present;                 /* the multiplier of encoding behind the present bytes */
  float next;                    /* the one that the next update encodes with */
  float amax[NC_HISTORY_LENGTH]; /* of the tensor's last casts, the newest first; 0 where there was
                                    none */
} nc_history;

/* A rectangle of a usage's blocks, whose amaxes the owners of a matrix find together. */
typedef struct nc_seam {
  int64_t block_rows, block_columns; /* of which usage: elements of a block */
  int64_t row, column;               /* the first block, counted in blocks */
  int64_t rows, columns;             /* blocks */
  int64_t slot;                      /* of nc_launch.exchange: where the amaxes begin, row by row */
} nc_seam;

/* What an owner of a flat shard shares with others, at the shard's beginning and at its end. What
   is not there has no blocks, or no elements. */
typedef struct nc_seams {
  nc_seam blocks[4];                 /* that a cut divides: of two usages, at two ends */
  int64_t begin[2], end[2], slot[2]; /* elements whose values all owners know, because they share
                                        bytes, and where in nc_launch.exchange */
} nc_seams;

/* One matrix of a launch, or a flat shard of one: a run of its elements, row by row, anywhere cut.
   Pointers are to the memory of the machine that runs it; a NULL buffer is not written. */
typedef struct nc_tensor {
  int64_t rows, columns;
  int64_t first_tile; /* index of the tensor's first tile in the launch; see nc_machine.tile_rows */
  int64_t before, after;      /* elements of the matrix that are other owners', ahead of the shard
                                 and behind it; of casts, updates and their amaxes */
  int64_t first_row, end_row; /* rows whose tiles the launch visits, the first at a multiple of
                                 tile_rows, or where only a step is visited of step_rows; end_row
                                 0: all */
  const nc_seams* seams;      /* NULL where nothing is shared with other owners */
  void* value;   /* [rows, columns] of value_dtype: the source of a cast, the fp32 master of an
                    update, the result of a decoding. Of a flat shard this, and all that has a
                    value's shape, is where the matrix's first element would lie, had the shard
                    all of it */
  void* exp_avg; /* [rows, columns] of state_dtype */
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

/* Tensors that a kernel can take among its parameters, of which every GPU passes 4 KB. */
#define NC_PARAMETER_TENSORS 16

typedef struct nc_launch {
  const nc_tensor* tensors; /* in the machine's memory, but see host_tables */
  const nc_step* steps;     /* likewise, one a tensor; NULL outside an update */
  float* amax; /* in the machine's memory, one float a tensor: what reduce_amax and update_amax
                  find, and cast uses, which stores it as the tensor's own: in another place. NULL
                  if not nc_format.tensor_amax */
  const float* verdict;   /* likewise, or NULL: where it is negative, cast, start_history and
                             record_amax change nothing of the tensor */
  const float* found_inf; /* likewise, or NULL: if not 0, nothing changes */
  int64_t count;          /* tensors */
  int64_t tiles;          /* of all tensors */
  int32_t source_bf16;    /* round values to bf16 before the amax and the cast */
  int32_t stochastic;     /* codes are rounded stochastically, not to nearest */
  int32_t host_tables;    /* GPU only: `tensors` and `steps` are in the host's memory, are read
                             before the function returns, and have NC_PARAMETER_TENSORS
                             entries at most */
  int32_t reserved;
  float* exchange; /* in the machine's memory: what nc_seams has slots of; NULL: nothing.
                      collect, update and update_amax write the owner's part, cast reads that
                      of all: the maxima of the bits, as integers with a sign. Where an owner
                      has no part there are the bits of 0 for an amax, of INT32_MIN for a
                      value */
  void* stream;    /* cudaStream_t */
  nc_parallel_for parallel_for; /* CPU only; NULL: the calling thread does all */
} nc_launch;

/* Which passes an all-gather serves, and so which usages it carries. In a format whose columnwise
   is derived, every gather carries rowwise alone. */
typedef enum nc_phase { NC_FORWARD = 0, NC_BACKWARD = 1, NC_BOTH = 2 } nc_phase;

#define NC_MAX_PAYLOADS 3

/* A buffer's place in each rank's payload: bytes begin to end hold it as a shard of shard_rows rows
   has it, without padding, and one of each run of equal neighbours. */
typedef struct nc_segment {
  int32_t buffer;  /* nc_buffer */
  int32_t payload; /* which of the route's */
  int64_t begin, end;
  int32_t in_place;  /* what arrives in the payload's slot, from `begin` on, is the whole buffer:
                        nothing is unpacked */
  int32_t as_stored; /* the buffer of a shard of shard_rows rows is its payload, byte for byte: it
                        can be sent itself */
} nc_segment;

/* What a gather carries of a weight. Every rank computes the same. */
typedef struct nc_route {
  int64_t rows, columns; /* of the whole matrix */
  int64_t shard_rows;    /* of the first rank's shard; the last ones may have fewer, or none */
  int64_t world;         /* ranks */
  int32_t phase;         /* nc_phase */
  int32_t payloads;
  int32_t segments;
  int32_t reserved;
  int64_t payload_bytes[NC_MAX_PAYLOADS]; /* of each rank */
  nc_segment segment[NC_BUFFER_COUNT];
} nc_route;

/* One weight of a transfer. Pointers are to the memory of the machine that runs it. */
typedef struct nc_shipment {
  nc_route route;
  int64_t own_rows;               /* pack: of this rank's shard */
  void* buffer[NC_BUFFER_COUNT];  /* pack: the shard's, read; unpack: the whole matrix's, written.
                                     Those of the route's segments; unpack: that are not in place */
  void* payload[NC_MAX_PAYLOADS]; /* pack: this rank's, or NULL where nothing is to be packed;
                                     unpack: those of all ranks, one after the other */
} nc_shipment;

typedef struct nc_transfer {
  const nc_shipment* shipments; /* in host memory, whichever the machine; read before the return */
  int64_t count;
  void* stream;                 /* cudaStream_t */
  nc_parallel_for parallel_for; /* CPU only; NULL: the calling thread does all */
} nc_transfer;

/* Each function returns NULL, or a sentence that says what failed; the string lives as long as the
   plugin. A function that a format does not need is NULL. */
typedef const char* (*nc_function)(const nc_launch* launch);
typedef const char* (*nc_transfer_function)(const nc_transfer* transfer);

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
  nc_function update;        /* Adam, then cast, in one pass; NULL where the cast must wait for the
                                amax. With delayed amax: encoded with history->next, and reduce_amax
                                in the same pass; then `record_amax` */
  nc_function update_amax;   /* Adam, and collect of the new master: the first of two passes; then
                                `cast`. NULL where `update` is not */
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
} nc_machine;

/* How the compiler of a plugin lays out a struct of this file. */
typedef struct nc_struct {
  const char* name;
  uint64_t size;
  uint64_t digest; /* of the names, places and sizes of its fields */
} nc_struct;

typedef struct nc_plugin {
  uint32_t magic;   /* NC_PLUGIN_MAGIC */
  uint32_t version; /* NC_PLUGIN_VERSION */
  /* Of every version from 3 on: what tells whether the rest can be read. */
  uint32_t size; /* sizeof(nc_plugin) */
  uint32_t struct_count;
  const nc_struct* structs; /* all of this file */
  uint64_t digest;          /* of all of them */
  const nc_format* format;
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
