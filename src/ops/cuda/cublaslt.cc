#include "ops/cuda/cublaslt.h"

#include <dlfcn.h>
#include <glob.h>

#include <string>
#include <vector>

namespace ops::cuda {
namespace {

// The major version that the headers promise: types and functions are its own.
std::string library_name() {
  return fmt::format("libcublasLt.so.{}", CUBLAS_VER_MAJOR);
}

// Folders where the library may lie, patterns of the shell: the toolkit's, Debian's, and those of
// Python packages of the system and of environments at the usual places.
std::vector<std::string> folder_patterns() {
  std::vector<std::string> folders = {
      SPILLWAY_CUDA_LIBRARY_DIR,
      "/usr/local/cuda/lib64",
      "/usr/local/cuda/lib",
      fmt::format("/usr/local/cuda-{}*/lib64", CUBLAS_VER_MAJOR),
      "/usr/local/cuda/targets/x86_64-linux/lib",
      "/usr/lib/x86_64-linux-gnu",
  };
  for (const char* packages :
       {"/usr/local/lib/python3*/dist-packages", "/usr/lib/python3/dist-packages",
        "/usr/local/lib/python3*/site-packages"}) {
    for (const char* package : {"cu13/lib", "cublas/lib"}) {
      folders.push_back(fmt::format("{}/nvidia/{}", packages, package));
    }
  }
  return folders;
}

std::vector<std::string> expand(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  globfree(&found);
  return paths;
}

void* open_library() {
  const std::string name = library_name();
  if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
  for (const std::string& folder : folder_patterns()) {
    for (const std::string& path : expand(folder + "/" + name)) {
      if (void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
    }
  }
  return nullptr;
}

base::Error not_found() {
  std::string places;
  for (const std::string& folder : folder_patterns()) places += " " + folder;
  return base::error(
      base::Code::kUnsupported,
      "{} was not found: install the CUDA {} toolkit's libcublas (or PyPI's "
      "nvidia-cublas) and name its folder in LD_LIBRARY_PATH; looked in the system's "
      "library path and{}",
      library_name(), CUBLAS_VER_MAJOR, places);
}

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  return function != nullptr;
}

bool find_all(void* library, CublasLt& lt) {
  return find(library, "cublasLtCreate", lt.create) &&
         find(library, "cublasLtDestroy", lt.destroy) &&
         find(library, "cublasLtGetStatusString", lt.status_string) &&
         find(library, "cublasLtMatmulDescCreate", lt.matmul_desc_create) &&
         find(library, "cublasLtMatmulDescDestroy", lt.matmul_desc_destroy) &&
         find(library, "cublasLtMatmulDescSetAttribute", lt.matmul_desc_set) &&
         find(library, "cublasLtMatrixLayoutCreate", lt.layout_create) &&
         find(library, "cublasLtMatrixLayoutDestroy", lt.layout_destroy) &&
         find(library, "cublasLtMatrixLayoutSetAttribute", lt.layout_set) &&
         find(library, "cublasLtMatmulPreferenceCreate", lt.preference_create) &&
         find(library, "cublasLtMatmulPreferenceDestroy", lt.preference_destroy) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", lt.preference_set) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", lt.get_heuristic) &&
         find(library, "cublasLtMatmulAlgoConfigGetAttribute", lt.algo_config_get) &&
         find(library, "cublasLtMatmulAlgoCheck", lt.algo_check) &&
         find(library, "cublasLtMatmul", lt.matmul);
}

}  // namespace

base::Result<const CublasLt*> CublasLt::load() {
  static CublasLt lt;
  static void* const kLibrary = open_library();
  if (kLibrary == nullptr) return not_found();
  static const bool kComplete = find_all(kLibrary, lt);
  if (!kComplete) {
    return base::error(base::Code::kUnsupported, "{} lacks functions that version {} has",
                       library_name(), CUBLAS_VER_MAJOR);
  }
  return &lt;
}

base::Result<void> CublasLt::to_result(cublasStatus_t status, std::string_view what) const {
  if (status == CUBLAS_STATUS_SUCCESS) return {};
  return base::error(
      status == CUBLAS_STATUS_NOT_SUPPORTED ? base::Code::kUnsupported : base::Code::kInternal,
      "cuBLASLt, {}: {}", what, status_string(status));
}

}  // namespace ops::cuda
