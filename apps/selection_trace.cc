#include "apps/selection_trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace apps {
namespace {

using base::Code;
using base::error;
using nlohmann::json;

constexpr int64_t kPagesMax = 1 << 22;
constexpr int64_t kSequencesMax = 4096;
// 200 MB of empty lists: one line of a row makes room for all layers of the header.
constexpr int64_t kListsMax = 1 << 23;

// A whole number in [least, most].
bool is_within(const json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned())
    return value.get<uint64_t>() <= static_cast<uint64_t>(most) && value.get<int64_t>() >= least;
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

base::Result<TraceHeader> parse_header(const std::string& path, std::string_view line) {
  const json root = json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("spillway_trace") || root["spillway_trace"] != 1) {
    return error(Code::kInvalidArgument, "{}:1: no trace: expected `spillway_trace` 1", path);
  }
  TraceHeader header;
  struct Field {
    const char* name;
    int32_t* value;
    int64_t most;
  };
  for (const auto& [name, value, most] :
       {Field{"layers", &header.num_layers, 1024}, Field{"kv_heads", &header.num_kv_heads, 1024},
        Field{"page_tokens", &header.page_tokens, 1024},
        Field{"budget_tokens", &header.budget_tokens, 1 << 30}}) {
    if (!root.contains(name) || !is_within(root[name], 1, most)) {
      return error(Code::kInvalidArgument, "{}:1: `{}` must be a number from 1 to {}", path, name,
                   most);
    }
    *value = root[name].get<int32_t>();
  }
  if (root.contains("model") && root["model"].is_string()) header.model = root["model"];
  return header;
}

// Rising pages.
bool read_pages(const json& list, std::vector<int32_t>* pages) {
  if (!list.is_array()) return false;
  for (const json& page : list) {
    if (!is_within(page, pages->empty() ? 0 : pages->back() + 1, kPagesMax)) return false;
    pages->push_back(page.get<int32_t>());
  }
  return true;
}

}  // namespace

std::string format_trace_header(const TraceHeader& h) {
  return nlohmann::ordered_json{{"spillway_trace", 1},          {"model", h.model},
                                {"layers", h.num_layers},       {"kv_heads", h.num_kv_heads},
                                {"page_tokens", h.page_tokens}, {"budget_tokens", h.budget_tokens}}
             .dump(-1, ' ', false, json::error_handler_t::replace) +
         "\n";
}

std::string format_trace_row(const TraceRow& row) {
  std::string text = fmt::format("[{},{},{}", row.sequence, row.position, row.layer);
  for (const std::vector<int32_t>& pages : row.pages) {
    text += fmt::format(",[{}]", fmt::join(pages, ","));
  }
  return text + "]\n";
}

base::Result<SelectionTrace> SelectionTrace::parse(const std::string& path,
                                                   const std::string& text) {
  if (text.size() > kFileBytesMax) {
    return error(Code::kTooLarge, "{}: a trace has at most {} bytes", path, kFileBytesMax);
  }
  SelectionTrace trace;
  size_t begin = text.find('\n');
  ASSIGN_OR_RETURN(trace.header_, parse_header(path, std::string_view(text).substr(0, begin)));
  for (int64_t number = 2; begin != std::string::npos; ++number) {
    const size_t end = text.find('\n', begin + 1);
    const std::string_view line =
        std::string_view(text).substr(begin + 1, end == std::string::npos ? end : end - begin - 1);
    if (!line.empty()) RETURN_IF_ERROR(trace.add_line(path, number, line));
    begin = end;
  }
  if (trace.sequences_.empty()) {
    return error(Code::kInvalidArgument, "{}: no selections in it", path);
  }
  return trace;
}

base::Result<void> SelectionTrace::add_line(const std::string& path, int64_t number,
                                            std::string_view line) {
  const json root = json::parse(line, nullptr, /*allow_exceptions=*/false);
  const auto bad = [&](const char* what) {
    return error(Code::kInvalidArgument, "{}:{}: expected {}", path, number, what);
  };
  const auto heads = static_cast<size_t>(header_.num_kv_heads);
  if (!root.is_array() || root.size() != 3 + heads) {
    return bad("[sequence, position, layer, a list of pages for each KV head]");
  }
  if (!is_within(root[0], 0, INT64_MAX) || !is_within(root[1], 0, 1 << 30) ||
      !is_within(root[2], 0, header_.num_layers - 1)) {
    return bad("a sequence, a position and a layer of the model");
  }
  const auto [entry, is_new] = index_.try_emplace(root[0].get<uint64_t>(), sequences_.size());
  if (is_new) {
    if (std::ssize(sequences_) == kSequencesMax) return bad("fewer sequences");
    sequences_.push_back({.rows = {}, .first_position = root[1].get<int32_t>(), .positions = {}});
  }
  std::vector<Row>& rows = sequences_[entry->second].rows;
  const auto [row, is_new_row] =
      sequences_[entry->second].positions.try_emplace(root[1].get<int32_t>(), rows.size());
  if (is_new_row) {
    num_lists_ += int64_t{header_.num_layers} * header_.num_kv_heads;
    if (num_lists_ > kListsMax) return bad("fewer rows, layers or heads");
    rows.emplace_back(static_cast<size_t>(header_.num_layers) * heads);
  }
  for (size_t head = 0; head < heads; ++head) {
    std::vector<int32_t>& pages = rows[row->second][root[2].get<size_t>() * heads + head];
    pages.clear();
    if (!read_pages(root[3 + head], &pages)) return bad("lists of rising pages");
  }
  return {};
}

std::span<const int32_t> SelectionTrace::find(uint64_t sequence, int32_t position, int32_t layer,
                                              int32_t head) const {
  const Sequence& found = sequences_[sequence % sequences_.size()];
  const int64_t page = header_.page_tokens;
  int64_t rows = std::ssize(found.rows);
  if (rows > page) rows -= rows % page;
  // Without common factors, so that few places get the same.
  const uint64_t turns = sequence / sequences_.size() * 11 +
                         static_cast<uint64_t>(layer / header_.num_layers) * 17 +
                         static_cast<uint64_t>(head / header_.num_kv_heads) * 5;
  const int64_t later = static_cast<int64_t>(turns % static_cast<uint64_t>(rows)) * page;
  const int64_t index = (position - found.first_position + later) % rows;
  const Row& row = found.rows[static_cast<size_t>(index < 0 ? index + rows : index)];
  return row[static_cast<size_t>(layer % header_.num_layers * header_.num_kv_heads +
                                 head % header_.num_kv_heads)];
}

int32_t SelectionTrace::replay(uint64_t sequence, int32_t position, int32_t layer, int32_t head,
                               int32_t* pages, int32_t count) const {
  const std::span<const int32_t> recorded = find(sequence, position, layer, head);
  if (recorded.empty() || count < 2) return count;
  const int32_t own_page = pages[count - 1], later = own_page - recorded.back();
  int32_t n = 0;
  pages[n++] = 0;
  for (const int32_t page : recorded.first(recorded.size() - 1)) {
    const bool is_recent = recorded.back() - page < kRecentPages;
    const int32_t at = is_recent ? page + later : page;
    if (at > pages[n - 1] && at < own_page && n < count - 1) pages[n++] = at;
  }
  if (own_page > 0) pages[n++] = own_page;
  return n;
}

}  // namespace apps
