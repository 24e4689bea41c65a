// Recorded selections as a file: which pages each (sequence, position, layer, KV head) attended to.
//
// Lines of JSON; docs/trace.md describes them. A trace can be replayed by any model (bench
// --replay-selections): random weights have no locality of their own.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "base/result.h"

namespace apps {

struct TraceHeader {
  std::string model;  // for people
  int32_t num_layers = 0, num_kv_heads = 0;
  int32_t page_tokens = 0;
  int32_t budget_tokens = 0;
};

// The selections of one layer of one row, one list of rising pages a KV head; a head without a
// selection (a streaming one, a dense layer) has an empty list.
struct TraceRow {
  uint64_t sequence = 0;
  int32_t position = 0, layer = 0;
  std::vector<std::vector<int32_t>> pages;  // (Hk)
};

std::string format_trace_header(const TraceHeader& header);
std::string format_trace_row(const TraceRow& row);

// A trace in memory, found by sequence, position and layer.
class SelectionTrace {
 public:
  static constexpr size_t kFileBytesMax = size_t{512} << 20;

  // `path` names it in errors. Errors: kInvalidArgument naming line and what is wrong; kTooLarge.
  static base::Result<SelectionTrace> parse(const std::string& path, const std::string& text);

  const TraceHeader& header() const { return header_; }
  int32_t num_sequences() const { return static_cast<int32_t>(sequences_.size()); }

  // The recorded selection that stands for a row of another model: sequences, layers and heads
  // modulo the trace's. Each turn of a modulus is some pages later in the trace, so that no two
  // places move in step; rows begin anew behind the last, at the same place in a page. May be
  // empty.
  std::span<const int32_t> find(uint64_t sequence, int32_t position, int32_t layer,
                                int32_t head) const;

  // Pages within this of the row's own keep their distance to it, older ones their place: text that
  // was just written stays close, wherever the row stands.
  static constexpr int32_t kRecentPages = 64;

  // Puts the pages of find() for a row into `pages[0, count)`, whose last is the row's own: rising,
  // the first and its own among them. Returns how many; `count` and no change where nothing is
  // recorded.
  int32_t replay(uint64_t sequence, int32_t position, int32_t layer, int32_t head, int32_t* pages,
                 int32_t count) const;

 private:
  using Row = std::vector<std::vector<int32_t>>;  // (L * Hk)
  struct Sequence {
    std::vector<Row> rows;  // as they first appear
    int32_t first_position = 0;
    std::map<int32_t, size_t> positions;  // of rows, while parsing
  };

  base::Result<void> add_line(const std::string& path, int64_t number, std::string_view line);

  TraceHeader header_;
  std::vector<Sequence> sequences_;
  int64_t num_lists_ = 0;             // of all rows, empty ones too
  std::map<uint64_t, size_t> index_;  // by sequence, while parsing
};

}  // namespace apps
