/* What a gather carries of weights, and the functions that pack and unpack it are called with: a
   part of the table (table.h). */
#ifndef NARROWCAST_RUNTIME_PLUGIN_TRANSFER_H_
#define NARROWCAST_RUNTIME_PLUGIN_TRANSFER_H_

#include <stdint.h>

#include "runtime/plugin/launch.h"

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

#endif
