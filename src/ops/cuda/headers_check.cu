// Compiles every contract of the folder alone, by both compilers' rules.
#include "ops/cuda/attention.h"
#include "ops/cuda/kv.h"
#include "ops/cuda/linear.h"
#include "ops/cuda/page_ops.h"
#include "ops/cuda/ptx.cuh"
#include "ops/cuda/row_ops.h"
#include "ops/cuda/sample.h"
