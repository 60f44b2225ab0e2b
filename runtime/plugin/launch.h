/* What the functions over matrices are called with: a part of the table (table.h). */
#ifndef NARROWCAST_RUNTIME_PLUGIN_LAUNCH_H_
#define NARROWCAST_RUNTIME_PLUGIN_LAUNCH_H_

#include <stdint.h>

#include "runtime/plugin/facts.h"
#include "runtime/plugin/rule.h"

typedef enum nc_dtype { NC_F32 = 0, NC_BF16 = 1, NC_F16 = 2 } nc_dtype;

/* nc_tensor.state_dtype of the first of nc_plugin.state_formats; the others follow. */
#define NC_STATE_FORMAT 16

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
  void* value;      /* [rows, columns] of value_dtype: the source of a cast, the result of a
                       decoding, the master of an update: NC_F32, or NC_BF16 if the rule can be kept
                       in state formats. Of a flat shard this, and all that has a value's shape, is
                       where the matrix's first element would lie, had the shard all of it */
  int8_t* residual; /* [rows, columns], of a master of NC_BF16: eight bits more of each number
                       (runtime/numeric/split_float.hpp); NULL: it has none, and is rounded
                       stochastically */
  void* state[NC_STATE_COUNT]; /* [rows, columns] of state_dtype: what the optimizer's rule keeps */
  float* state_scale[NC_STATE_COUNT]; /* of a state format: [rows, blocks of a row] */
  void* buffer[NC_BUFFER_COUNT]; /* of an unquantized parameter, whose master is fp32, the first
                                    is [rows, columns] of value_dtype: where its value goes,
                                    rounded; or NULL */
  float* amax;                   /* the tensor's stored amax, or NULL */
  nc_history* history;           /* of formats whose amax is delayed; else NULL */
  /* Stochastic rounding: what the random word of an element is a function of. */
  uint64_t seed;
  uint64_t step;       /* outside an update; an update has nc_step.t */
  uint64_t first;      /* index of `value`'s first element in the whole tensor */
  int32_t value_dtype; /* nc_dtype */
  int32_t state_dtype; /* NC_F32, NC_BF16, or from NC_STATE_FORMAT on */
} nc_tensor;

/* What an update of one tensor needs anew each step. */
typedef struct nc_step {
  int64_t t;                          /* the number of the update, from 1 */
  const void* grad;                   /* NULL: no gradient, so nothing of the tensor changes */
  int32_t grad_dtype;                 /* nc_dtype */
  float grad_multiplier;              /* 1 / grad_scale, or 1 */
  float constants[NC_CONSTANT_COUNT]; /* the rule's */
} nc_step;

/* What a GPU makes an nc_step of, if it counts the steps itself. */
typedef struct nc_counted {
  float* count;     /* of the steps so far, to which one is added; NULL: this is the first, and
                       nothing is counted */
  const void* grad; /* of nc_step, as grad_dtype */
  int32_t grad_dtype;
  int32_t group; /* of nc_begin.options */
} nc_counted;

/* A rule's option of a group: a number, or a float32 in the machine's memory where there is one. */
typedef struct nc_option {
  double number;
  const float* tensor;
} nc_option;

/* How steps that a GPU counts begin. All pointers are to its memory. */
typedef struct nc_begin {
  nc_step* steps; /* one for each of `tensors`, which are made */
  const nc_counted* tensors;
  const nc_option* options; /* of each group one for each of the rule's names */
  const float* grad_scale;  /* that gradients are to be divided by; NULL: 1 */
  const float* found_inf;   /* or NULL: if not 0, nothing is counted */
  int64_t count;            /* tensors */
  void* stream;             /* cudaStream_t */
} nc_begin;

/* Runs body(context, begin, end) over disjoint ranges that cover [0, count), in any order and on
   any threads, and returns when all are done. The caller owns the threads. */
typedef void (*nc_parallel_for)(int64_t count,
                                void (*body)(void* context, int64_t begin, int64_t end),
                                void* context);

/* Tensors that a kernel can take among its parameters, of which every GPU passes 4 KB. */
#define NC_PARAMETER_TENSORS 15

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
  int32_t keep_nonfinite; /* of reduce_amax of one tensor, and of cast where no scale spans the
                             tensor: an infinity or a NaN makes an amax NaN, and so its scale */

  int32_t bf16_masters; /* of updates: all masters are NC_BF16, not NC_F32 */
  int32_t reserved;     /* 0 */

  float* exchange; /* in the machine's memory: what nc_seams has slots of; NULL: nothing.
                      collect, update and update_amax write the owner's part, cast reads that
                      of all: the maxima of the bits, as integers with a sign. Where an owner
                      has no part there are the bits of 0 for an amax, of INT32_MIN for a
                      value */
  void* stream;    /* cudaStream_t */
  nc_parallel_for parallel_for; /* CPU only; NULL: the calling thread does all */
} nc_launch;

#endif
