#include "ops/attention_world.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <numeric>

#include "base/counted_new.h"
#include "ops/op_table.h"
#include "ops/reference/bfloat16.h"

namespace ops {

void World::write(const Version& version, const std::vector<Part>& parts, int num_threads) {
  base::ThreadPool pool(num_threads);
  device::Stream stream(pool);
  const Inputs in = inputs(parts, num_threads);
  const int64_t stride = int64_t{shape_.num_kv_heads} * shape_.head_dim;
  const int64_t allocations = base::num_allocations.load();
  version.kv_write(stream, {.kv = {page_, heads_},
                            .k = in.k.data(),
                            .v = in.v.data(),
                            .k_stride = stride,
                            .v_stride = stride,
                            .segments = in.segments});
  EXPECT_EQ(base::num_allocations.load(), allocations);
  if (page_.is_quantised()) seal(stream, parts);
}

void World::attend(const Version& version, const Inputs& in, const float* q, float* out) {
  base::ThreadPool pool(in.limits.num_threads);
  device::Stream stream(pool);
  const auto bytes = static_cast<size_t>(version.workspace_bytes(in.limits));
  constexpr std::byte kGuard{0xa5};
  std::vector<std::byte> memory(bytes + 128, kGuard);
  std::byte* aligned = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  const int64_t stride = int64_t{shape_.num_q_heads} * shape_.head_dim;
  const int64_t allocations = base::num_allocations.load();
  version.attention(stream, {.kv = {page_, heads_},
                             .q = q,
                             .q_stride = stride,
                             .num_q_heads = shape_.num_q_heads,
                             .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                             .segments = in.segments,
                             .out = out,
                             .out_stride = stride,
                             .workspace = {aligned, bytes}});
  if (version.isa != device::Isa::kReference) {
    EXPECT_EQ(base::num_allocations.load(), allocations);
  }
  EXPECT_TRUE(
      std::all_of(aligned + bytes, aligned + bytes + 64, [](std::byte b) { return b == kGuard; }));
}

World::Inputs World::inputs(const std::vector<Part>& parts, int num_threads) const {
  Inputs in;
  in.limits = {.num_q_heads = shape_.num_q_heads,
               .num_kv_heads = shape_.num_kv_heads,
               .head_dim = shape_.head_dim,
               .page_tokens = shape_.page_tokens,
               .num_threads = num_threads};
  int32_t rows = 0;
  for (const Part& part : parts) {
    append(q_, part, shape_.num_q_heads, in.q);
    append(k_, part, shape_.num_kv_heads, in.k);
    append(v_, part, shape_.num_kv_heads, in.v);
    const int32_t count = part.end - part.begin;
    in.segments.push_back({.kind = part.kind,
                           .row_begin = rows,
                           .row_end = rows + count,
                           .position_begin = part.begin,
                           .frames = tables_[static_cast<size_t>(part.sequence)].data()});
    add_tables(part, in);
    rows += count;
    (part.kind == core::RowKind::kPrompt ? in.limits.rows_max : in.limits.decode_rows_max) += count;
    in.limits.context_max = std::max(in.limits.context_max, part.end);
  }
  return in;
}

void World::spoil_unseen(const std::vector<Part>& parts) {
  if (page_.is_quantised()) return spoil_unseen_pages(parts);
  const int64_t row_bytes = core::row_bytes(page_.type, page_.head_dim);
  for (int32_t s = 0; s < static_cast<int32_t>(lengths_.size()); ++s) {
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      for (int32_t key = 0; key < lengths_[static_cast<size_t>(s)]; ++key) {
        if (std::ranges::any_of(parts, [&](const Part& part) {
              return part.sequence == s && sees(part, key, head);
            })) {
          continue;
        }
        const int32_t token = key % page_.page_tokens;
        std::byte* page = page_of(s, key / page_.page_tokens, head);
        for (int32_t row : {token, token + page_.page_tokens}) {
          std::memset(page + row * row_bytes, 0xff, static_cast<size_t>(row_bytes));
        }
      }
    }
  }
}

void World::read_pages(const World& other, int32_t num_pages) {
  std::vector<float> row(static_cast<size_t>(page_.head_dim));
  for (int32_t page = 0; page < num_pages; ++page) {
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      std::byte* out = page_of(0, page, head);
      for (int32_t i = 0; i < 2 * page_.page_tokens; ++i) {
        reference::read_kv_row(other.page_, other.page_of(0, page, head), i >= page_.page_tokens,
                               i % page_.page_tokens, row.data());
        for (float x : row) {
          const uint16_t bits = reference::float_to_bfloat16(x);
          std::memcpy(out, &bits, sizeof(bits));
          out += sizeof(bits);
        }
      }
    }
  }
}

void World::seal(device::Stream& stream, const std::vector<Part>& parts) {
  std::vector<KvSealItem> items;
  for (const Part& part : parts) {
    for (int32_t page = part.begin / page_.page_tokens; page < part.end / page_.page_tokens;
         ++page) {
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        items.push_back(
            {open_page_of(part.sequence, page, head), page_of(part.sequence, page, head)});
      }
    }
  }
  op_table(device::detect_isa()).kv_seal(stream, {page_, items});  // the same bytes in any
}

void World::spoil_unseen_pages(const std::vector<Part>& parts) {
  const auto spoil_page = [](std::byte* page, int64_t bytes) {
    std::memset(page, 0xff, static_cast<size_t>(bytes));
  };
  const int64_t open_bytes = KvLayer{page_, {}}.written_page().page_bytes();
  for (int32_t s = 0; s < static_cast<int32_t>(lengths_.size()); ++s) {
    for (int32_t page = 0; page < pages(lengths_[static_cast<size_t>(s)]); ++page) {
      for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
        bool open = false, sealed = false;
        for (const Part& part : parts) {
          if (part.sequence != s) continue;
          for (int32_t position = part.begin; position < part.end; ++position) {
            open = open || position / page_.page_tokens == page;
            sealed = sealed || sees_sealed(part, position, page, head);
          }
        }
        if (!open) spoil_page(open_page_of(s, page, head), open_bytes);
        if (!sealed) spoil_page(page_of(s, page, head), page_.page_bytes());
      }
    }
  }
}

bool World::sees_sealed(const Part& part, int32_t position, int32_t page, int32_t head) const {
  if (page >= position / page_.page_tokens) return false;
  const Part row{part.sequence, part.kind, position, position + 1, part.selected};
  for (int32_t token = 0; token < page_.page_tokens; ++token) {
    if (sees(row, page * page_.page_tokens + token, head)) return true;
  }
  return false;
}

bool World::sees(const Part& part, int32_t key, int32_t head) const {
  if (key >= part.end) return false;
  const core::HeadKind& kind = heads_[static_cast<size_t>(head)].kind;
  if (kind.is_streaming()) return key < kind.sink || part.begin - key < kind.local;
  if (part.selected.empty()) return true;
  const auto& selected = part.selected[static_cast<size_t>(head)];
  return std::ranges::find(selected, key / page_.page_tokens) != selected.end();
}

void World::add_tables(const Part& part, Inputs& in) const {
  const auto sequence = static_cast<size_t>(part.sequence);
  auto& stream = in.tables.emplace_back(stream_tables_[sequence]);
  for (int32_t page = 0; page < static_cast<int32_t>(stream.size()); ++page) {
    bool seen = false;
    for (int32_t i = 0; i < page_.page_tokens * shape_.num_kv_heads; ++i) {
      const int32_t head = i % shape_.num_kv_heads;
      const int32_t key = page * page_.page_tokens + i / shape_.num_kv_heads;
      seen = seen || (is_streaming(head) && sees(part, key, head));
    }
    if (!seen) stream[static_cast<size_t>(page)] = INT_MIN;
  }
  in.segments.back().stream_frames = stream.data();
  if (page_.is_quantised()) {
    in.segments.back().open_frames = open_tables_[sequence].data() + part.begin / page_.page_tokens;
  }
  if (part.selected.empty()) return;
  size_t stride = 0;
  for (const auto& pages : part.selected) stride = std::max(stride, pages.size());
  auto& lists = in.tables.emplace_back(stride * part.selected.size(), INT_MIN);
  auto& counts = in.tables.emplace_back();
  for (size_t head = 0; head < part.selected.size(); ++head) {
    counts.push_back(static_cast<int32_t>(part.selected[head].size()));
    for (size_t i = 0; i < part.selected[head].size(); ++i) {
      lists[head * stride + i] = tables_[sequence][static_cast<size_t>(part.selected[head][i])];
    }
  }
  in.segments.back().frames = lists.data();
  in.segments.back().frames_head_stride = static_cast<int64_t>(stride);
  in.segments.back().num_selected = counts.data();
}

std::vector<std::vector<int32_t>> World::scatter(int32_t num_frames, std::mt19937& random) const {
  std::vector<int32_t> order(static_cast<size_t>(num_frames));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  std::vector<std::vector<int32_t>> tables;
  auto next = order.begin();
  for (int32_t length : lengths_) {
    tables.emplace_back(next, next + pages(length));
    next += pages(length);
  }
  return tables;
}

void World::make_keys_awkward() {
  const float awkward[] = {
      65519.9f,       65520.0f,       -1e9f, 1e-8f,  6.1e-5f, 5.97e-8f, 1.00390625f, 1.01171875f,
      1.00048828125f, 1.00146484375f, -0.0f, 1e-40f, NAN,     INFINITY, -INFINITY,   3.4e38f};
  for (size_t i = 0; i < k_[0].size(); ++i) {
    if (i % 3 == 0) k_[0][i] = awkward[i / 3 % std::size(awkward)];
  }
}

}  // namespace ops
