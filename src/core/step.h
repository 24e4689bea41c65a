// The plain data that crosses the borders of a step: sched/ + kv/ -> (StepPlan, TransferPlan) ->
// exec/ -> StepResult.
//
// The vectors are owned by the engine and reused from step to step: their capacity is reserved at
// start, so a steady step allocates nothing. Spans borrow from sequences and requests, which do not
// change while a step runs.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/ids.h"
#include "core/request.h"

namespace core {

// What a row is decides which attention kernel computes it, never how many rows are in the step:
// prompt rows are computed in tiles, decode rows one by one with splits by their own length. A
// resumed sequence replays its generated rows as kDecode.
enum class RowKind : uint8_t { kPrompt, kDecode };

// A page that stands in a row of frames that several sequences may use: never evicted by the
// device.
struct SharedFrame {
  int32_t page = 0;
  FrameId frame{};
};

// (sequence, layer range, token range): "n tokens of sequence s". A prefill chunk, a decode and a
// replay differ only in kind.
struct Segment {
  SeqId seq{};
  // in [0, max_num_seqs): the sequence's place in per-sequence device state, constant while it is
  // admitted
  int32_t slot = 0;
  RowKind kind = RowKind::kPrompt;
  AttentionPolicy policy;
  int32_t layer_begin = 0, layer_end = 0;  // [begin, end) of L
  // positions in the sequence; token_end - token_begin rows of the step
  int32_t token_begin = 0, token_end = 0;
  // rows of positions [logits_begin, token_end) need logits; == token_end: none
  int32_t logits_begin = 0;
  bool sample = false;     // draw the next token from the last row
  int32_t prompt_len = 0;  // tokens of the sequence that are prompt
  // the sequence's tokens from position 0; valid to token_end at least
  std::span<const TokenId> tokens;
  // block table from position 0; valid to ceil(token_end / P)
  std::span<const BlockId> blocks;
  const SamplingParams* sampling = nullptr;
  // TokenConstraint::mask() of the token to be drawn; empty: all are allowed. Unlike the rest it
  // may change until the plan is handed to the executor.
  std::span<const uint32_t> allowed;  // (ceil(V / 32))

  // With a host tier, else empty. The rows of frames that are this sequence's own, in the order
  // they were given: from step to step the host only appends to the list or cuts its end
  // (FrameCut). A new row holds nothing. While it is `resident` (from its first segment on, and
  // once it is not, never again), its pages that are in no shared row stand in them in order and in
  // every column: page i in frames[i - shared.size()].
  std::span<const FrameId> frames;
  bool resident = false;
  // Pages [0, n), which stand in shared rows: (page, row), the same until the sequence leaves or a
  // cut lets go of them.
  std::span<const SharedFrame> shared;
  // Layer-segmented prefill that does not fit as resident: rows whose frames make up the two layer
  // buffers, half each. Frame k of a buffer of rows r[0..n) is column k % C of row r[k / C], C the
  // device's columns; page j of the layer's i-th column is frame j * (columns of the layer) + i.
  // The same until the prompt is done; then a cut ends their use. frames[0] takes the tail page.
  // Empty: prompt rows are written to frames[] like decode rows, by all layers at once.
  std::span<const FrameId> layer_buffers;
  // Layer-segmented prefill: where the residual stream waits between layers, one id for each P
  // tokens from position activation_begin on (a multiple of P).
  std::span<const int32_t> activations;
  int32_t activation_begin = 0;
};

struct StepPlan {
  uint64_t step = 0;
  // decodes first, then prompt chunks, rows of the step in this order; those with activations last
  std::vector<Segment> segments;
  // T: sum of token_end - token_begin. At most max_num_batched_tokens, rows of segments with
  // activations left out: those count tokens x layers, and run in tiles.
  int32_t num_rows = 0;

  void clear() {
    segments.clear();
    num_rows = 0;
  }
};

// Rows [0, num_tokens) of every page of block `from` copied to block `to`, before the step's rows
// are computed: a cached block that matches a prompt in its first tokens only is copied, so that
// the copy can be written on.
struct BlockCopy {
  BlockId from{};
  BlockId to{};
  int32_t num_tokens = 0;
};

// The device keeps only the first `keep` of the sequence's own rows: the pages last selected
// longest ago are evicted (all of them have homes), the others move into the rows that stay.
// Afterwards the cut rows are anybody's, and so are the sequence's layer buffers: the cut waits for
// the saves that read them. Bytes of cut rows stay until somebody writes there: a prompt's rows can
// become shared ones as they are. keep >= 1 while the sequence lives, for its tail. keep == 0
// forgets the sequence: `slot` is free for another; where the slot does not hold it, nothing
// happens.
struct FrameCut {
  SeqId seq{};
  int32_t slot = 0;
  int32_t keep = 0;
  bool drop_shared = false;  // its pages in shared rows are resident no longer
};

// Every page of a block copied from its home to a row of frames, a shared one. Who uses the row has
// a segment in the same step; if the load fails, each of those has SegmentResult::error.
struct BlockMove {
  BlockId block{};
  FrameId frame{};
};

// What a record of the disk tier holds: all pages of one sealed block, named by the tokens that the
// block stands for.
struct DiskEntry {
  uint64_t record = 0;  // its number, a place in the data file
  // Two independent hashes of the token sequence from position 0, the fingerprint and the salt; the
  // key of the block before it, or of the salt.
  uint64_t key = 0, check = 0, parent_key = 0;
  bool generated = false;           // holds rows of decode kernels, or stands on such a block
  std::span<const TokenId> tokens;  // (P) the block's own; borrowed while the step runs
};

// A block between its home and its record on disk.
struct DiskMove {
  BlockId block{};
  DiskEntry entry;
};

// Bytes to move for a step, carried out in the order of the members, before the step's rows run.
// Without a host tier only `copies`.
struct TransferPlan {
  std::vector<FrameCut> cuts;
  std::vector<DiskMove> spills;   // home -> disk, of cached blocks whose homes are wanted
  std::vector<BlockCopy> copies;  // in the device tier; none with a host tier
  std::vector<DiskMove> fetches;  // disk -> home; done when StepResult::fetched says so
  std::vector<BlockMove> loads;   // home -> shared row

  void clear() {
    cuts.clear();
    spills.clear();
    copies.clear();
    fetches.clear();
    loads.clear();
  }
  bool empty() const {
    return cuts.empty() && spills.empty() && copies.empty() && fetches.empty() && loads.empty();
  }
};

struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0.0f;  // log-softmax of the raw logits
};

// Log-probabilities of one position: the token that stands there and the most likely ones, best
// first, ties to the lower id.
struct PositionLogprobs {
  TokenLogprob token;
  int32_t rank = 0;  // 1 = the most likely
  std::vector<TokenLogprob> top;
};

struct SegmentResult {
  SeqId seq{};
  bool sampled = false;
  TokenId token = 0;  // when sampled
  bool has_logprobs = false;
  PositionLogprobs logprobs;  // of `token`, when asked for
  // of the prompt tokens at positions [logits_begin + 1, min(token_end, prompt_len - 1)], when
  // asked for
  std::vector<PositionLogprobs> prompt;
  // A transfer of this sequence failed: its request fails, the others go on. A line for people.
  std::string error;
  // Decode rows under selection: rows of frames that would hold every page selected in the last w
  // steps (the most of any column), and pages selected and missed in this step, over all columns,
  // as KvCounters counts them.
  int32_t working_set_frames = 0;
  int64_t working_set_pages = 0;
  int64_t pages_selected = 0, pages_missed = 0;
};

// What a step did with KV pages, to be added up: the proof that a mechanism ran.
struct KvCounters {
  int64_t pages_scored = 0;  // (page, KV head) pairs whose statistics were read
  int64_t selections = 0;    // (row, layer, KV head) selections made
  int64_t selections_reused = 0;
  // Attended under selection. Layers that are dense and rows within their budget choose nothing and
  // do not count.
  int64_t pages_selected = 0;
  int64_t pages_sealed = 0;  // statistics written
  int64_t pages_quantised = 0;
  int64_t pages_missed = 0;  // of pages_selected: not resident
  // Host -> device: misses, pages of decode rows that chose nothing, shared rows, layer buffers.
  int64_t pages_loaded = 0;
  int64_t pages_evicted = 0;
  int64_t pages_scratch = 0;  // loaded for decode rows, and found no frame
  int64_t pages_saved = 0;    // device -> host
  int64_t rows_saved = 0;     // the same row by row: of a step, K and V of all columns
  int64_t save_waits = 0;     // back pressure: a step waited for room to save
  int64_t bytes_loaded = 0, bytes_saved = 0;
  // Time that gathers took: loads for decode rows, inside the step. Attention may run beside them
  // on a GPU, so a step need not have waited so long. On the CPU all loads are in it.
  int64_t load_us = 0;
  int64_t bytes_gathered = 0;  // of bytes_loaded: what came in load_us
  int64_t save_us = 0;  // time that saves took beside steps, of copying and scattering bytes_saved
  int64_t layers_segmented = 0;  // (segment, layer) pairs of layer-segmented prefill
  int64_t steps_replayed = 0;    // steps that a GPU ran as a captured graph
  int64_t disk_pages_written = 0, disk_pages_read = 0, disk_failures = 0;
  int64_t device_bytes_peak = 0;  // gauge: device memory in use at most, so far

  // Selected pages that the device had. Exported as a counter: add() keeps it from falling.
  int64_t pages_hit() const { return pages_selected - pages_missed; }

  // Of a whole step. No more misses count than selected pages do, whatever `step` says.
  void add(const KvCounters& step);
};

struct StepResult {
  uint64_t step = 0;
  std::vector<SegmentResult> segments;  // one per segment of the plan, in its order
  int64_t run_us = 0;                   // time the step took on the device
  KvCounters kv;
  std::vector<BlockId> lost;  // homes whose save failed: what they hold must not be used
  // Reads from disk that have ended since the last step: ok, or the block holds nothing.
  struct Fetched {
    BlockId block{};
    bool ok = false;
  };
  std::vector<Fetched> fetched;
  std::vector<uint64_t> unwritten;  // records whose write failed: they hold nothing
};

}  // namespace core
