/* What a format is, as derived from its spec: a part of the table (table.h). */
#ifndef NARROWCAST_RUNTIME_PLUGIN_FACTS_H_
#define NARROWCAST_RUNTIME_PLUGIN_FACTS_H_

#include <stdint.h>

#include "runtime/geometry/layout.h"

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
  NC_WRITE_PART = 2, /* values into a part of it */
  NC_OPERATION_COUNT = 3
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

#endif
