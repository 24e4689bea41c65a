// The heads file: which KV heads of a model see only their first and last tokens (core/kv_shape.h).
//
//   {"version": 1, "model": "NAME", "sink": 128, "local": 1024, "streaming": [[0, 1], ...],
//    "calibration": {...}}
//
// `sink` and `local` are tokens, `streaming` is (L, Hk) entries of 0 (retrieval) and 1 (streaming);
// `model` is for people; `calibration` may be left out, may hold anything and is not read.
// `spillway calibrate` writes the file. Other fields are errors, so a misspelt one is found.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "core/kv_shape.h"

namespace apps {

struct HeadsOverride {
  std::optional<int32_t> sink, local;  // tokens; instead of the file's
};

// Heads of a file's text for a model of L layers and Hk KV heads. `path` names it in errors.
// Errors: kInvalidArgument naming file and field.
base::Result<core::HeadKinds> parse_heads(const std::string& path, const std::string& text,
                                          int32_t num_layers, int32_t num_kv_heads,
                                          const HeadsOverride& instead);

// The same, read from the file. Errors: also those of reading it; kTooLarge over 1 MiB.
base::Result<core::HeadKinds> read_heads(const std::string& path, int32_t num_layers,
                                         int32_t num_kv_heads, const HeadsOverride& instead);

// The text that parse_heads() reads. `calibration` is JSON for people, "" for none. REQUIRES: all
// streaming heads of `kinds` are alike.
std::string format_heads(const std::string& model, const core::HeadKinds& kinds,
                         const std::string& calibration = "");

// Heads that the model itself makes streaming (sliding windows) keep its window, whatever a file
// says; the others are the file's. Either may be empty.
core::HeadKinds merge_heads(const core::HeadKinds& model, const core::HeadKinds& file);

}  // namespace apps
