#include "runtime/launch/fill.hpp"

namespace narrowcast {

#if defined(NC_WITH_CUDA)
namespace cuda {
const char* fill(const Fill* fill);
}
FillFunction cuda_fill() { return &cuda::fill; }
#else
FillFunction cuda_fill() { return nullptr; }
#endif

}  // namespace narrowcast
