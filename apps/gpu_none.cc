#include "apps/gpu.h"

namespace apps {

const bool kBuiltForGpu = false;

base::Result<std::unique_ptr<Gpu>> find_gpu() {
  return base::error(
      base::Code::kUnsupported,
      "this program was built without the CUDA back end: install the CUDA toolkit and run "
      "tools/build cuda-release, or use --device cpu");
}

}  // namespace apps
