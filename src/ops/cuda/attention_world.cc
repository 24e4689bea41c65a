#include "ops/cuda/attention_world.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "device/cpu.h"
#include "device/stream.h"
#include "ops/kv_seal.h"
#include "ops/op_table.h"
#include "ops/reference/bfloat16.h"
#include "ops/reference/dequantize.h"

namespace ops::cuda {
namespace {

constexpr int32_t kExtraColumns = 2;  // of other layers
constexpr int32_t kThreads = 8;

float round_to_bf16(float x) {
  return reference::bfloat16_to_float(reference::float_to_bfloat16(x));
}

device::cuda::GpuInfo gpu() {
  static const device::cuda::GpuInfo info = [] {
    auto found = device::cuda::find_gpu();
    EXPECT_TRUE(found.ok());
    return std::move(found).value();
  }();
  return info;
}

std::vector<int32_t> shuffled(int32_t count, std::mt19937& random) {
  std::vector<int32_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

}  // namespace

// Arrays of a call in device memory.
struct AttentionWorld::Upload {
  device::cuda::Stream& stream;
  std::vector<device::cuda::Buffer> buffers;

  template <typename T>
  T* array(const std::vector<T>& values) {
    const auto bytes = static_cast<int64_t>(std::max<size_t>(values.size(), 1) * sizeof(T));
    auto buffer = device::cuda::Buffer::allocate(bytes, "test array");
    EXPECT_TRUE(buffer.ok());
    buffers.push_back(std::move(buffer).value());
    stream.copy(buffers.back().data(), values.data(),
                static_cast<int64_t>(values.size() * sizeof(T)));
    EXPECT_TRUE(stream.synchronize().ok());
    return buffers.back().as<T>();
  }
};

AttentionWorld::AttentionWorld(const WorldShape& shape, const std::vector<int32_t>& lengths,
                               uint32_t seed, int32_t rows_max)
    : shape_(shape) {
  std::mt19937 random(seed);
  page_ = {.type = shape.type,
           .page_tokens = shape.page_tokens,
           .logical_page_tokens = shape.page_tokens,
           .head_dim = shape.head_dim};
  stream_ = std::move(device::cuda::Stream::create()).value();
  gpu();
  lay_out(lengths, rows_max, random);
  for (Sequence& sequence : sequences_) fill(sequence, random);
  copy_pools();
}

void AttentionWorld::lay_out(const std::vector<int32_t>& lengths, int32_t rows_max,
                             std::mt19937& random) {
  int32_t num_columns = 1, num_ring_columns = 1;  // column 0 is another layer's
  for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
    const bool ring = shape_.rings && is_streaming(head);
    columns_.push_back(ring ? -1 : num_columns++);
    ring_columns_.push_back(ring ? num_ring_columns++ : -1);
  }
  num_columns += kExtraColumns;
  int32_t num_rows = 3;
  for (int32_t length : lengths) num_rows += pages(length);
  const int64_t page_bytes = page_.page_bytes();
  const int64_t open_bytes = ops::KvLayer{page_, {}}.written_page().page_bytes();
  const core::HeadKinds kinds = {1, shape_.num_kv_heads, shape_.kinds};
  const core::RingShape ring = core::ring_shape(kinds, shape_.page_tokens, rows_max);
  const int32_t open_columns = shape_.num_kv_heads + 1;
  pool_.assign(static_cast<size_t>(page_bytes * num_rows * num_columns), std::byte{0xff});
  if (shape_.rings) {
    rings_.assign(
        static_cast<size_t>(page_bytes * ring.frames() * num_ring_columns) * (lengths.size() + 1),
        std::byte{0xff});
  }
  if (page_.is_quantised()) {
    open_.assign(static_cast<size_t>(open_bytes * num_rows * open_columns), std::byte{0xff});
  }
  for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
    const auto h = static_cast<size_t>(head);
    const bool in_ring = columns_[h] < 0;
    heads_.push_back(
        {.base = in_ring ? rings_.data() + ring_columns_[h] * page_bytes
                         : pool_.data() + (shape_.head_tables ? 0 : columns_[h] * page_bytes),
         .kind = shape_.kinds.empty() ? core::HeadKind{} : shape_.kinds[h],
         .open_base = page_.is_quantised() ? open_.data() + (head + 1) * open_bytes : nullptr});
  }
  layer_ = {.pool = {.page = page_,
                     .page_bytes = page_bytes,
                     .num_columns = num_columns,
                     .num_frames = int64_t{num_rows} * num_columns},
            .rings = {.num_columns = num_ring_columns,
                      .sink_pages = ring.sink_pages,
                      .ring_pages = ring.ring_pages},
            .open = {.page_bytes = open_bytes, .num_columns = open_columns},
            .num_kv_heads = shape_.num_kv_heads,
            .open_column = 1};
  hand_out_pages(lengths, num_rows, ring, random);
}

void AttentionWorld::hand_out_pages(const std::vector<int32_t>& lengths, int32_t num_rows,
                                    const core::RingShape& ring, std::mt19937& random) {
  const int32_t num_columns = layer_.pool.num_columns;
  std::vector<std::vector<int32_t>> head_rows;
  for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
    head_rows.push_back(shuffled(num_rows, random));
  }
  const std::vector<int32_t> rows = shuffled(num_rows, random), open = shuffled(num_rows, random);
  size_t next = 0;
  for (size_t s = 0; s < lengths.size(); ++s) {
    Sequence& sequence = sequences_.emplace_back();
    sequence.length = lengths[s];
    const auto count = static_cast<size_t>(pages(lengths[s]));
    for (size_t page = 0; page < count; ++page) {
      sequence.rows.push_back(rows[next + page]);
      sequence.frames.push_back(rows[next + page] * num_columns);
      sequence.open_rows.push_back(open[next + page]);
      sequence.open_frames.push_back(open[next + page] * layer_.open.num_columns);
      sequence.stream_frames.push_back(shape_.rings ? (static_cast<int32_t>(s) * ring.frames() +
                                                       ring.frame_of(static_cast<int32_t>(page))) *
                                                          layer_.rings.num_columns
                                                    : rows[next + page] * num_columns);
    }
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const auto h = static_cast<size_t>(head);
      for (size_t page = 0; page < count; ++page) {
        sequence.head_frames.push_back(head_rows[h][next + page] * num_columns + columns_[h]);
      }
    }
    next += count;
  }
}

AttentionSegment AttentionWorld::segment(const Sequence& sequence) const {
  AttentionSegment segment;
  segment.frames = shape_.head_tables ? sequence.head_frames.data() : sequence.frames.data();
  segment.frames_head_stride = shape_.head_tables ? pages(sequence.length) : 0;
  segment.stream_frames = sequence.stream_frames.data();
  segment.open_frames = sequence.open_frames.data();
  return segment;
}

void AttentionWorld::fill(Sequence& sequence, std::mt19937& random) {
  const auto draw = [&](int32_t heads, float scale) {
    // Uniform, of standard deviation `scale`: worlds are large.
    const float unit = scale * 1.7320508f * 0x1p-31f;
    std::vector<float> x(static_cast<size_t>(int64_t{sequence.length} * heads * shape_.head_dim));
    for (float& element : x) element = unit * static_cast<float>(static_cast<int32_t>(random()));
    return x;
  };
  sequence.q = draw(shape_.num_q_heads, shape_.q_scale);
  for (float& x : sequence.q) x = round_to_bf16(x);
  const std::vector<float> k = draw(shape_.num_kv_heads, 1.5f);
  const std::vector<float> v = draw(shape_.num_kv_heads, 1.0f);
  for (float x : v) largest_value_ = std::max(largest_value_, std::fabs(x));
  base::ThreadPool threads(1);
  device::Stream stream(threads);
  const int64_t stride = int64_t{shape_.num_kv_heads} * shape_.head_dim;
  AttentionSegment all = segment(sequence);
  all.row_end = sequence.length;
  reference::kv_write(stream, {.kv = host_layer(),
                               .k = k.data(),
                               .v = v.data(),
                               .k_stride = stride,
                               .v_stride = stride,
                               .segments = {&all, 1}});
  if (!page_.is_quantised()) return;
  std::vector<KvSealItem> items;
  const ops::KvLayer layer = host_layer();
  for (int32_t page = 0; page < sequence.length / shape_.page_tokens; ++page) {
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const int32_t* frames =
          is_streaming(head) ? all.stream_frames : all.frames + head * all.frames_head_stride;
      items.push_back({layer.open_frame(sequence.open_frames[static_cast<size_t>(page)], head),
                       layer.frame(frames[page], head)});
    }
  }
  op_table(device::detect_isa()).kv_seal(stream, {page_, items});  // the same bytes in any
}

void AttentionWorld::copy_pools() {
  const auto copy = [&](const std::vector<std::byte>& from, device::cuda::Buffer& to) {
    if (from.empty()) return static_cast<std::byte*>(nullptr);
    const auto bytes = static_cast<int64_t>(from.size());
    if (to.data() == nullptr) {
      to = std::move(device::cuda::Buffer::allocate(bytes, "test pages")).value();
    }
    stream_.copy(to.data(), from.data(), bytes);
    return to.data();
  };
  layer_.pool.base = copy(pool_, device_pool_);
  layer_.rings.base = copy(rings_, device_rings_);
  layer_.open.base = copy(open_, device_open_);
  EXPECT_TRUE(stream_.synchronize().ok());
}

bool AttentionWorld::sees(const WorldPart& part, int32_t key, int32_t head) const {
  if (key >= part.end) return false;
  const auto h = static_cast<size_t>(head);
  if (is_streaming(head)) {
    return key < shape_.kinds[h].sink || part.begin - key < shape_.kinds[h].local;
  }
  if (part.selected.empty() || part.selected[h].empty()) return true;
  return std::ranges::find(part.selected[h], key / shape_.page_tokens) != part.selected[h].end();
}

void AttentionWorld::spoil_unseen(const std::vector<WorldPart>& parts) {
  ASSERT_FALSE(page_.is_quantised() || shape_.rings);
  const int64_t row_bytes = core::row_bytes(page_.type, page_.head_dim);
  for (size_t s = 0; s < sequences_.size(); ++s) {
    const AttentionSegment where = segment(sequences_[s]);
    for (int32_t head = 0; head < shape_.num_kv_heads; ++head) {
      const int32_t* frames =
          is_streaming(head) ? where.stream_frames : where.frames + head * where.frames_head_stride;
      for (int32_t key = 0; key < sequences_[s].length; ++key) {
        if (std::ranges::any_of(parts, [&](const WorldPart& part) {
              return part.sequence == static_cast<int32_t>(s) && sees(part, key, head);
            })) {
          continue;
        }
        std::byte* page = host_layer().frame(frames[key / page_.page_tokens], head);
        const int32_t token = key % page_.page_tokens;
        for (int32_t row : {token, token + page_.page_tokens}) {
          std::memset(page + row * row_bytes, 0xff, static_cast<size_t>(row_bytes));
        }
      }
    }
  }
  copy_pools();
}

std::vector<float> AttentionWorld::expected(const std::vector<WorldPart>& parts) const {
  base::ThreadPool threads(kThreads);
  device::Stream stream(threads);
  std::vector<float> all;
  for (const WorldPart& part : parts) {
    const int32_t rows = part.end - part.begin;
    std::vector<float> out(static_cast<size_t>(rows * row_elements()), NAN);
    if (part.sequence >= 0) {
      const Sequence& sequence = sequences_[static_cast<size_t>(part.sequence)];
      AttentionSegment where = segment(sequence);
      where.kind = part.selected.empty() ? core::RowKind::kPrompt : core::RowKind::kDecode;
      where.row_end = rows;
      where.position_begin = part.begin;
      where.open_frames += part.begin / page_.page_tokens;
      std::vector<int32_t> lists, counts;
      const auto stride = static_cast<size_t>(pages(sequence.length));
      if (!part.selected.empty()) {
        lists.resize(stride * part.selected.size());
        for (size_t h = 0; h < part.selected.size(); ++h) {
          auto selected = part.selected[h];
          if (selected.empty()) {
            selected.resize(static_cast<size_t>(pages(part.end)));
            std::iota(selected.begin(), selected.end(), 0);
          }
          counts.push_back(static_cast<int32_t>(selected.size()));
          for (size_t i = 0; i < selected.size(); ++i) {
            lists[h * stride + i] =
                where.frames[static_cast<int64_t>(h) * where.frames_head_stride + selected[i]];
          }
        }
        where.frames = lists.data();
        where.frames_head_stride = static_cast<int64_t>(stride);
        where.num_selected = counts.data();
      }
      reference::attention(stream,
                           {.kv = host_layer(),
                            .q = sequence.q.data() + part.begin * row_elements(),
                            .q_stride = row_elements(),
                            .num_q_heads = shape_.num_q_heads,
                            .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                            .segments = {&where, 1},
                            .out = out.data(),
                            .out_stride = row_elements()});
    }
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

namespace {

// Queries and tables of a call, as the kernels take them.
struct Rows {
  std::vector<uint16_t> q;
  std::vector<int32_t> positions, row_tables;
  std::vector<PageTable> tables;
};

}  // namespace

AttentionWorld::Upload AttentionWorld::upload() {
  Upload upload = {stream_, {}};
  layer_.columns = upload.array(columns_);
  layer_.ring_columns = upload.array(ring_columns_);
  layer_.kinds = shape_.kinds.empty() ? nullptr : upload.array(shape_.kinds);
  return upload;
}

PageTable AttentionWorld::table_of(Upload& call, const WorldPart& part) const {
  const Sequence& sequence = sequences_[static_cast<size_t>(part.sequence)];
  const int32_t own = part.begin / page_.page_tokens;
  PageTable table = {.slot = part.sequence, .open_begin = own};
  table.frames = call.array(shape_.head_tables ? sequence.head_frames : sequence.rows);
  table.head_stride = shape_.head_tables ? static_cast<int64_t>(sequence.rows.size()) : 0;
  table.open_rows =
      call.array(std::vector<int32_t>(sequence.open_rows.begin() + own, sequence.open_rows.end()));
  return table;
}

void AttentionWorld::make_workspace(int32_t rows, int32_t context_max) {
  const int64_t bytes = decode_workspace_bytes(rows, shape_.num_q_heads, shape_.num_kv_heads,
                                               shape_.head_dim, context_max, gpu().num_sms);
  if (bytes <= workspace_bytes_) return;  // zeroed when made, then used by all calls
  workspace_ = std::move(device::cuda::Buffer::allocate(bytes, "test workspace")).value();
  stream_.fill(workspace_.data(), 0, bytes);
  workspace_bytes_ = bytes;
}

std::vector<uint16_t> AttentionWorld::decode(const std::vector<WorldPart>& parts) {
  Upload call = upload();
  Rows rows;
  std::vector<int32_t> lists, counts;
  int32_t stride = 1, context_max = 1;
  for (const WorldPart& part : parts) {
    context_max = std::max(context_max, part.end);
    for (const auto& list : part.selected) {
      stride = std::max(stride, static_cast<int32_t>(list.size()));
    }
  }
  for (const WorldPart& part : parts) {
    const bool padding = part.sequence < 0;
    rows.positions.push_back(padding ? -7 : part.begin);
    rows.row_tables.push_back(padding ? -1 : static_cast<int32_t>(rows.tables.size()));
    const Sequence& sequence = sequences_[static_cast<size_t>(std::max(part.sequence, 0))];
    const float* q = sequence.q.data() + (padding ? 0 : part.begin) * row_elements();
    for (int64_t i = 0; i < row_elements(); ++i) {
      rows.q.push_back(reference::float_to_bfloat16(q[i]));
    }
    for (int32_t h = 0; h < shape_.num_kv_heads; ++h) {
      const auto head = static_cast<size_t>(h);
      const bool listed = !part.selected.empty() && !part.selected[head].empty();
      counts.push_back(listed ? static_cast<int32_t>(part.selected[head].size()) : -1);
      const size_t begin = lists.size();
      lists.resize(begin + static_cast<size_t>(stride), INT32_MIN);
      for (size_t i = 0; listed && i < part.selected[head].size(); ++i) {
        const auto page = static_cast<size_t>(part.selected[head][i]);
        lists[begin + i] = shape_.head_tables
                               ? sequence.head_frames[head * sequence.rows.size() + page]
                               : sequence.frames[page] + columns_[head];
      }
    }
    if (!padding) rows.tables.push_back(table_of(call, part));
  }
  const auto count = static_cast<int32_t>(parts.size());
  std::vector<uint16_t> out(rows.q.size(), 0xffff);
  auto* device_out = call.array(out);
  const int num_sms = gpu().num_sms;
  make_workspace(count, context_max);
  decode_attention(stream_.handle(),
                   {.kv = layer_,
                    .rows = {.num_rows = count,
                             .positions = call.array(rows.positions),
                             .row_tables = call.array(rows.row_tables),
                             .tables = call.array(rows.tables)},
                    .num_rows = count,
                    .q = reinterpret_cast<const __nv_bfloat16*>(call.array(rows.q)),
                    .q_stride = row_elements(),
                    .num_q_heads = shape_.num_q_heads,
                    .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                    .list = call.array(lists),
                    .num_listed = call.array(counts),
                    .list_stride = stride,
                    .out = reinterpret_cast<__nv_bfloat16*>(device_out),
                    .out_stride = row_elements(),
                    .workspace = workspace_.data(),
                    .context_max = context_max,
                    .num_sms = num_sms});
  stream_.copy(out.data(), device_out, static_cast<int64_t>(out.size() * sizeof(uint16_t)));
  const auto done = stream_.synchronize();
  EXPECT_TRUE(done.ok()) << done.error().message;
  if (!done.ok()) std::abort();
  return out;
}

std::vector<uint16_t> AttentionWorld::prefill(const std::vector<WorldPart>& parts,
                                              void (*attend)(cudaStream_t, const PrefillArgs&)) {
  Upload call = upload();
  Rows rows;
  std::vector<PrefillSegment> segments;
  int32_t row = 0;
  for (const WorldPart& part : parts) {
    const Sequence& sequence = sequences_[static_cast<size_t>(part.sequence)];
    for (int64_t i = part.begin * row_elements(); i < part.end * row_elements(); ++i) {
      rows.q.push_back(reference::float_to_bfloat16(sequence.q[static_cast<size_t>(i)]));
    }
    segments.push_back({.row_begin = row,
                        .row_end = row + part.end - part.begin,
                        .position_begin = part.begin,
                        .table = static_cast<int32_t>(rows.tables.size())});
    row += part.end - part.begin;
    rows.tables.push_back(table_of(call, part));
  }
  std::vector<uint16_t> out(rows.q.size(), 0xffff);
  auto* device_out = call.array(out);
  attend(stream_.handle(), {.kv = layer_,
                            .q = reinterpret_cast<const __nv_bfloat16*>(call.array(rows.q)),
                            .q_stride = row_elements(),
                            .num_q_heads = shape_.num_q_heads,
                            .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim)),
                            .tables = call.array(rows.tables),
                            .segments = call.array(segments),
                            .host_segments = segments.data(),
                            .num_segments = static_cast<int32_t>(segments.size()),
                            .out = reinterpret_cast<__nv_bfloat16*>(device_out),
                            .out_stride = row_elements(),
                            .num_sms = gpu().num_sms});
  stream_.copy(out.data(), device_out, static_cast<int64_t>(out.size() * sizeof(uint16_t)));
  const auto done = stream_.synchronize();
  EXPECT_TRUE(done.ok()) << done.error().message;
  if (!done.ok()) std::abort();
  return out;
}

float AttentionWorld::largest_value() const {
  return largest_value_;
}

void expect_close(const std::vector<uint16_t>& actual, const std::vector<float>& expected,
                  float bound) {
  ASSERT_EQ(actual.size(), expected.size());
  int failures = 0;
  float worst = 0.0f;
  for (size_t i = 0; i < actual.size(); ++i) {
    const float x = reference::bfloat16_to_float(actual[i]);
    if (std::isnan(expected[i])) {  // nobody's row: poisoned before, left alone
      EXPECT_EQ(actual[i], 0xffff) << "element " << i << " of padding";
      continue;
    }
    const float error = std::fabs(x - expected[i]);
    worst = std::max(worst, error);
    if (!(error <= bound) && failures++ < 5) {
      ADD_FAILURE() << "element " << i << ": expected " << expected[i] << ", got " << x;
    }
  }
  EXPECT_EQ(failures, 0) << "of " << actual.size() << ", worst error " << worst << ", bound "
                         << bound;
}

}  // namespace ops::cuda
