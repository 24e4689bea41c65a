// The ops of one back end: a table of functions chosen once at start, never a branch at a call.
#pragma once

#include "device/cpu.h"
#include "ops/attention.h"
#include "ops/elementwise.h"
#include "ops/kv_seal.h"
#include "ops/linear.h"
#include "ops/page_score.h"
#include "ops/page_stats.h"

namespace ops {

struct OpTable {
  device::Isa isa;
  PackFn pack;
  LinearFn linear;
  LinearWorkspaceFn linear_workspace_bytes;
  EmbedFn embed;
  KvWriteFn kv_write;
  KvSealFn kv_seal;
  AttentionFn attention;
  AttentionWorkspaceFn attention_workspace_bytes;
  RmsNormFn rms_norm;
  RopeFn rope;
  SwiGluFn swiglu;
  GeGluFn geglu;
  PageStatsFn page_stats;
  PageScoreFn page_score;
};

// REQUIRES: isa <= device::detect_isa(). Lives for ever.
const OpTable& op_table(device::Isa isa);

}  // namespace ops
