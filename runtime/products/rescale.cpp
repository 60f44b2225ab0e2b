#include "runtime/products/rescale.hpp"

namespace narrowcast {

#if defined(NC_WITH_CUDA)
namespace cuda {
const char* rescale(const Rescale* rescale);
}
RescaleFunction cuda_rescale() { return &cuda::rescale; }
#else
RescaleFunction cuda_rescale() { return nullptr; }
#endif

}  // namespace narrowcast
