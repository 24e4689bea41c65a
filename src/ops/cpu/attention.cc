// The part of CPU attention that no instruction set changes: tasks, their order, splits, workspace.
//
// A task is a tile of prompt rows or a split of a decode row, run for one KV head at a time. Tasks
// are listed in the workspace, prompt tiles longest first and streaming heads last, so that the
// threads end together, and run in rounds: the partial states of a round's decode rows fit the
// workspace, and are merged before the next round.
#include "ops/attention.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "ops/cpu/attention_kernels.h"

namespace ops {
namespace {

using cpu::AttentionKernels;
using cpu::AttentionTile;
using cpu::KvPages;

// Query-head rows of the largest prompt tile. A block of K and V is packed once for all of them:
// 384 rows are 7 % faster than 192 at D = 128 and 8k keys, and their queries and sums (295 KB at D
// = 128, in BF16) stay in 1 MB of L2.
constexpr int32_t kTileHeadRows = 384;

// (row, split) places for partial states: a round of decode work. Enough to spread over any number
// of threads.
constexpr int64_t kPartialPlaces = 256;

// A tile of a segment's rows, or a split of one of them, for every KV head.
struct Task {
  int32_t segment;
  int32_t row_begin, row_end;  // rows of the segment, [begin, end)
  int32_t key_end;             // prompt: keys [0, key_end) at most
  // Decode: which split, of how many of the head that has most, and where the row's partial states
  // begin. Heads with fewer leave the rest of the tasks empty.
  int32_t split, splits, place;
};

// How a decode row walks the pages of one head.
struct Walk {
  const int32_t* frames;
  int32_t gap_begin, gap_pages;  // as in KvPages
  int32_t position;              // of the row, in keys of those pages
};

constexpr int64_t align(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

// Rows of the largest tile. A tile has at least 16 positions, since its rows share the keys of
// their diagonal block.
int32_t tile_rows_max(int32_t group) {
  return std::max(16, kTileHeadRows / group);
}

// Rows of a tile when a call has `rows` prompt rows: fewer than the largest when each thread would
// have less than 4 tasks. Rows keep their bits in any tile.
int32_t tile_rows(int32_t group, int64_t rows, int32_t num_kv_heads, int num_threads) {
  const int64_t spread = rows * num_kv_heads / (4 * num_threads);
  return static_cast<int32_t>(std::clamp<int64_t>(spread, 16, tile_rows_max(group)));
}

int32_t num_splits(int32_t keys, int32_t page_tokens) {
  const int32_t split = kDecodeSplitPages * page_tokens;
  return (keys + split - 1) / split;
}

int64_t partial_floats(int32_t num_q_heads, int32_t head_dim) {
  return int64_t{num_q_heads} * (head_dim + cpu::kPartialTail);
}

// Sizes of one thread's scratch. Words are counted as floats: bf16 pairs need half.
struct ScratchLayout {
  int64_t acc, row_max, row_sum, k, v, staged, bytes;  // offsets; q is at 0

  ScratchLayout(int32_t group, int32_t head_dim) {
    const int64_t rows = (int64_t{tile_rows_max(group)} * group + cpu::kRowPanel - 1) /
                         cpu::kRowPanel * cpu::kRowPanel;
    acc = align(rows * head_dim * 4);
    row_max = acc + align(rows * head_dim * 4);
    row_sum = row_max + align(rows * 4);
    k = row_sum + align(rows * cpu::kSumLanes * 4);
    v = k + align(int64_t{cpu::kKeyBlock} * head_dim * 4);
    staged = v + align(int64_t{cpu::kKeyBlock} * head_dim * 4);
    bytes = staged + align(2 * int64_t{cpu::kKeyBlock} * head_dim * 2);
  }
};

int64_t places_max(const AttentionShape& shape) {
  const int64_t splits = num_splits(shape.context_max, shape.page_tokens);
  return std::min(shape.decode_rows_max * splits, std::max(splits, kPartialPlaces));
}

int64_t workspace_bytes(const AttentionShape& shape) {
  const ScratchLayout scratch(shape.num_q_heads / shape.num_kv_heads, shape.head_dim);
  const int64_t places = places_max(shape);
  return shape.num_threads * scratch.bytes + align(shape.num_kv_heads * int64_t{4}) +
         align((shape.rows_max + places) * static_cast<int64_t>(sizeof(Task))) +
         places * partial_floats(shape.num_q_heads, shape.head_dim) * 4;
}

cpu::AttentionTileFn tile_function(const AttentionKernels& kernels, core::DType type,
                                   core::RowKind kind) {
  const bool prompt = kind == core::RowKind::kPrompt;
  switch (type) {
    case core::DType::kBF16:
    case core::DType::kI8:
    case core::DType::kF8E4M3:  // open pages are BF16, and codes become it
      return prompt ? kernels.tile_bf16 : kernels.split_bf16;
    case core::DType::kF16:
      return prompt ? kernels.tile_f16 : kernels.split_f16;
    case core::DType::kF32:
      return prompt ? kernels.tile_f32 : kernels.split_f32;
    default:
      break;
  }
  CHECK(false, "{} is no KV type", core::info(type).name);
  return nullptr;
}

// One call of attention().
class Run {
 public:
  Run(const AttentionKernels& kernels, const AttentionArgs& args, int num_threads)
      : kernels_(kernels),
        args_(args),
        tile_(tile_function(kernels, args.kv.page.type, core::RowKind::kPrompt)),
        split_(tile_function(kernels, args.kv.page.type, core::RowKind::kDecode)),
        group_(args.num_q_heads / args.kv.num_kv_heads()),
        scratch_(group_, args.kv.page.head_dim) {
    CHECK(args.num_q_heads % args.kv.num_kv_heads() == 0 && group_ <= 16,
          "{} query heads, {} KV heads", args.num_q_heads, args.kv.num_kv_heads());
    CHECK(args.kv.page.head_dim % 16 == 0 && args.kv.page.head_dim <= 256, "head dim {}",
          args.kv.page.head_dim);
    CHECK(args.kv.page.page_tokens == 16 || args.kv.page.page_tokens == 32 ||
              args.kv.page.page_tokens == 64,
          "{} tokens a page", args.kv.page.page_tokens);
    check_segments();
    place_tasks(num_threads);
  }

  void run(device::Stream& stream) {
    list_prompt_tiles();
    do {
      const int64_t num_merges = list_decode_splits();
      const int64_t num_items = num_tasks_ * num_heads();
      stream.pool().parallel_for(num_items, [&](int64_t item, int worker) {
        const auto [task, kv_head] = item_at(item);
        is_prompt(task) ? run_tile(task, kv_head, worker) : run_split(task, kv_head, worker);
      });
      if (num_merges > 0) {
        stream.pool().parallel_for(num_items, [&](int64_t item, int) {
          const auto [task, kv_head] = item_at(item);
          if (!is_prompt(task) && task.split == 0) merge(task, kv_head);
        });
      }
      num_tasks_ = 0;
    } while (segment_ < num_segments());
  }

 private:
  int32_t num_segments() const { return static_cast<int32_t>(args_.segments.size()); }

  int32_t num_heads() const { return args_.kv.num_kv_heads(); }
  bool is_prompt(const Task& task) const {
    return args_.segments[task.segment].kind == core::RowKind::kPrompt;
  }
  const core::HeadKind& kind(int32_t kv_head) const { return args_.kv.heads[kv_head].kind; }

  void check_segments() const {
    for (const AttentionSegment& segment : args_.segments) {
      CHECK((segment.open_frames != nullptr) == args_.kv.page.is_quantised(), "open pages");
      CHECK(segment.num_selected == nullptr || (segment.kind == core::RowKind::kDecode &&
                                                segment.row_end - segment.row_begin == 1),
            "a selection is one decode row's");
      for (int32_t head = 0; head < num_heads(); ++head) {
        const bool streaming = kind(head).is_streaming();
        CHECK((streaming ? segment.stream_frames : segment.frames) != nullptr, "head {}", head);
        CHECK(streaming || segment.num_selected == nullptr || segment.num_selected[head] > 0,
              "nothing selected for head {}", head);
      }
    }
  }

  // The item-th (task, head): retrieval heads first, whose tasks are the long ones.
  std::pair<const Task&, int32_t> item_at(int64_t item) const {
    const int64_t first = num_tasks_ * num_retrieval_;
    if (item < first) return {tasks_[item / num_retrieval_], heads_[item % num_retrieval_]};
    item -= first;
    const int64_t streaming = num_heads() - num_retrieval_;
    return {tasks_[item / streaming], heads_[num_retrieval_ + item % streaming]};
  }

  Walk walk(const AttentionSegment& segment, int32_t row, int32_t kv_head) const {
    const int32_t page_tokens = args_.kv.page.page_tokens;
    const int32_t position = segment.position_begin + row;
    const core::HeadKind& head = kind(kv_head);
    if (!head.is_streaming()) {
      const int32_t* frames = segment.frames + kv_head * segment.frames_head_stride;
      if (segment.num_selected == nullptr) return {frames, 0, 0, position};
      const int32_t before = segment.num_selected[kv_head] - 1;
      return {frames, 0, 0, before * page_tokens + position % page_tokens};
    }
    const int32_t sink_pages = (head.sink + page_tokens - 1) / page_tokens;
    const int32_t local_page = std::max(0, position - head.local + 1) / page_tokens;
    const int32_t gap = std::max(0, local_page - sink_pages);
    return {segment.stream_frames, sink_pages, gap, position - gap * page_tokens};
  }

  // Divides the workspace: scratch of each thread, partial states, tasks, heads.
  void place_tasks(int num_threads) {
    int64_t rows = 0, num_tiles = 0;
    for (const AttentionSegment& segment : args_.segments) {
      if (segment.kind == core::RowKind::kPrompt) rows += segment.row_end - segment.row_begin;
    }
    for (int32_t head = 0; head < num_heads(); ++head) num_retrieval_ += !kind(head).is_streaming();
    tile_rows_ =
        tile_rows(group_, rows, num_retrieval_ > 0 ? num_retrieval_ : num_heads(), num_threads);
    for (const AttentionSegment& segment : args_.segments) {
      if (segment.kind != core::RowKind::kPrompt) continue;
      num_tiles += (segment.row_end - segment.row_begin + tile_rows_ - 1) / tile_rows_;
    }
    const int64_t partial_bytes = partial_floats(args_.num_q_heads, args_.kv.page.head_dim) * 4;
    const int64_t task_bytes = sizeof(Task);
    const int64_t left = static_cast<int64_t>(args_.workspace.size()) -
                         num_threads * scratch_.bytes - align(num_heads() * int64_t{4});
    CHECK(left >= num_tiles * task_bytes, "workspace of {} bytes", args_.workspace.size());
    CHECK(reinterpret_cast<uintptr_t>(args_.workspace.data()) % 64 == 0);
    num_places_ = (left - num_tiles * task_bytes) / (partial_bytes + task_bytes);
    std::byte* place = args_.workspace.data() + num_threads * scratch_.bytes;
    heads_ = reinterpret_cast<int32_t*>(place);
    place += align(num_heads() * int64_t{4});
    partials_ = reinterpret_cast<float*>(place);
    tasks_ = reinterpret_cast<Task*>(place + num_places_ * partial_bytes);

    int32_t retrieval = 0, streaming = num_retrieval_;
    for (int32_t head = 0; head < num_heads(); ++head) {
      heads_[kind(head).is_streaming() ? streaming++ : retrieval++] = head;
    }
  }

  void list_prompt_tiles() {
    for (int32_t s = 0; s < num_segments(); ++s) {
      const AttentionSegment& segment = args_.segments[s];
      if (segment.kind != core::RowKind::kPrompt) continue;
      const int32_t rows = segment.row_end - segment.row_begin;
      for (int32_t row = 0; row < rows; row += tile_rows_) {
        const int32_t row_end = std::min(rows, row + tile_rows_);
        tasks_[num_tasks_++] = Task{.segment = s,
                                    .row_begin = row,
                                    .row_end = row_end,
                                    .key_end = segment.position_begin + row_end};
      }
    }
    std::sort(tasks_, tasks_ + num_tasks_, [](const Task& a, const Task& b) {
      return int64_t{a.key_end} * (a.row_end - a.row_begin) >
             int64_t{b.key_end} * (b.row_end - b.row_begin);
    });
  }

  // Splits of a decode row's walk of one head.
  int32_t splits_of(const Walk& walk) const {
    return num_splits(walk.position + 1, args_.kv.page.page_tokens);
  }

  // Lists the splits of as many further decode rows as there are places; returns the number of rows
  // to merge.
  int64_t list_decode_splits() {
    int64_t num_merges = 0;
    int32_t place = 0;
    for (; segment_ < num_segments(); ++segment_, row_ = 0) {
      const AttentionSegment& segment = args_.segments[segment_];
      if (segment.kind != core::RowKind::kDecode) continue;
      for (; row_ < segment.row_end - segment.row_begin; ++row_) {
        int32_t splits = 0;
        for (int32_t head = 0; head < num_heads(); ++head) {
          splits = std::max(splits, splits_of(walk(segment, row_, head)));
        }
        CHECK(splits <= num_places_, "workspace of {} bytes for a row of {} splits",
              args_.workspace.size(), splits);
        if (place + splits > num_places_) return num_merges;
        num_merges += splits > 1;
        for (int32_t i = 0; i < splits; ++i) {
          tasks_[num_tasks_++] = Task{.segment = segment_,
                                      .row_begin = row_,
                                      .row_end = row_ + 1,
                                      .key_end = 0,
                                      .split = i,
                                      .splits = splits,
                                      .place = place};
        }
        place += splits;
      }
    }
    return num_merges;
  }

  float* partial(int64_t place, int32_t kv_head) const {
    return partials_ + (place * args_.kv.num_kv_heads() + kv_head) *
                           partial_floats(group_, args_.kv.page.head_dim);
  }

  // What tiles and splits have in common: rows, queries, outputs, scratch.
  AttentionTile tile_of(const Task& task, int32_t kv_head, int worker) const {
    const AttentionSegment& segment = args_.segments[task.segment];
    const int64_t row = segment.row_begin + task.row_begin;
    const int64_t head_offset = int64_t{kv_head} * group_ * args_.kv.page.head_dim;
    std::byte* scratch = args_.workspace.data() + worker * scratch_.bytes;
    AttentionTile tile;
    tile.pages = KvPages{.base = args_.kv.frame(0, kv_head),
                         .page_bytes = args_.kv.page.page_bytes(),
                         .page_tokens = args_.kv.page.page_tokens,
                         .head_dim = args_.kv.page.head_dim};
    if (args_.kv.page.is_quantised()) {
      tile.pages.codes =
          args_.kv.page.type == core::DType::kI8 ? cpu::KvCodes::kI8 : cpu::KvCodes::kE4m3;
      tile.pages.open_base = args_.kv.open_frame(0, kv_head);
    }
    if (kind(kv_head).is_streaming()) {
      tile.sink = std::min(kind(kv_head).sink, cpu::kTokensMax);
      tile.local = std::min(kind(kv_head).local, cpu::kTokensMax);
    }
    tile.q = args_.q + row * args_.q_stride + head_offset;
    tile.q_stride = args_.q_stride;
    tile.rows = task.row_end - task.row_begin;
    tile.group = group_;
    tile.scale = args_.softmax_scale * 1.44269504088896341f;
    tile.scratch = {.q = reinterpret_cast<uint32_t*>(scratch),
                    .acc = reinterpret_cast<float*>(scratch + scratch_.acc),
                    .row_max = reinterpret_cast<float*>(scratch + scratch_.row_max),
                    .row_sum = reinterpret_cast<float*>(scratch + scratch_.row_sum),
                    .k = reinterpret_cast<uint32_t*>(scratch + scratch_.k),
                    .v = reinterpret_cast<uint32_t*>(scratch + scratch_.v),
                    .staged = scratch + scratch_.staged};
    tile.out = args_.out + row * args_.out_stride + head_offset;
    tile.out_stride = args_.out_stride;
    return tile;
  }

  void run_tile(const Task& task, int32_t kv_head, int worker) const {
    const AttentionSegment& segment = args_.segments[task.segment];
    AttentionTile tile = tile_of(task, kv_head, worker);
    tile.pages.frames = kind(kv_head).is_streaming()
                            ? segment.stream_frames
                            : segment.frames + kv_head * segment.frames_head_stride;
    tile.pages.open_frames = segment.open_frames;
    tile.pages.open_page = segment.position_begin / args_.kv.page.page_tokens;
    tile.key_end = task.key_end;
    tile.position_begin = segment.position_begin + task.row_begin;
    tile_(tile);
  }

  void run_split(const Task& task, int32_t kv_head, int worker) const {
    const AttentionSegment& segment = args_.segments[task.segment];
    const Walk way = walk(segment, task.row_begin, kv_head);
    const int32_t splits = splits_of(way);
    if (task.split >= splits) return;
    const int32_t page_tokens = args_.kv.page.page_tokens;
    const int32_t split_keys = kDecodeSplitPages * page_tokens;
    AttentionTile tile = tile_of(task, kv_head, worker);
    tile.pages.frames = way.frames;
    tile.pages.gap_begin = way.gap_begin;
    tile.pages.gap_pages = way.gap_pages;
    if (segment.open_frames != nullptr) {
      const int32_t begin = segment.position_begin;
      tile.pages.open_frames =
          segment.open_frames + (begin + task.row_begin) / page_tokens - begin / page_tokens;
      tile.pages.open_page = way.position / page_tokens;
    }
    tile.key_begin = task.split * split_keys;
    tile.key_end = std::min(way.position + 1, tile.key_begin + split_keys);
    tile.position_begin = way.position;
    tile.partial = splits > 1 ? partial(task.place + task.split, kv_head) : nullptr;
    split_(tile);
  }

  void merge(const Task& task, int32_t kv_head) const {
    const AttentionSegment& segment = args_.segments[task.segment];
    const int32_t splits = splits_of(walk(segment, task.row_begin, kv_head));
    if (splits == 1) return;
    const int32_t head_dim = args_.kv.page.head_dim;
    const int64_t row = segment.row_begin + task.row_begin;
    float* out = args_.out + row * args_.out_stride + int64_t{kv_head} * group_ * head_dim;
    for (int32_t g = 0; g < group_; ++g) {
      kernels_.merge(partial(task.place, kv_head) + g * (head_dim + cpu::kPartialTail),
                     partial_floats(args_.num_q_heads, head_dim), splits, head_dim,
                     out + g * head_dim);
    }
  }

  const AttentionKernels& kernels_;
  const AttentionArgs& args_;
  cpu::AttentionTileFn tile_, split_;
  int32_t group_;          // G
  int32_t tile_rows_ = 0;  // positions of a prompt tile
  ScratchLayout scratch_;
  float* partials_ = nullptr;  // (places, Hk, G, D + kPartialTail)
  Task* tasks_ = nullptr;
  int32_t* heads_ = nullptr;  // (Hk): retrieval heads, then streaming ones
  int32_t num_retrieval_ = 0;
  int64_t num_places_ = 0;
  int64_t num_tasks_ = 0;
  int32_t segment_ = 0, row_ = 0;  // the next decode row to list
};

void run_attention(const AttentionKernels& kernels, device::Stream& stream,
                   const AttentionArgs& args) {
  if (args.segments.empty()) return;
  Run(kernels, args, stream.pool().num_threads()).run(stream);
}

}  // namespace

namespace avx2 {
void attention(device::Stream& stream, const AttentionArgs& args) {
  run_attention(cpu::kAttentionAvx2, stream, args);
}
int64_t attention_workspace_bytes(const AttentionShape& shape) {
  return workspace_bytes(shape);
}
}  // namespace avx2

namespace avx512 {
void attention(device::Stream& stream, const AttentionArgs& args) {
  run_attention(cpu::kAttentionAvx512, stream, args);
}
int64_t attention_workspace_bytes(const AttentionShape& shape) {
  return workspace_bytes(shape);
}
}  // namespace avx512

}  // namespace ops
