// The functions of cuBLASLt that linear uses, found at run time.
#pragma once

#include <cublasLt.h>

#include <string_view>

#include "base/result.h"

namespace ops::cuda {

// Each member is the library's function without its prefix.
struct CublasLt {
  decltype(&cublasLtCreate) create;
  decltype(&cublasLtDestroy) destroy;
  decltype(&cublasLtGetStatusString) status_string;
  decltype(&cublasLtMatmulDescCreate) matmul_desc_create;
  decltype(&cublasLtMatmulDescDestroy) matmul_desc_destroy;
  decltype(&cublasLtMatmulDescSetAttribute) matmul_desc_set;
  decltype(&cublasLtMatrixLayoutCreate) layout_create;
  decltype(&cublasLtMatrixLayoutDestroy) layout_destroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) layout_set;
  decltype(&cublasLtMatmulPreferenceCreate) preference_create;
  decltype(&cublasLtMatmulPreferenceDestroy) preference_destroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) preference_set;
  decltype(&cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&cublasLtMatmulAlgoConfigGetAttribute) algo_config_get;
  decltype(&cublasLtMatmulAlgoCheck) algo_check;
  decltype(&cublasLtMatmul) matmul;

  // ok, or what failed, in the library's words.
  base::Result<void> to_result(cublasStatus_t status, std::string_view what) const;

  // Loads the library once for the process; it is never unloaded. Looks by name where the system
  // looks (LD_LIBRARY_PATH among it), then in the usual folders of the toolkit and of PyPI's
  // packages. Errors: kUnsupported: the places, and what to install.
  static base::Result<const CublasLt*> load();
};

}  // namespace ops::cuda
