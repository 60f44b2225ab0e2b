// kernels.cpp and kernels.cu: the runtime's kernels over the format's sequence, for each machine.
#include "codegen/emit/emit.hpp"

namespace narrowcast::codegen {

std::string emit_kernels_cpp(const Plan& plan) {
  Printer printer = cpp_file(
      plan, "The CPU's functions of " + plan.name + "; compiled once for each instruction set.");
  printer.print(R"text(
    #include "generated/$name$/cast.hpp"
    #include "runtime/launch/cpu_kernels.hpp"
    #include "runtime/launch/machine_table.hpp"

    namespace narrowcast::$name$::inline NC_VARIANT {

    const nc_machine& cpu_machine() {
      using Kernels = CpuKernels<Sequence>;
      static constexpr nc_machine kMachine = machine_table<Sequence, Kernels>(Kernels::Tile::kColumns);
      return kMachine;
    }

    }  // namespace narrowcast::$name$::inline NC_VARIANT
  )text");
  return printer.text();
}

std::string emit_kernels_cu(const Plan& plan) {
  Printer printer = cpp_file(plan, "The GPU's functions of " + plan.name + ".");
  printer.print(R"text(
    #include "generated/$name$/cast.hpp"
    #include "runtime/launch/cuda_kernels.cuh"
    #include "runtime/launch/machine_table.hpp"

    namespace narrowcast::$name$::inline NC_VARIANT {

    const nc_machine& cuda_machine() {
      static constexpr nc_machine kMachine =
          machine_table<Sequence, CudaKernels<Sequence>>(kWarpColumns);
      return kMachine;
    }

    }  // namespace narrowcast::$name$::inline NC_VARIANT
  )text");
  return printer.text();
}

}  // namespace narrowcast::codegen
