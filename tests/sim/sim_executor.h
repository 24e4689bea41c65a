// An executor whose pages can be checked: the stand-in for a model in simulations.
//
// Each row of a page holds the token that made it and a chain value, a hash of all tokens up to
// there, as K and V depend on the whole prefix. A step writes its rows and then reads back every
// row of every sequence in it, as attention does: a row that is missing, stale, of another sequence
// or of another salt is a chain value that does not match, and CHECKs at once. The next token is a
// hash of the last row, so the right answer to a request can be computed without an engine
// (oracle()).
//
// The salt of a request must be in its sampling seed (a Segment has no salt), so that pages shared
// across salts are seen. With `kinds_count` the chain also holds which kernel made a row: then a
// generated row stands for a prompt row nowhere.
#pragma once

#include <cstdint>
#include <vector>

#include "core/step.h"
#include "exec/executor.h"
#include "sched/sequence.h"

namespace sim {

struct ExecutorOptions {
  int32_t num_blocks = 0;
  int32_t page_tokens = 0;
  int32_t max_num_seqs = 0;
  int32_t max_num_batched_tokens = 0;
  int32_t vocab_size = 0;
  bool kinds_count = false;
};

// What storms ask of an executor beside running steps.
class StormExecutor : public exec::Executor {
 public:
  // The next run() spoils what it was to write and fails.
  virtual void fail_next() = 0;
  // CHECKs that the sequence's computed rows are in its blocks, or where they wait to get there.
  virtual void check_pages(const sched::Sequence& sequence) const = 0;
  // Whether prompt kernels alone made the block's rows and all that they stand on.
  virtual bool is_prompt_made(core::BlockId block) const = 0;
  virtual int64_t rows_copied() const { return 0; }
  virtual int64_t decode_replays() const = 0;  // segments with several kDecode rows

  ReadyBlocks ready_blocks() const override { return ready_; }
  // What plans may use from now on: CHECKed.
  void set_ready(ReadyBlocks ready) { ready_ = ready; }

 protected:
  ReadyBlocks ready_;
};

class SimExecutor : public StormExecutor {
 public:
  explicit SimExecutor(const ExecutorOptions& options);

  base::Result<void> run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                         core::StepResult* result) override;

  void fail_next() override { fail_next_ = true; }
  void check_pages(const sched::Sequence& sequence) const override;
  bool is_prompt_made(core::BlockId block) const override;
  int64_t rows_copied() const override { return rows_copied_; }
  int64_t decode_replays() const override { return decode_replays_; }

 private:
  struct Row {
    core::TokenId token = -1;
    uint64_t chain = 0;
    bool prompt_made = false;  // by prompt kernels, and all rows before it too
  };

  Row& row(std::span<const core::BlockId> blocks, int32_t position);
  const Row& row(std::span<const core::BlockId> blocks, int32_t position) const;
  void check_plan(const core::StepPlan& plan, const core::TransferPlan& transfers);
  void write_rows(const core::Segment& segment);
  void fill(const core::Segment& segment, core::SegmentResult* result) const;

  const ExecutorOptions options_;
  std::vector<Row> rows_;  // (num_blocks, P)
  bool fail_next_ = false;
  int64_t rows_copied_ = 0;
  int64_t decode_replays_ = 0;
};

// CHECKs what every plan must be, whatever the tiers; its blocks are below `blocks_ready`.
void check_plan_shape(const core::StepPlan& plan, const ExecutorOptions& options,
                      int32_t blocks_ready);

uint64_t mix(uint64_t a, uint64_t b);
// The chain value of a row, from the one before it (of position 0: first_chain).
uint64_t first_chain(const core::SamplingParams& sampling);
uint64_t next_chain(uint64_t chain, core::TokenId token, bool is_generated, bool kinds_count);
core::TokenId token_after(uint64_t chain, int32_t vocab_size);
float logprob_after(uint64_t chain);

// Tokens and chain values of a request that runs undisturbed until max_tokens, stops not looked at.
struct Oracle {
  std::vector<core::TokenId> generated;  // (max_tokens)
  std::vector<float> prompt_logprobs;    // of prompt positions 1, 2, ...
};
Oracle oracle(const core::Request& request, int32_t vocab_size, bool kinds_count);

}  // namespace sim
