#include "api/state_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

namespace api {
namespace {

using Json = nlohmann::ordered_json;
using State = core::LiveSequenceState::State;

template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

const char* state_name(State state) {
  switch (state) {
    case State::kWaiting:
      return "waiting";
    case State::kReading:
      return "reading";
    case State::kPrefill:
      return "prefill";
    case State::kDecode:
      return "decode";
    case State::kPutBack:
      return "put_back";
  }
  return "";
}

const char* known_name(core::Known known) {
  switch (known) {
    case core::Known::kNothing:
      return "nothing";
    case core::Known::kCounts:
      return "counts";
    case core::Known::kCells:
      return "cells";
    case core::Known::kAll:
      return "all";
  }
  return "";
}

// A digit a cell: 0 none of its pages, 9 all of them, between them shares of an eighth each.
std::string digits(const core::PageStrip& strip,
                   const std::array<core::CellShare, core::kStripCellsMax>& cells) {
  std::string out;
  for (int32_t i = 0; i < strip.num_cells(); ++i) {
    const int share = cells[static_cast<size_t>(i)];
    out += share == 0                  ? '0'
           : share == core::kWholeCell ? '9'
                                       : static_cast<char>('1' + (share - 1) * 8 / 254);
  }
  return out;
}

Json strip_json(const core::PageStrip& strip) {
  return {{"pages", strip.num_pages},
          {"pages_a_cell", strip.pages_a_cell},
          {"device_known", known_name(strip.device_known)},
          {"selected_known", known_name(strip.selected_known)},
          {"device", digits(strip, strip.device)},
          {"selected", digits(strip, strip.selected)},
          {"host", digits(strip, strip.host)},
          {"disk", digits(strip, strip.disk)}};
}

Json sequence_json(const core::LiveSequenceState& s, const telemetry::CacheConfig& cache) {
  std::optional<double> hit_ratio;
  if (s.pages_selected > 0) {
    hit_ratio = 1 - static_cast<double>(s.pages_missed) / static_cast<double>(s.pages_selected);
  }
  Json layers = nullptr;
  if (s.num_layers > 0) layers = {{"done", s.layers_done}, {"total", s.num_layers}};
  return {{"id", core::number(s.seq)},
          {"state", state_name(s.state)},
          {"age_s", static_cast<double>(s.age_us) / 1e6},
          {"prompt_tokens", s.prompt_tokens},
          {"cached_tokens", s.cached_tokens},
          {"computed_tokens", s.computed_tokens},
          {"generated_tokens", s.generated_tokens},
          {"max_tokens", s.max_tokens},
          {"layers", layers},
          {"resident", s.resident},
          {"rows", s.rows},
          {"device_bytes", s.rows * cache.frame_bytes},
          {"working_set_bytes", s.working_set_rows * cache.frame_bytes},
          {"hit_ratio", or_null(hit_ratio)},
          {"preemptions", s.preemptions},
          {"strip", strip_json(s.strip)}};
}

Json tiers_json(const StateParts& p) {
  const core::EngineSnapshot& c = p.counters;
  const Json blocks = {{"total_bytes", c.blocks_total * p.cache.block_bytes},
                       {"used_bytes", c.blocks_in_use * p.cache.block_bytes},
                       {"cached_bytes", c.blocks_cached * p.cache.block_bytes}};
  Json disk = nullptr;
  if (p.live.disk_records > 0) {
    disk = {{"total_bytes", p.live.disk_records * p.cache.block_bytes},
            {"used_bytes", 0},
            {"cached_bytes", p.live.disk_records_used * p.cache.block_bytes}};
  }
  if (c.frames_total == 0) return {{"device", blocks}, {"host", nullptr}, {"disk", disk}};
  const Json frames = {{"total_bytes", c.frames_total * p.cache.frame_bytes},
                       {"used_bytes", (c.frames_total - c.frames_free) * p.cache.frame_bytes},
                       {"cached_bytes", 0}};
  return {{"device", frames}, {"host", blocks}, {"disk", disk}};
}

Json rates_json(const telemetry::LiveRates& r, const telemetry::CacheConfig& cache) {
  const auto page_bytes = static_cast<double>(cache.page_bytes);
  return {{"over_s", r.over_s},
          {"generated_tokens", r.generated_tokens},
          {"rows", r.rows},
          {"steps", r.steps},
          {"rows_a_step", or_null(r.rows_a_step)},
          {"load_bytes", r.bytes_loaded},
          {"save_bytes", r.bytes_saved},
          {"disk_read_bytes", r.disk_pages_read * page_bytes},
          {"disk_write_bytes", r.disk_pages_written * page_bytes},
          {"hit_ratio", or_null(r.hit_ratio)},
          {"prefix_hit_ratio", or_null(r.prefix_hit_ratio)}};
}

Json percentiles_json(const std::optional<telemetry::Percentiles>& p) {
  if (!p) return nullptr;
  return {{"p50", p->p50}, {"p90", p->p90}, {"p99", p->p99}, {"count", p->count}};
}

}  // namespace

std::string state_json(const StateParts& p) {
  const core::EngineSnapshot& c = p.counters;
  Json sequences = Json::array();
  for (const core::LiveSequenceState& s : p.live.sequences) {
    sequences.push_back(sequence_json(s, p.cache));
  }
  Json age = nullptr;
  if (p.live.made_us > 0) age = std::max<int64_t>(0, p.now_us - p.live.made_us) / 1000;
  Json working_set = nullptr;
  if (c.frames_total > 0) {
    working_set = {{"bytes", c.working_set_frames * p.cache.frame_bytes},
                   {"limit_bytes", c.frames_total * p.cache.frame_bytes}};
  }
  const Json out = {
      {"object", "spillway.state"},
      {"model", p.model},
      {"status", p.status},
      {"age_ms", age},
      {"in_step", p.live.in_step},
      {"page_tokens", p.cache.block_tokens},
      {"context_max", p.context_max},
      {"tiers", tiers_json(p)},
      {"working_set", working_set},
      {"batch",
       {{"prompts", p.live.step_prompts},
        {"decodes", p.live.step_decodes},
        {"running", c.requests_running},
        {"waiting", c.requests_waiting},
        {"steps", c.steps},
        {"put_back", c.put_back},
        {"preemptions", c.preemptions}}},
      {"rates", p.rates ? rates_json(*p.rates, p.cache) : Json(nullptr)},
      {"latency",
       {{"ttft_s", percentiles_json(p.first_token)}, {"itl_s", percentiles_json(p.token_gap)}}},
      {"sequences", sequences},
      {"sequences_left_out", p.live.sequences_left_out}};
  return out.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace api
