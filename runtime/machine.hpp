// What the two machines, CPU and GPU, ask of code that both compile.
#pragma once

// NC_EVERYWHERE: functions of numbers and positions, for host and device from one text.
// NC_MACHINE: functions of a tile, for the machine that a translation unit is compiled for.
// All are inlined always, because the CPU side is compiled several times for different instruction
// sets, and a shared out-of-line copy could carry the wrong one.
#if defined(__CUDACC__)
#define NC_EVERYWHERE __host__ __device__ __forceinline__
#define NC_MACHINE __device__ __forceinline__
#else
#define NC_EVERYWHERE inline __attribute__((always_inline))
#define NC_MACHINE inline __attribute__((always_inline))
#endif

// The instruction set that a translation unit is compiled for. Everything that is compiled for one
// lives in an inline namespace of its name, so that no two variants ever share a symbol.
#if !defined(NC_VARIANT)
#if defined(__CUDACC__)
#define NC_VARIANT cuda
#else
#define NC_VARIANT baseline
#endif
#endif
