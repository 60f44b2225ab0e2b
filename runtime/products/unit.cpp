#include "runtime/products/unit.hpp"

namespace narrowcast {

#if defined(NC_WITH_CUDA)
namespace cuda {
UnitFunction unit_product();
}
UnitFunction cuda_unit_product() { return cuda::unit_product(); }
#else
UnitFunction cuda_unit_product() { return nullptr; }
#endif

}  // namespace narrowcast
