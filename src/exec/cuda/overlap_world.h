// Decode rows under selection of which some pages are at home only, layer by layer, as
// select_and_resolve() leaves them: what the test and the measurement of attention beside a gather
// run on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cuda/attention.h"
#include "ops/cuda/device_array.h"
#include "ops/cuda/page_ops.h"
#include "ops/cuda/row_ops.h"
#include "store/cuda/transfers.h"

namespace exec::cuda {

struct OverlapShape {
  int32_t rows = 1, num_q_heads = 32, num_kv_heads = 8, head_dim = 128, page_tokens = 32;
  int32_t listed = 64;    // pages of each list, the row's own the last
  int32_t misses = 0;     // of a list at most: as many as each has, or a random number of them
  bool is_random = true;  // how many
  int32_t num_layers = 1;

  int32_t places() const { return rows * num_kv_heads; }
  int64_t entries() const { return int64_t{places()} * listed; }
  core::PageShape page() const { return {core::DType::kBF16, page_tokens, page_tokens, head_dim}; }
};

class OverlapWorld {
 public:
  // `homes`: of num_homes pages, in pinned memory, borrowed.
  OverlapWorld(device::cuda::Stream& stream, const OverlapShape& shape, const std::byte* homes,
               int64_t num_homes, int num_sms, uint32_t seed)
      : stream_(stream), shape_(shape), homes_(homes), num_sms_(num_sms), random_(seed) {
    const int64_t page_bytes = shape.page().page_bytes();
    const int64_t entries = shape.entries() * shape.num_layers;
    frames_ = Bytes(entries * page_bytes);
    q_ = Bytes(q_elements() * 2);
    out_ = Bytes(q_elements() * shape.num_layers * 2);
    fill(frames_, 1);
    fill(q_, 2);
    make_lists(num_homes);
    const int64_t workspace = ops::cuda::decode_workspace_bytes(
        shape.rows, shape.num_q_heads, shape.num_kv_heads, shape.head_dim,
        shape.listed * shape.page_tokens, num_sms);
    workspace_ = Bytes(workspace);
    stream.fill(workspace_.data(), 0, workspace);
    stream.synchronize().value();
  }

  // Enqueues what a selection leaves of all layers.
  void arm() const { stream_.copy(arrivals_.data(), armed_.data(), arrivals_.size() * 4); }
  // What has no page yet is NaN.
  void poison() {
    const int64_t page_bytes = shape_.page().page_bytes();
    for (const int32_t frame : missed_frames_) {
      stream_.fill(frames_.data() + frame * page_bytes, 0xff, page_bytes);
    }
    stream_.fill(out_.data(), 0xff, out_.size());
  }

  store::cuda::GatherArgs gather(int32_t layer, bool beside) const {
    const int64_t at = layer * shape_.entries();
    return {.homes = homes_,
            .frames = frames_.data(),
            .page_bytes = shape_.page().page_bytes(),
            .miss_homes = miss_homes_.data() + at,
            .miss_frames = miss_frames_.data() + at,
            .num_misses = num_misses_.data() + layer * shape_.places(),
            .num_places = shape_.places(),
            .list_stride = shape_.listed,
            .progress = progress_.data(),
            .gather_ns = gather_ns_.data(),
            .arrived_bytes = beside ? arrivals_.data() + at : nullptr,
            .miss_entries = miss_entries_.data() + at};
  }
  // `sms_taken`: by the gather beside it.
  ops::cuda::DecodeArgs attention(int32_t layer, bool beside, int sms_taken) const {
    const int64_t at = layer * shape_.entries();
    const int64_t page_bytes = shape_.page().page_bytes();
    return {.kv = {.pool = {.base = frames_.data(),
                            .page = shape_.page(),
                            .page_bytes = page_bytes,
                            .num_columns = 1,
                            .num_frames = frames_.size() / page_bytes},
                   .num_kv_heads = shape_.num_kv_heads,
                   .columns = columns_.data()},
            .rows = {.num_rows = shape_.rows,
                     .positions = positions_.data(),
                     .row_tables = row_tables_.data(),
                     .tables = tables_.data()},
            .num_rows = shape_.rows,
            .q = reinterpret_cast<const __nv_bfloat16*>(q_.data()),
            .q_stride = int64_t{shape_.num_q_heads} * shape_.head_dim,
            .num_q_heads = shape_.num_q_heads,
            .softmax_scale = 0.1f,
            .list = lists_.data() + at,
            .num_listed = num_listed_.data(),
            .list_stride = shape_.listed,
            .arrivals = beside ? arrivals_.data() + at : nullptr,
            .gather_begun = beside ? &progress_.data()->begun : nullptr,
            .out = reinterpret_cast<__nv_bfloat16*>(out_.data()) + layer * q_elements(),
            .out_stride = int64_t{shape_.num_q_heads} * shape_.head_dim,
            .workspace = workspace_.data(),
            .context_max = shape_.listed * shape_.page_tokens,
            .num_sms = num_sms_ - sms_taken};
  }

  // Of all layers, as BF16 bits.
  std::vector<uint16_t> out() const {
    std::vector<uint16_t> values(static_cast<size_t>(out_.size() / 2));
    stream_.copy(values.data(), out_.data(), out_.size());
    stream_.synchronize().value();
    return values;
  }
  int64_t q_elements() const { return int64_t{shape_.rows} * shape_.num_q_heads * shape_.head_dim; }
  int64_t num_missed() const { return std::ssize(missed_frames_); }
  int64_t missed_bytes() const { return num_missed() * shape_.page().page_bytes(); }
  std::vector<int32_t> arrivals() const { return arrivals_.get(); }
  store::cuda::GatherProgress progress() const { return progress_.get()[0]; }
  int64_t gather_ns() const { return gather_ns_.get()[0]; }

 private:
  using Bytes = ops::cuda::DeviceArray<std::byte>;
  using Numbers = ops::cuda::DeviceArray<int32_t>;

  void fill(const Bytes& bytes, uint64_t seed) {
    ops::cuda::fill_random(stream_.handle(), reinterpret_cast<__nv_bfloat16*>(bytes.data()),
                           bytes.size() / 2, seed);
  }

  void make_lists(int64_t num_homes) {
    const auto all = static_cast<size_t>(shape_.entries() * shape_.num_layers);
    std::vector<int32_t> lists(all), miss_homes(all, -1), miss_frames(all, -1), entries(all, -1);
    std::vector<int32_t> armed(all, ops::cuda::kPageIsHere), counts;
    std::iota(lists.begin(), lists.end(), 0);
    std::ranges::shuffle(lists, random_);
    std::vector<int32_t> places(static_cast<size_t>(shape_.listed - 1));
    for (int64_t place = 0; place < shape_.places() * shape_.num_layers; ++place) {
      std::iota(places.begin(), places.end(), 0);
      std::ranges::shuffle(places, random_);
      const auto most = static_cast<uint32_t>(shape_.misses);
      const auto count = static_cast<int64_t>(shape_.is_random ? random_() % (most + 1) : most);
      std::sort(places.begin(), places.begin() + count);
      counts.push_back(static_cast<int32_t>(count));
      for (int64_t i = 0; i < count; ++i) {
        const auto entry =
            static_cast<size_t>(place * shape_.listed + places[static_cast<size_t>(i)]);
        const auto at = static_cast<size_t>(place * shape_.listed + i);
        miss_homes[at] = static_cast<int32_t>(random_() % static_cast<uint64_t>(num_homes));
        miss_frames[at] = lists[entry];
        entries[at] = places[static_cast<size_t>(i)];
        armed[entry] = 0;
        missed_frames_.push_back(lists[entry]);
      }
    }
    lists_ = Numbers(lists), miss_homes_ = Numbers(miss_homes);
    miss_frames_ = Numbers(miss_frames), miss_entries_ = Numbers(entries);
    armed_ = Numbers(armed), arrivals_ = Numbers(armed), num_misses_ = Numbers(counts);
    num_listed_ =
        Numbers(std::vector<int32_t>(static_cast<size_t>(shape_.places()), shape_.listed));
    columns_ = Numbers(std::vector<int32_t>(static_cast<size_t>(shape_.num_kv_heads), 0));
    std::vector<int32_t> positions, tables(static_cast<size_t>(shape_.rows));
    for (int32_t row = 0; row < shape_.rows; ++row) {
      positions.push_back(
          100'000 * shape_.page_tokens +
          static_cast<int32_t>(random_() % static_cast<uint32_t>(shape_.page_tokens)));
    }
    std::iota(tables.begin(), tables.end(), 0);
    positions_ = Numbers(positions), row_tables_ = Numbers(tables);
    tables_ = ops::cuda::DeviceArray<ops::cuda::PageTable>(
        std::vector<ops::cuda::PageTable>(static_cast<size_t>(shape_.rows)));
  }

  device::cuda::Stream& stream_;
  const OverlapShape shape_;
  const std::byte* const homes_;
  const int num_sms_;
  std::mt19937 random_;
  std::vector<int32_t> missed_frames_;
  Bytes frames_, q_, out_, workspace_;
  Numbers lists_, num_listed_, miss_homes_, miss_frames_, miss_entries_, num_misses_;
  Numbers arrivals_, armed_, columns_, positions_, row_tables_;
  ops::cuda::DeviceArray<ops::cuda::PageTable> tables_;
  ops::cuda::DeviceArray<store::cuda::GatherProgress> progress_{
      std::vector<store::cuda::GatherProgress>(1)};
  ops::cuda::DeviceArray<int64_t> gather_ns_{std::vector<int64_t>{0}};
};

}  // namespace exec::cuda
