/* How one usage of a matrix is stored: the facts of a spec, as plain C, because they cross the
 * plugin boundary. */
#ifndef NARROWCAST_RUNTIME_GEOMETRY_LAYOUT_H_
#define NARROWCAST_RUNTIME_GEOMETRY_LAYOUT_H_

#include <stdint.h>

/* block and scale_per are in the matrix's own coordinates, scale_pad in those of the stored scale
   matrix. A block of 0 x 0 spans the tensor: it has one scale, and neither scale_per nor scale_pad.
 */
typedef struct nc_layout {
  int64_t block_rows, block_columns;         /* elements that share one scale */
  int64_t scale_per_rows, scale_per_columns; /* elements to a stored scale; divides the block */
  int64_t scale_pad_rows, scale_pad_columns; /* the stored scale matrix is padded to multiples */
  int32_t transposed;                        /* data are stored with rows and columns exchanged */
  int32_t scale_transposed;                  /* scales are stored with rows and columns exchanged */
  int32_t element_bits;                      /* bits of one element as stored: 4, 6 or 8 */
  int32_t scale_bytes;                       /* bytes of one stored scale: 1 or 4 */
} nc_layout;

#endif
