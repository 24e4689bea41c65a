// select_cuda_bench: score, select and resolve on a GPU, against the bytes of statistics that must
// be read.
//
//   select_cuda_bench [bytes read a second at most, in GB/s: 4300]
//
// "Both": page_score() and select_and_resolve(); "in one launch": by clusters of 8 and 16 blocks.
// "Reusing": both, when no row's turn to select has come.
// "Missing": two queries take turns, and there are frames for little more than one selection; both,
// and in one launch of clusters of 8.
// Each measurement is a graph of as many layers as keep their statistics out of the L2, replayed;
// the median of 15 replays, by the number of layers. Blocks of a sequence lie one behind the other,
// or anywhere.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <vector>

#include "ops/cuda/device_array.h"
#include "ops/cuda/page_ops.h"
#include "ops/page_resolve.h"
#include "ops/reference/bfloat16.h"

namespace ops::cuda {
namespace {

using device::cuda::Event;
using device::cuda::Graph;
using device::cuda::Stream;

struct Shape {
  const char* name;
  int32_t batch, context, heads, group, head_dim, page_tokens, logical_tokens, num_selected;
  bool scattered = false;
  int32_t frames = 0;  // of a sequence; 0: resident
};

template <class T>
T take(base::Result<T> result) {
  CHECK(result.ok(), "{}", result.error().message);
  return std::move(result).value();
}

class Bench {
 public:
  Bench(const Shape& shape, double bound_gb_s) : shape_(shape), bound_gb_s_(bound_gb_s) {
    page_ = {core::DType::kBF16, shape.page_tokens, shape.logical_tokens, shape.head_dim};
    pages_max_ = shape.context / shape.page_tokens + 1;
    num_blocks_ = int64_t{pages_max_} * shape.batch;
    layer_bytes_ = num_blocks_ * shape.heads * page_.stats_bytes();
    layers_ = static_cast<int32_t>(std::clamp<int64_t>((int64_t{600} << 20) / layer_bytes_, 2, 16));
    columns_ = layers_ * shape.heads;
    make_inputs();
    make_state();
    stream_ = take(Stream::create());
  }

  void run() {
    const bool tiered = shape_.frames > 0;
    const double score =
        layer_us([&](int32_t l) { page_score(stream_.handle(), args(l, 0).score); });
    const double select =
        layer_us([&](int32_t l) { select_and_resolve(stream_.handle(), args(l, 0)); });
    const double both = layer_us([&](int32_t l) { choose(l, 0, 0); });
    const auto reuse = [&](int32_t layer, const SelectRow* rows) {
      SelectArgs a = args(layer, 0);
      a.score.rows = rows;
      a.score.reuse_interval = 1 << 30;  // more than positions: no turn comes
      page_score(stream_.handle(), a.score);
      select_and_resolve(stream_.handle(), a);
    };
    for (int32_t l = 0; l < layers_; ++l) reuse(l, rows_.data());  // fresh ones: selections to keep
    const double reusing = layer_us([&](int32_t l) { reuse(l, reusing_rows_.data()); });
    const bool can = can_select_in_one_launch(args(0, 0));
    const auto in_one_us = [&](int cluster_blocks) {
      return can ? layer_us([&](int32_t l) { choose(l, 0, cluster_blocks); }) : 0.0;
    };
    const auto missing_us = [&](int cluster_blocks) {
      return layer_us([&](int32_t l) {
               for (int32_t set : {1, 0}) choose(l, set, cluster_blocks);
             }) /
             2;
    };
    const double bound = static_cast<double>(layer_bytes_) / bound_gb_s_ / 1e3;
    printf(
        "%-44s bound %6.1f  score %6.1f (%3.0f%%)  select %5.1f  both %6.1f (%3.0f%%)  reusing "
        "%5.1f",
        shape_.name, bound, score, 100 * bound / score, select, both, 100 * bound / both, reusing);
    printf("  in one launch %6.1f %6.1f", in_one_us(8), in_one_us(16));
    if (tiered) printf("  missing %6.1f %6.1f", missing_us(0), can ? missing_us(8) : 0.0);
    printf("\n");
    CHECK(error_.get()[0] == 0, "error {}", error_.get()[0]);
  }

 private:
  // By clusters of so many blocks; 0: by two launches.
  void choose(int32_t layer, int32_t q_set, int cluster_blocks) {
    const SelectArgs a = args(layer, q_set);
    if (cluster_blocks > 0) return select_in_one_launch(stream_.handle(), a, cluster_blocks);
    page_score(stream_.handle(), a.score);
    select_and_resolve(stream_.handle(), a);
  }

  void make_inputs() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    std::vector<uint16_t> some(1 << 20);
    for (uint16_t& v : some) v = reference::float_to_bfloat16(normal(random));
    const int64_t words = layer_bytes_ / 2 * layers_;
    stats_ = DeviceArray<uint16_t>(words);
    for (int64_t at = 0; at < words;) {
      // Runs of the same numbers at changing places.
      const int64_t skip = static_cast<int64_t>(random() % 4096) * 8;
      const int64_t count = std::min(words - at, static_cast<int64_t>(some.size()) - skip);
      CHECK(cudaMemcpy(stats_.data() + at, some.data() + skip, static_cast<size_t>(count) * 2,
                       cudaMemcpyHostToDevice) == cudaSuccess);
      at += count;
    }
    const int64_t q_words = int64_t{shape_.batch} * q_stride();
    std::vector<uint16_t> q(static_cast<size_t>(q_words * layers_ * 2));
    for (uint16_t& v : q) v = reference::float_to_bfloat16(normal(random));
    q_ = DeviceArray<uint16_t>(q);
    std::vector<int32_t> blocks(static_cast<size_t>(num_blocks_));
    std::iota(blocks.begin(), blocks.end(), 0);
    if (shape_.scattered) std::ranges::shuffle(blocks, random);
    blocks_ = DeviceArray<int32_t>(blocks);
    std::vector<int32_t> columns(static_cast<size_t>(columns_));
    std::iota(columns.begin(), columns.end(), 0);
    column_list_ = DeviceArray<int32_t>(columns);
    std::vector<SelectRow> rows;
    for (int32_t i = 0; i < shape_.batch; ++i) {
      const int32_t position = shape_.context - 1;
      rows.push_back({.row = i,
                      .slot = i,
                      .position = position,
                      .num_selected = shape_.num_selected,
                      .stamp = static_cast<uint32_t>(position) + 1,
                      .fresh = 1,
                      .resident = shape_.frames == 0,
                      .saved_pages = pages_max_,
                      .num_frames = shape_.frames});
    }
    rows_ = DeviceArray<SelectRow>(rows);
    for (SelectRow& row : rows) row.fresh = 0;
    reusing_rows_ = DeviceArray<SelectRow>(rows);
    num_rows_ = DeviceArray<int32_t>(std::vector<int32_t>{shape_.batch});
  }

  void make_state() {
    const int64_t tables = int64_t{shape_.batch} * columns_;
    const int32_t frames = std::max(1, shape_.frames);
    frame_of_ = DeviceArray<int32_t>(tables * pages_max_);  // 0xff: nowhere
    selected_at_ = DeviceArray<uint32_t>(tables * pages_max_);
    selected_at_.fill(0);
    page_of_ = DeviceArray<int32_t>(tables * frames);
    kept_ = DeviceArray<int32_t>(tables * shape_.num_selected);
    num_kept_ = DeviceArray<int32_t>(tables);
    std::vector<int32_t> own(static_cast<size_t>(shape_.batch) * static_cast<size_t>(frames));
    std::iota(own.begin(), own.end(), 0);
    own_rows_ = DeviceArray<int32_t>(own);
    std::vector<PageTable> page_tables;
    std::vector<int32_t> row_tables;
    for (int32_t i = 0; i < shape_.batch; ++i) {
      page_tables.push_back({.frames = blocks_.data() + int64_t{i} * pages_max_});
      row_tables.push_back(i);
    }
    tables_ = DeviceArray<PageTable>(page_tables);
    row_tables_ = DeviceArray<int32_t>(row_tables);
    const int64_t places = int64_t{shape_.batch} * shape_.heads;
    scores_ = DeviceArray<float>(places * pages_max_);
    frames_ = DeviceArray<int32_t>(places * shape_.num_selected);
    num_listed_ = DeviceArray<int32_t>(places);
    miss_homes_ = DeviceArray<int32_t>(places * shape_.num_selected);
    miss_frames_ = DeviceArray<int32_t>(places * shape_.num_selected);
    num_misses_ = DeviceArray<int32_t>(places);
    scratch_taken_ = DeviceArray<int32_t>(std::vector<int32_t>{0, 0});
    error_ = DeviceArray<int32_t>(std::vector<int32_t>{0});
  }

  int64_t q_stride() const { return int64_t{shape_.heads} * shape_.group * shape_.head_dim; }

  SelectArgs args(int32_t layer, int32_t q_set) const {
    SelectArgs a;
    a.score.page = page_;
    a.score.q = reinterpret_cast<const __nv_bfloat16*>(q_.data() + (int64_t{layer} * 2 + q_set) *
                                                                       shape_.batch * q_stride());
    a.score.q_stride = q_stride();
    a.score.num_q_heads = shape_.heads * shape_.group;
    a.score.num_kv_heads = shape_.heads;
    a.score.stats = {reinterpret_cast<std::byte*>(stats_.data()), page_.stats_bytes(), num_blocks_};
    a.score.selecting_columns = column_list_.data() + layer * shape_.heads;
    a.score.state = {.pages_max = pages_max_,
                     .frames_max = std::max(1, shape_.frames),
                     .kept_max = shape_.num_selected,
                     .num_columns = columns_,
                     .frame_of = frame_of_.data(),
                     .selected_at = selected_at_.data(),
                     .page_of = page_of_.data(),
                     .kept = kept_.data(),
                     .num_kept = num_kept_.data(),
                     .own_rows = own_rows_.data(),
                     .blocks = blocks_.data()};
    a.score.rows = rows_.data();
    a.score.num_rows = num_rows_.data();
    a.score.rows_max = shape_.batch;
    a.score.layer = layer;
    a.score.scores = scores_.data();
    a.score.num_sms = 132;
    a.pool.page = page_;
    a.pool.num_columns = columns_;
    a.columns = a.home_columns = a.score.selecting_columns;
    a.tables = tables_.data();
    a.row_tables = row_tables_.data();
    a.num_home_columns = columns_;
    a.list_stride = shape_.num_selected;
    a.frames = frames_.data();
    a.num_listed = num_listed_.data();
    a.miss_homes = miss_homes_.data();
    a.miss_frames = miss_frames_.data();
    a.num_misses = num_misses_.data();
    a.scratch_taken = scratch_taken_.data();
    a.error = error_.data();
    return a;
  }

  // Median microseconds of a layer.
  double layer_us(const std::function<void(int32_t)>& layer) {
    const Graph graph = take(Graph::capture(stream_, [&] {
      for (int32_t l = 0; l < layers_; ++l) layer(l);
    }));
    const Event begin = take(Event::create(true)), end = take(Event::create(true));
    std::vector<double> times;
    for (int i = 0; i < 18; ++i) {
      stream_.record(begin);
      graph.launch(stream_);
      stream_.record(end);
      CHECK(stream_.synchronize().ok());
      if (i >= 3) times.push_back(end.us_since(begin) / layers_);
    }
    std::ranges::sort(times);
    return times[times.size() / 2];
  }

  const Shape shape_;
  const double bound_gb_s_;
  core::PageShape page_;
  int32_t pages_max_ = 0, layers_ = 0, columns_ = 0;
  int64_t num_blocks_ = 0, layer_bytes_ = 0;
  Stream stream_;
  DeviceArray<uint16_t> stats_, q_;
  DeviceArray<int32_t> blocks_, column_list_, num_rows_, frame_of_, page_of_, kept_, num_kept_;
  DeviceArray<int32_t> own_rows_, row_tables_, frames_, num_listed_, miss_homes_, miss_frames_;
  DeviceArray<int32_t> num_misses_, scratch_taken_, error_;
  DeviceArray<uint32_t> selected_at_;
  DeviceArray<SelectRow> rows_, reusing_rows_;
  DeviceArray<PageTable> tables_;
  DeviceArray<float> scores_;
};

}  // namespace
}  // namespace ops::cuda

int main(int argc, char** argv) {
  const double bound = argc > 1 ? atof(argv[1]) : 4300.0;
  const std::vector<ops::cuda::Shape> shapes = {
      {"8 x 128k, Hk 8 G 4 D 128, 32/32, K 64", 8, 131072, 8, 4, 128, 32, 32, 64},
      {"the same, blocks anywhere", 8, 131072, 8, 4, 128, 32, 32, 64, true},
      {"the same, 80 frames a sequence", 8, 131072, 8, 4, 128, 32, 32, 64, true, 80},
      {"the same, 200 frames, K 128", 8, 131072, 8, 4, 128, 32, 32, 128, true, 200},
      {"the same, all pages have frames", 8, 131072, 8, 4, 128, 32, 32, 64, true, 4096},
      {"1 x 128k", 1, 131072, 8, 4, 128, 32, 32, 64},
      {"1 x 32k", 1, 32768, 8, 4, 128, 32, 32, 64},
      {"1 x 8k", 1, 8192, 8, 4, 128, 32, 32, 64},
      {"2 x 128k", 2, 131072, 8, 4, 128, 32, 32, 64},
      {"2 x 32k", 2, 32768, 8, 4, 128, 32, 32, 64},
      {"2 x 8k", 2, 8192, 8, 4, 128, 32, 32, 64},
      {"4 x 128k", 4, 131072, 8, 4, 128, 32, 32, 64},
      {"4 x 32k", 4, 32768, 8, 4, 128, 32, 32, 64},
      {"4 x 8k", 4, 8192, 8, 4, 128, 32, 32, 64},
      {"8 x 32k", 8, 32768, 8, 4, 128, 32, 32, 64},
      {"8 x 8k", 8, 8192, 8, 4, 128, 32, 32, 64},
      {"1 x 32k, 80 frames", 1, 32768, 8, 4, 128, 32, 32, 64, true, 80},
      {"1 x 32k, Hk 32 G 1 D 128 (LWM-7B)", 1, 32768, 32, 1, 128, 32, 32, 64},
      {"28 x 32k, 80 frames", 28, 32768, 8, 4, 128, 32, 32, 64, true, 80},
      {"109 x 8k", 109, 8192, 8, 4, 128, 32, 32, 64, true},
      {"8 x 128k, 64/16", 8, 131072, 8, 4, 128, 64, 16, 32},
      {"8 x 128k, 16/16 (8192 pages)", 8, 131072, 8, 4, 128, 16, 16, 128},
      {"4 x 32k, Hk 32 G 1 D 128 (LWM-7B)", 4, 32768, 32, 1, 128, 32, 32, 64},
      {"8 x 128k, Hk 8 G 8 D 128", 8, 131072, 8, 8, 128, 32, 32, 64},
      {"8 x 128k, Hk 3 G 3 D 64", 8, 131072, 3, 3, 64, 32, 32, 64},
      {"8 x 128k, Hk 2 G 16 D 128", 8, 131072, 2, 16, 128, 32, 32, 64},
  };
  printf("us a layer; of the bound at %.0f GB/s in brackets\n", bound);
  for (const auto& shape : shapes) ops::cuda::Bench(shape, bound).run();
}
