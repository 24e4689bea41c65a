#include "apps/heads_file.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/read_file.h"
#include "base/check.h"

namespace apps {
namespace {

using base::Code;
using base::error;
using nlohmann::json;

constexpr size_t kFileBytesMax = 1 << 20;
constexpr int64_t kTokensMax = 1 << 24;

struct Source {
  const std::string& path;
  const json& root;
};

base::Result<int32_t> read_tokens(const Source& file, const char* field, int64_t least) {
  const auto found = file.root.find(field);
  if (found == file.root.end() || !found->is_number_integer()) {
    return error(Code::kInvalidArgument, "{}: `{}` must be a whole number of tokens", file.path,
                 field);
  }
  // Numbers over 2^63 are unsigned there, and would wrap.
  const bool huge = found->is_number_unsigned() && found->get<uint64_t>() > uint64_t{kTokensMax};
  const int64_t value = huge ? kTokensMax + 1 : found->get<int64_t>();
  if (value < least || value > kTokensMax) {
    return error(Code::kInvalidArgument, "{}: `{}` is {}: it must be between {} and {}", file.path,
                 field, found->dump(), least, kTokensMax);
  }
  return static_cast<int32_t>(value);
}

base::Result<void> check_fields(const Source& file) {
  constexpr std::string_view kKnown[] = {"version", "model",     "sink",
                                         "local",   "streaming", "calibration"};
  for (const auto& [field, value] : file.root.items()) {
    if (std::ranges::find(kKnown, field) == std::end(kKnown)) {
      return error(Code::kInvalidArgument, "{}: field `{}` is unknown", file.path,
                   field.substr(0, 80));
    }
  }
  const auto version = file.root.find("version");
  if (version == file.root.end() || *version != 1) {
    return error(Code::kInvalidArgument, "{}: `version` must be 1", file.path);
  }
  const auto model = file.root.find("model");
  if (model == file.root.end() || !model->is_string()) {
    return error(Code::kInvalidArgument, "{}: `model` must be a text", file.path);
  }
  return {};
}

base::Result<void> read_layer(const Source& file, const json& layer, int32_t index,
                              const core::HeadKind& streaming, core::HeadKinds* kinds) {
  if (!layer.is_array() || std::ssize(layer) != kinds->num_kv_heads) {
    return error(Code::kInvalidArgument,
                 "{}: `streaming`[{}] must be a list of {} entries, one a KV head", file.path,
                 index, kinds->num_kv_heads);
  }
  for (int32_t head = 0; head < kinds->num_kv_heads; ++head) {
    const json& entry = layer[static_cast<size_t>(head)];
    if (!entry.is_number_integer() || (entry != 0 && entry != 1)) {
      return error(Code::kInvalidArgument, "{}: `streaming`[{}][{}] must be 0 or 1", file.path,
                   index, head);
    }
    kinds->kinds.push_back(entry == 1 ? streaming : core::HeadKind{});
  }
  return {};
}

}  // namespace

base::Result<core::HeadKinds> parse_heads(const std::string& path, const std::string& text,
                                          int32_t num_layers, int32_t num_kv_heads,
                                          const HeadsOverride& instead) {
  if (text.size() > kFileBytesMax) {
    return error(Code::kTooLarge, "{}: a heads file has at most {} bytes", path, kFileBytesMax);
  }
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) {
    return error(Code::kInvalidArgument, "{}: no heads file: expected a JSON object", path);
  }
  const Source file{path, root};
  RETURN_IF_ERROR(check_fields(file));
  core::HeadKind streaming;
  ASSIGN_OR_RETURN(streaming.sink, read_tokens(file, "sink", 0));
  ASSIGN_OR_RETURN(streaming.local, read_tokens(file, "local", 1));
  streaming.sink = instead.sink.value_or(streaming.sink);
  streaming.local = instead.local.value_or(streaming.local);
  const auto layers = root.find("streaming");
  if (layers == root.end() || !layers->is_array() || std::ssize(*layers) != num_layers) {
    return error(Code::kInvalidArgument,
                 "{}: `streaming` must be a list of {} lists, one a layer of this model", path,
                 num_layers);
  }
  core::HeadKinds kinds{.num_layers = num_layers, .num_kv_heads = num_kv_heads, .kinds = {}};
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    RETURN_IF_ERROR(
        read_layer(file, (*layers)[static_cast<size_t>(layer)], layer, streaming, &kinds));
  }
  if (std::ranges::all_of(kinds.kinds, &core::HeadKind::is_streaming)) {
    return error(Code::kInvalidArgument,
                 "{}: `streaming` leaves no retrieval head: at least one entry must be 0", path);
  }
  return kinds;
}

base::Result<core::HeadKinds> read_heads(const std::string& path, int32_t num_layers,
                                         int32_t num_kv_heads, const HeadsOverride& instead) {
  ASSIGN_OR_RETURN(const std::string text, read_file(path, kFileBytesMax));
  return parse_heads(path, text, num_layers, num_kv_heads, instead);
}

std::string format_heads(const std::string& model, const core::HeadKinds& kinds,
                         const std::string& calibration) {
  core::HeadKind streaming{.sink = 0, .local = 1};
  json layers = json::array();
  for (int32_t layer = 0; layer < kinds.num_layers; ++layer) {
    json row = json::array();
    for (int32_t head = 0; head < kinds.num_kv_heads; ++head) {
      const core::HeadKind kind = kinds.at(layer, head);
      if (kind.is_streaming()) streaming = kind;
      row.push_back(kind.is_streaming() ? 1 : 0);
    }
    layers.push_back(row.dump());
  }
  for (const core::HeadKind& kind : kinds.kinds) {
    CHECK(!kind.is_streaming() || kind == streaming, "streaming heads differ: {} + {} and {} + {}",
          kind.sink, kind.local, streaming.sink, streaming.local);
  }
  std::string text = fmt::format(
      "{{\"version\": 1, \"model\": {}, \"sink\": {}, \"local\": {},\n \"streaming\": [\n",
      json(model).dump(-1, ' ', false, json::error_handler_t::replace), streaming.sink,
      streaming.local);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    text += fmt::format("  {}{}\n", layers[layer].get<std::string>(),
                        layer + 1 < layers.size() ? "," : "");
  }
  text += " ]";
  if (!calibration.empty()) text += ",\n \"calibration\": " + calibration;
  return text + "}\n";
}

core::HeadKinds merge_heads(const core::HeadKinds& model, const core::HeadKinds& file) {
  if (model.kinds.empty()) return file;
  if (file.kinds.empty()) return model;
  CHECK(model.num_layers == file.num_layers && model.num_kv_heads == file.num_kv_heads);
  core::HeadKinds merged = model;
  for (size_t i = 0; i < merged.kinds.size(); ++i) {
    if (!merged.kinds[i].is_streaming()) merged.kinds[i] = file.kinds[i];
  }
  return merged;
}

}  // namespace apps
