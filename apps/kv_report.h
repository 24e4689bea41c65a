// What a run did with KV pages, for people and for programs: the proof that selection, tiers and
// segmentation ran.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "core/step.h"
#include "engine/options.h"

namespace apps {

// One key a counter, all of them.
nlohmann::ordered_json kv_json(const core::KvCounters& kv);

// The sizes that decide what a run can show.
nlohmann::ordered_json sizes_json(const engine::ResolvedSizes& sizes);

// A sentence for each mechanism that ran; empty where none did.
std::string kv_report(const core::KvCounters& kv);

}  // namespace apps
