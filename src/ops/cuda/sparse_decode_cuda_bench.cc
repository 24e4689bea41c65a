// sparse_decode_cuda_bench: what a layer of a decode step under selection takes on a GPU, as the
// engine enqueues it: scores, selection, resolution and attention over the frames that these list,
// one behind the other in one graph; and its parts alone.
//
//   sparse_decode_cuda_bench
//
// 8 sequences of 128k tokens, Hk 8, G 4, D 128, BF16 pages of 32 tokens in random rows, a budget of
// 2,048 tokens, all pages on the device. "resident": where the row's page table says, as without
// tiers; "tables": each is looked up in the tables of residency, as with tiers (no gather: nothing
// is missed). "reusing": no row's turn to select has come; "reuse 4": four steps behind each other
// with a reuse interval of 4, so that each layer selects in one of them, in one graph.
//
// Microseconds of a layer (and of a step). A graph walks over as many layers as there is memory
// for, up to 8, each with statistics and pages of its own, so that none is found in the L2. Graphs
// are replayed in turns; medians of 15 rounds. What the measured graphs write is checked.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "ops/cuda/attention.h"
#include "ops/cuda/device_array.h"
#include "ops/cuda/page_ops.h"
#include "ops/cuda/row_ops.h"

namespace ops::cuda {
namespace {

using device::cuda::Buffer;
using device::cuda::Event;
using device::cuda::Graph;
using device::cuda::Stream;

constexpr int32_t kBatch = 8, kContext = 131072, kHeads = 8, kGroup = 4, kHeadDim = 128;
constexpr int32_t kPageTokens = 32, kSelected = 64, kReuse = 4, kLayersMax = 8;
constexpr int32_t kPages = kContext / kPageTokens, kPlaces = kBatch * kHeads;
// Of a list: the selection, and a page that is begun while it is used again, as the engine has it.
constexpr int32_t kListStride = kSelected + 1;
constexpr int64_t kRowElements = int64_t{kHeads} * kGroup * kHeadDim;
constexpr int32_t kNever = 1 << 30;  // reuse interval of which no turn comes: beyond all positions
constexpr int kRounds = 15, kWarmRounds = 2;

constexpr core::PageShape kPage = {core::DType::kBF16, kPageTokens, kPageTokens, kHeadDim};
constexpr int64_t kRows = int64_t{kBatch} * kPages;  // of frames, and blocks of statistics

template <class T>
T take(base::Result<T> result) {
  CHECK(result.ok(), "{}", result.error().message);
  return std::move(result).value();
}

int64_t layer_bytes() {
  return kRows * kHeads * (kPage.page_bytes() + kPage.stats_bytes());
}

// Rows of steps at the last kReuse positions of the context: one page is the own page of all.
struct Variant {
  const char* name;
  DeviceArray<SelectRow> fresh;               // of the first of these steps, with nothing kept
  std::vector<DeviceArray<SelectRow>> steps;  // (kReuse)
};

class Bench {
 public:
  explicit Bench(const device::cuda::GpuInfo& gpu)
      : num_sms_(gpu.num_sms), stream_(take(Stream::create())) {
    constexpr int64_t kSpare = int64_t{2} << 30;
    layers_ = static_cast<int32_t>(
        std::clamp<int64_t>((gpu.free_bytes - kSpare) / layer_bytes(), 2, kLayersMax));
    columns_ = layers_ * kHeads;
    make_tables();
    make_state();
    make_outputs();
    fill(&pages_, kRows * columns_ * kPage.page_bytes(), 1);
    fill(&stats_, kRows * columns_ * kPage.stats_bytes(), 2);
    fill(&q_, layers_ * kBatch * kRowElements * 2, 3);
    const int64_t workspace =
        decode_workspace_bytes(kBatch, kHeads * kGroup, kHeads, kHeadDim, kContext, num_sms_);
    workspace_ = take(Buffer::allocate(workspace, "bench workspace"));
    // The arrays above were filled by another stream.
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    stream_.fill(workspace_.data(), 0, workspace);
    take_nothing(stream_.synchronize());
  }

  int32_t layers() const { return layers_; }

  void run(const Variant& v) {
    const DeviceArray<SelectRow>& last = v.steps.back();
    const int32_t at = kReuse - 1;
    // Selections to use again, and lists for what is measured alone.
    for (int32_t l = 0; l < layers_; ++l)
      score_and_select(handle(), select_args(l, v.fresh, kReuse));
    take_nothing(stream_.synchronize());
    std::vector<Timed> timed;
    const auto add = [&](int32_t steps, const std::function<void(int32_t, int32_t)>& call) {
      timed.push_back(capture(steps, call));
    };
    enum : size_t { kScore, kSelect, kBoth, kAttend, kChain, kReusing, kReusingChain, kMean };
    add(1, [&](int32_t, int32_t l) { page_score(handle(), select_args(l, last, 1).score); });
    add(1, [&](int32_t, int32_t l) { select_and_resolve(handle(), select_args(l, last, 1)); });
    add(1, [&](int32_t, int32_t l) { score_and_select(handle(), select_args(l, last, 1)); });
    add(1, [&](int32_t, int32_t l) { decode_attention(handle(), decode_args(l, at)); });
    add(1, [&](int32_t, int32_t l) { chain(l, last, at, 1); });
    add(1, [&](int32_t, int32_t l) { score_and_select(handle(), select_args(l, last, kNever)); });
    add(1, [&](int32_t, int32_t l) { chain(l, last, at, kNever); });
    add(kReuse, [&](int32_t s, int32_t l) { chain(l, v.steps[index(s)], s, kReuse); });
    for (int round = 0; round < kWarmRounds + kRounds; ++round) {
      for (Timed& t : timed) measure(t, round >= kWarmRounds);
    }
    for (const size_t chained : {kChain, kReusingChain, kMean}) check(v, timed[chained]);
    std::vector<double> us;
    for (Timed& t : timed) us.push_back(median(t.us));
    printf("%s: score %.1f  select %.1f  both %.1f  attend %.1f  sum %.1f  chain %.1f\n", v.name,
           us[kScore], us[kSelect], us[kBoth], us[kAttend], us[kBoth] + us[kAttend], us[kChain]);
    printf("%s, reusing: both %.1f  attend %.1f  sum %.1f  chain %.1f\n", v.name, us[kReusing],
           us[kAttend], us[kReusing] + us[kAttend], us[kReusingChain]);
    printf("%s, reuse %d: mean of a step %.1f\n", v.name, kReuse, us[kMean]);
    fflush(stdout);
  }

  Variant variant(const char* name, bool resident) const {
    Variant v{.name = name, .fresh = rows(0, resident, true), .steps = {}};
    for (int32_t step = 0; step < kReuse; ++step) v.steps.push_back(rows(step, resident, false));
    return v;
  }

 private:
  struct Timed {
    Graph graph;
    int32_t calls = 0;
    std::vector<double> us;  // of a call
  };

  static size_t index(int64_t i) { return static_cast<size_t>(i); }
  static void take_nothing(const base::Result<void>& done) {
    CHECK(done.ok(), "{}", done.error().message);
  }
  static double median(std::vector<double>& values) {
    std::ranges::sort(values);
    return values[values.size() / 2];
  }
  static int32_t position(int32_t step) { return kContext - kReuse + step; }
  cudaStream_t handle() const { return stream_.handle(); }

  void fill(Buffer* buffer, int64_t bytes, uint64_t seed) {
    *buffer = take(Buffer::allocate(bytes, "bench values"));
    CHECK(cudaDeviceSynchronize() == cudaSuccess);
    fill_random(handle(), buffer->as<__nv_bfloat16>(), bytes / 2, seed);
  }

  static DeviceArray<SelectRow> rows(int32_t step, bool resident, bool fresh) {
    std::vector<SelectRow> rows;
    for (int32_t i = 0; i < kBatch; ++i) {
      rows.push_back({.row = i,
                      .slot = i,
                      .position = position(step),
                      .num_selected = kSelected,
                      .stamp = static_cast<uint32_t>(position(step)) + 1,
                      .fresh = fresh,
                      .resident = resident,
                      .saved_pages = kPages,
                      .num_frames = resident ? 0 : kPages});
    }
    return DeviceArray<SelectRow>(rows);
  }

  // Page p of sequence i is block, and row of frames, host_rows_[i * kPages + p].
  void make_tables() {
    host_rows_.resize(index(kRows));
    std::iota(host_rows_.begin(), host_rows_.end(), 0);
    std::ranges::shuffle(host_rows_, std::mt19937(7));
    row_list_ = DeviceArray<int32_t>(host_rows_);
    std::vector<PageTable> tables;
    for (int32_t i = 0; i < kBatch; ++i) {
      tables.push_back({.frames = row_list_.data() + int64_t{i} * kPages, .slot = i});
    }
    tables_ = DeviceArray<PageTable>(tables);
    std::vector<int32_t> row_tables(kBatch);
    std::iota(row_tables.begin(), row_tables.end(), 0);
    row_tables_ = DeviceArray<int32_t>(row_tables);
    num_rows_ = DeviceArray<int32_t>(std::vector<int32_t>{kBatch});
    std::vector<int32_t> columns(index(columns_));
    std::iota(columns.begin(), columns.end(), 0);
    column_list_ = DeviceArray<int32_t>(columns);
    for (int32_t step = 0; step < kReuse; ++step) {
      positions_.emplace_back(std::vector<int32_t>(kBatch, position(step)));
    }
  }

  // Every page stands in one of the sequence's own rows: the p-th in the p-th.
  void make_state() {
    const int64_t tables = int64_t{kBatch} * columns_;
    std::vector<int32_t> same(index(tables * kPages));
    for (size_t i = 0; i < same.size(); ++i) same[i] = static_cast<int32_t>(i % kPages);
    frame_of_ = DeviceArray<int32_t>(same);
    page_of_ = DeviceArray<int32_t>(same);
    selected_at_ = DeviceArray<uint32_t>(tables * kPages);
    selected_at_.fill(0);
    kept_ = DeviceArray<int32_t>(tables * kSelected);
    num_kept_ = DeviceArray<int32_t>(tables);
    num_kept_.fill(0);
  }

  // By layer, so that attention can be measured alone. The engine has one of each for all layers.
  void make_outputs() {
    const int64_t lists = int64_t{layers_} * kPlaces * kListStride;
    scores_ = DeviceArray<float>(int64_t{kPlaces} * kPages);
    frames_ = DeviceArray<int32_t>(lists);
    num_listed_ = DeviceArray<int32_t>(int64_t{layers_} * kPlaces);
    miss_homes_ = DeviceArray<int32_t>(lists);
    miss_frames_ = DeviceArray<int32_t>(lists);
    num_misses_ = DeviceArray<int32_t>(int64_t{layers_} * kPlaces);
    num_misses_.fill(0);
    scratch_taken_ = DeviceArray<int32_t>(std::vector<int32_t>{0, 0});
    error_ = DeviceArray<int32_t>(std::vector<int32_t>{0});
    out_ = DeviceArray<uint16_t>(layers_ * kBatch * kRowElements);
  }

  const __nv_bfloat16* q_of(int32_t layer) const {
    return q_.as<const __nv_bfloat16>() + layer * kBatch * kRowElements;
  }
  KvPool pool() const {
    return {pages_.data(), kPage, kPage.page_bytes(), columns_, kRows * columns_};
  }
  const int32_t* columns_of(int32_t layer) const { return column_list_.data() + layer * kHeads; }

  SelectArgs select_args(int32_t layer, const DeviceArray<SelectRow>& rows, int32_t reuse) const {
    const int64_t place = int64_t{layer} * kPlaces;
    SelectArgs a;
    a.score = {.page = kPage,
               .q = q_of(layer),
               .q_stride = kRowElements,
               .num_q_heads = kHeads * kGroup,
               .num_kv_heads = kHeads,
               .stats = {stats_.data(), kPage.stats_bytes(), kRows},
               .selecting_columns = columns_of(layer),
               .state = {.pages_max = kPages,
                         .frames_max = kPages,
                         .kept_max = kSelected,
                         .num_columns = columns_,
                         .frame_of = frame_of_.data(),
                         .selected_at = selected_at_.data(),
                         .page_of = page_of_.data(),
                         .kept = kept_.data(),
                         .num_kept = num_kept_.data(),
                         .own_rows = row_list_.data(),
                         .blocks = row_list_.data()},
               .rows = rows.data(),
               .num_rows = num_rows_.data(),
               .rows_max = kBatch,
               .layer = layer,
               .reuse_interval = reuse,
               .scores = scores_.data(),
               .num_sms = num_sms_};
    a.pool = pool();
    a.columns = a.home_columns = columns_of(layer);
    a.tables = tables_.data();
    a.row_tables = row_tables_.data();
    a.num_home_columns = columns_;
    a.list_stride = kListStride;
    a.frames = frames_.data() + place * kListStride;
    a.num_listed = num_listed_.data() + place;
    a.miss_homes = miss_homes_.data() + place * kListStride;
    a.miss_frames = miss_frames_.data() + place * kListStride;
    a.num_misses = num_misses_.data() + place;
    a.scratch_taken = scratch_taken_.data();
    a.error = error_.data();
    return a;
  }

  DecodeArgs decode_args(int32_t layer, int32_t step) const {
    const int64_t place = int64_t{layer} * kPlaces;
    return {.kv = {.pool = pool(), .num_kv_heads = kHeads, .columns = columns_of(layer)},
            .rows = {.num_rows = kBatch,
                     .positions = positions_[index(step)].data(),
                     .row_tables = row_tables_.data(),
                     .tables = tables_.data()},
            .num_rows = kBatch,
            .q = q_of(layer),
            .q_stride = kRowElements,
            .num_q_heads = kHeads * kGroup,
            .softmax_scale = 1.0f / std::sqrt(static_cast<float>(kHeadDim)),
            .list = frames_.data() + place * kListStride,
            .num_listed = num_listed_.data() + place,
            .list_stride = kListStride,
            .out = reinterpret_cast<__nv_bfloat16*>(out_.data()) + layer * kBatch * kRowElements,
            .out_stride = kRowElements,
            .workspace = workspace_.data(),
            .context_max = kContext,
            .num_sms = num_sms_};
  }

  void chain(int32_t layer, const DeviceArray<SelectRow>& rows, int32_t step, int32_t reuse) {
    score_and_select(handle(), select_args(layer, rows, reuse));
    decode_attention(handle(), decode_args(layer, step));
  }

  // A graph of call(step, layer) over the layers of all steps.
  Timed capture(int32_t steps, const std::function<void(int32_t, int32_t)>& call) {
    Graph graph = take(Graph::capture(stream_, [&] {
      for (int32_t step = 0; step < steps; ++step) {
        for (int32_t layer = 0; layer < layers_; ++layer) call(step, layer);
      }
    }));
    return {std::move(graph), steps * layers_, {}};
  }

  void measure(Timed& timed, bool counts) {
    stream_.record(begin_);
    timed.graph.launch(stream_);
    stream_.record(end_);
    take_nothing(stream_.synchronize());
    if (counts) timed.us.push_back(end_.us_since(begin_) / timed.calls);
  }

  // Replays the graph into poisoned lists and outputs. All lists are full, in page order, of pages
  // of their sequence with the first and the row's own among them, and the same whoever made them.
  void check(const Variant& v, const Timed& timed) {
    const auto poison = [&](auto& array, int value) {
      stream_.fill(array.data(), value, array.size() * static_cast<int64_t>(sizeof(*array.data())));
    };
    poison(frames_, 0xff);
    poison(num_listed_, 0xff);
    poison(num_misses_, 0xff);
    poison(out_, 0xff);
    timed.graph.launch(stream_);
    take_nothing(stream_.synchronize());
    CHECK(error_.get()[0] == kSelectOk, "{}: selection failed: {}", v.name, error_.get()[0]);
    const std::vector<int32_t> lists = frames_.get(), counts = num_listed_.get();
    for (int32_t count : num_misses_.get()) CHECK(count == 0, "{}: {} misses", v.name, count);
    for (size_t i = 0; i < counts.size(); ++i) {
      CHECK(counts[i] == kSelected, "{}: {} pages in list {}", v.name, counts[i], i);
      check_list(static_cast<int32_t>(i), lists.data() + i * kListStride);
    }
    if (lists_.empty()) lists_ = lists;
    CHECK(lists == lists_, "{}: other pages than before", v.name);
    for (uint16_t x : out_.get()) CHECK((x & 0x7f80) != 0x7f80, "{}: an output of {:x}", v.name, x);
  }

  void check_list(int32_t place, const int32_t* frames) const {
    const int32_t layer = place / kPlaces, sequence = place % kPlaces / kHeads;
    const int32_t* const rows = host_rows_.data() + int64_t{sequence} * kPages;
    int32_t before = -1;
    for (int32_t i = 0; i < kSelected; ++i) {
      CHECK(frames[i] % columns_ == layer * kHeads + place % kHeads, "frame {}", frames[i]);
      const int32_t* const found = std::find(rows, rows + kPages, frames[i] / columns_);
      const auto page = static_cast<int32_t>(found - rows);
      CHECK(page < kPages && page > before, "place {}: page {} behind {}", place, page, before);
      before = page;
      if (i == 0) CHECK(page == 0, "place {} begins with page {}", place, page);
    }
    CHECK(before == kPages - 1, "place {} ends with page {}", place, before);
  }

  const int32_t num_sms_;
  int32_t layers_ = 0, columns_ = 0;
  Stream stream_;
  Event begin_ = take(Event::create(true)), end_ = take(Event::create(true));
  Buffer pages_, stats_, q_, workspace_;
  std::vector<int32_t> host_rows_, lists_;
  DeviceArray<int32_t> row_list_, row_tables_, num_rows_, column_list_;
  std::vector<DeviceArray<int32_t>> positions_;  // (kReuse)
  DeviceArray<PageTable> tables_;
  DeviceArray<int32_t> frame_of_, page_of_, kept_, num_kept_;
  DeviceArray<uint32_t> selected_at_;
  DeviceArray<float> scores_;
  DeviceArray<int32_t> frames_, num_listed_, miss_homes_, miss_frames_, num_misses_;
  DeviceArray<int32_t> scratch_taken_, error_;
  DeviceArray<uint16_t> out_;
};

}  // namespace
}  // namespace ops::cuda

int main() {
  const auto gpu = device::cuda::find_gpu();
  if (!gpu.ok()) {
    fprintf(stderr, "%s\n", gpu.error().message.c_str());
    return 1;
  }
  ops::cuda::Bench bench(gpu.value());
  printf("us of a layer, 8 x 128k, Hk 8 G 4 D 128, P 32, K 64: %d layers in a graph\n",
         bench.layers());
  bench.run(bench.variant("resident", true));
  bench.run(bench.variant("tables", false));
}
