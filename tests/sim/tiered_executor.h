// The sim executor with a host tier: rows of frames, homes, saves that take their time, layer
// buffers and residency a column at a time, all small enough to be checked at every read.
//
// A row of a page in column c holds a hash of (all tokens up to its position, c). Every read of a
// page, wherever the tables say that it is, compares all its rows with what the sequence's tokens
// make of them; so a frame that was given to two sequences, evicted before its home was written,
// moved wrongly or loaded from another's home CHECKs at once. Selections are drawn at random from
// the sequence and the step. Saves read their frames when they are carried out, some steps later.
// A disk below the homes keeps what spills brought; its reads end some steps later, in any order.
// Rows of layer l are computed from what layer l - 1 left in the activation pages. Thread: one.
#pragma once

#include <deque>
#include <set>
#include <vector>

#include "sim/sim_executor.h"

namespace sim {

struct TieredOptions {
  ExecutorOptions base;
  int32_t num_frames = 0;
  int32_t num_layers = 0;
  int32_t layer_columns = 0;  // of each layer
  int32_t activation_pages = 0;
  int32_t working_set_window = 0;
  uint64_t seed = 0;
  double load_failures = 0, save_failures = 0;  // of each page
  uint64_t disk_records = 0;
  double disk_failures = 0;  // of each read and write
};

class TieredExecutor : public StormExecutor {
 public:
  explicit TieredExecutor(const TieredOptions& options);

  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                         core::StepResult* result) override;
  uint64_t num_disk_records() const override { return options_.disk_records; }

  void fail_next() override { fail_next_ = true; }
  void check_pages(const sched::Sequence& sequence) const override;
  bool is_prompt_made(core::BlockId block) const override;
  void list_saving(std::vector<core::BlockId>* blocks) const override;
  int64_t decode_replays() const override { return decode_replays_; }

 private:
  // A row of one column.
  struct Cell {
    uint64_t value = 0;  // 0: nothing
    bool prompt_made = false;
  };
  struct Place {
    int32_t column = 0, row = 0;
  };
  struct Save {
    core::SeqId seq{};
    int32_t page = 0, column = 0;
    Place from;
    core::BlockId block{};
  };
  struct Record {
    uint64_t key = 0, check = 0;
    std::vector<Cell> cells;  // (columns, P); empty: nothing that can be read
  };
  struct Read {
    core::BlockId block{};
    uint64_t record = 0, key = 0, check = 0;
  };
  struct Column {
    std::vector<int32_t> frame_of;      // (pages) index into own, or kNone, or shared_frame(row)
    std::vector<int32_t> page_of;       // (own) or kNone
    std::vector<uint64_t> selected_at;  // (pages)
  };
  struct Slot {
    bool used = false, broken = false, resident = false;
    bool prompt_made = true;  // all rows so far, cached ones too
    core::SeqId seq{};
    int32_t filled = 0;            // tokens whose rows are on the device or home
    std::vector<uint64_t> chains;  // (filled) of positions
    std::vector<core::FrameId> own, buffers;
    std::vector<core::SharedFrame> shared;
    std::vector<Column> columns;
  };

  int32_t pages(int32_t tokens) const;
  Cell* frame(Place place);
  Cell* home(int32_t column, core::BlockId block);
  bool chance(double p);
  uint64_t random();

  void check_plan(const core::StepPlan& plan) const;
  void check_slots() const;
  bool holds(const Slot& slot, int32_t column, int32_t page, const Cell* cells) const;
  Place place_of(const Slot& slot, int32_t column, int32_t page) const;

  void commit_saves(size_t count);
  void commit_saves_of(core::SeqId seq);
  void commit_saves_to(core::BlockId block);
  bool is_pending(core::SeqId seq, int32_t page) const;
  void save(const core::Segment& segment, int32_t column, int32_t page, Place from);

  void run_disk(const core::TransferPlan& transfers, core::StepResult* result);
  void spill(const core::DiskMove& move, core::StepResult* result);
  bool put_home(const Read& read);

  void cut(const core::FrameCut& cut);
  void load(const core::BlockMove& move);
  void enter(const core::Segment& segment);
  void run_layers(const core::Segment& segment, core::SegmentResult* result);
  Place buffer_place(const Slot& slot, int32_t layer, int32_t page, int32_t i) const;
  void run_rows(const core::Segment& segment, core::SegmentResult* result);
  void write(const core::Segment& segment, int32_t position);
  int32_t find_row(Slot& slot, int32_t column, const std::set<int32_t>& keep);
  void attend(const core::Segment& segment, int32_t position, core::SegmentResult* result);
  bool fetch(const core::Segment& segment, int32_t column, int32_t page, Cell* to);
  static Cell made(const Slot& slot, int32_t column, int32_t position);
  void report(const core::Segment& segment, core::SegmentResult* result) const;
  int32_t working_set(const Slot& slot) const;

  const TieredOptions options_;
  const int32_t page_tokens_, num_columns_;
  std::vector<Cell> frames_, homes_;   // (columns, rows, P)
  std::vector<uint64_t> activations_;  // (pages, P)
  std::vector<Slot> slots_;
  std::deque<Save> saves_;
  std::vector<Record> disk_;
  std::vector<Read> reads_;          // on their way
  std::set<core::BlockId> lost_;     // in this step
  std::set<core::FrameId> spoiled_;  // loads of this step that failed
  core::KvCounters kv_;              // of this step
  uint64_t step_ = 0, random_ = 0;
  bool fail_next_ = false;
  int64_t decode_replays_ = 0;
};

}  // namespace sim
