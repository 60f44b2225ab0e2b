#include "runtime/launch/fill.hpp"

namespace narrowcast {

#if defined(NC_WITH_CUDA)
namespace cuda {
const char* fill(const Fill* fill);
const char* upload(const Upload* upload);
}  // namespace cuda
FillFunction cuda_fill() { return &cuda::fill; }
UploadFunction cuda_upload() { return &cuda::upload; }
#else
FillFunction cuda_fill() { return nullptr; }
UploadFunction cuda_upload() { return nullptr; }
#endif

}  // namespace narrowcast
