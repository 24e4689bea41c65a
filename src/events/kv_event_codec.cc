#include "events/kv_event_codec.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

namespace events {
namespace {

using core::KvEvent;
using core::KvMedium;
using nlohmann::ordered_json;

const char* name(KvMedium medium) {
  constexpr std::array kNames{"GPU", "CPU", "DISK"};
  return kNames[static_cast<size_t>(medium)];
}

// A run of blocks that becomes one event.
struct Run {
  size_t started = 0;  // runs are written in the order in which they began
  ordered_json hashes = ordered_json::array();
  ordered_json parent, tokens = ordered_json::array(), extra_keys;
  uint64_t last_key = 0;
};

class Writer {
 public:
  Writer(int32_t page_tokens, bool positional)
      : page_tokens_(page_tokens), positional_(positional) {}

  void cleared() {
    close_all();
    if (positional_) {
      events_.push_back(ordered_json::array({"AllBlocksCleared"}));
    } else {
      events_.push_back(ordered_json::object({{"type", "AllBlocksCleared"}}));
    }
  }

  void removed(const KvEvent& event) {
    close_stored();
    if (removed_medium_ != event.medium) close_removed();
    removed_medium_ = event.medium;
    removed_.push_back(event.key);
  }

  void stored(const KvEvent& event, std::span<const core::TokenId> tokens, std::string_view salt) {
    close_removed();
    std::optional<Run>& run = runs_[static_cast<size_t>(event.medium)];
    const bool goes_on = run && event.has_parent && event.parent_key == run->last_key;
    if (!goes_on) {
      close_until(event.medium);
      run.emplace();
      run->started = ++num_started_;
      if (event.has_parent) run->parent = event.parent_key;
      if (!salt.empty()) run->extra_keys = ordered_json::array({ordered_json::array({salt})});
    } else if (!run->extra_keys.is_null()) {
      run->extra_keys.push_back(nullptr);
    }
    run->hashes.push_back(event.key);
    for (const core::TokenId token : tokens) run->tokens.push_back(token);
    run->last_key = event.key;
  }

  ordered_json take() {
    close_all();
    return std::move(events_);
  }

 private:
  void close_all() {
    close_removed();
    close_stored();
  }

  void close_removed() {
    if (removed_.empty()) return;
    if (positional_) {
      events_.push_back(
          ordered_json::array({"BlockRemoved", std::move(removed_), name(removed_medium_)}));
    } else {
      events_.push_back(ordered_json::object({{"type", "BlockRemoved"},
                                              {"block_hashes", std::move(removed_)},
                                              {"medium", name(removed_medium_)}}));
    }
    removed_ = ordered_json::array();
  }

  void close_stored() {
    while (const auto first = first_started()) close(*first);
  }

  // A block may stand on one of another run, which began before.
  void close_until(KvMedium medium) {
    while (runs_[static_cast<size_t>(medium)]) close(first_started().value());
  }

  std::optional<KvMedium> first_started() const {
    std::optional<size_t> first;
    for (size_t i = 0; i < runs_.size(); ++i) {
      if (runs_[i] && (!first || runs_[i]->started < runs_[*first]->started)) first = i;
    }
    if (!first) return std::nullopt;
    return static_cast<KvMedium>(*first);
  }

  void close(KvMedium medium) {
    Run run = *std::exchange(runs_[static_cast<size_t>(medium)], std::nullopt);
    if (positional_) {
      ordered_json event = ordered_json::array({"BlockStored", std::move(run.hashes),
                                                std::move(run.parent), std::move(run.tokens),
                                                page_tokens_, nullptr, name(medium), nullptr});
      if (!run.extra_keys.is_null()) event.push_back(std::move(run.extra_keys));
      events_.push_back(std::move(event));
      return;
    }
    ordered_json event = ordered_json::object({{"type", "BlockStored"},
                                               {"block_hashes", std::move(run.hashes)},
                                               {"parent_block_hash", std::move(run.parent)},
                                               {"token_ids", std::move(run.tokens)},
                                               {"block_size", page_tokens_},
                                               {"lora_id", nullptr},
                                               {"medium", name(medium)},
                                               {"lora_name", nullptr}});
    if (!run.extra_keys.is_null()) event["extra_keys"] = std::move(run.extra_keys);
    events_.push_back(std::move(event));
  }

  const int32_t page_tokens_;
  const bool positional_;
  ordered_json events_ = ordered_json::array();
  std::array<std::optional<Run>, 3> runs_;  // of the media
  size_t num_started_ = 0;
  ordered_json removed_ = ordered_json::array();
  KvMedium removed_medium_ = KvMedium::kDevice;
};

}  // namespace

std::vector<uint8_t> encode(const BatchView& batch, bool positional) {
  Writer writer(batch.page_tokens, positional);
  std::span<const core::TokenId> tokens = batch.tokens;
  std::string_view salts = batch.salts;
  for (const KvEvent& event : batch.events) {
    switch (event.kind) {
      case KvEvent::Kind::kCleared:
        writer.cleared();
        break;
      case KvEvent::Kind::kRemoved:
        writer.removed(event);
        break;
      case KvEvent::Kind::kStored:
        writer.stored(event, tokens.first(static_cast<size_t>(batch.page_tokens)),
                      salts.substr(0, event.salt_bytes));
        tokens = tokens.subspan(static_cast<size_t>(batch.page_tokens));
        salts.remove_prefix(event.salt_bytes);
        break;
    }
  }
  ordered_json payload = ordered_json::array();
  payload.push_back(batch.time_s);
  payload.push_back(writer.take());
  payload.push_back(0);  // the one rank there is
  return ordered_json::to_msgpack(payload);
}

}  // namespace events
