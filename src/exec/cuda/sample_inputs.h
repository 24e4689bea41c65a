// What rows with logits ask of ops/cuda/sample.h: how to draw, the sparse changes of logits that
// the host makes of biases and masked stop tokens, and the counts of tokens for the penalties (the
// rules of ops/sample.h), and masks of allowed tokens, a row a sequence that has one.
//
// Counts stay on the device, one row a slot, from the first token that the slot's sequence draws
// under penalties on: a step sends what the sequence has got since, which is one token while it
// decodes. A row that is only scored names its next prompt token instead of drawing. Thread: the
// engine's. A steady step allocates nothing; more edits than ever before make the buffers grow,
// which moves them (moved()).
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "core/step.h"
#include "device/cuda/runtime.h"
#include "exec/cuda/step_inputs.h"
#include "ops/cuda/sample.h"

namespace exec::cuda {

class SampleInputs {
 public:
  // `logits_rows_max`: rows of logits that there are at a time. `eos`: masked while a sequence is
  // shorter than its min_tokens. Errors: kTooLarge.
  static base::Result<SampleInputs> create(const KvOptions& options, int64_t vocab_size,
                                           int32_t logits_rows_max,
                                           std::span<const core::TokenId> eos);
  // Of device memory, at first; of pinned memory less.
  static int64_t bytes(const KvOptions& options, int64_t vocab_size);

  // Enqueues what `rows` of these segments ask, and of nobody up to `capacity` rows. REQUIRES: what
  // was built before has been read. Errors: kTooLarge.
  base::Result<void> build(device::cuda::Stream& stream, std::span<const core::Segment> planned,
                           std::span<const LogitsRow> rows, int32_t capacity);

  // In device memory.
  const ops::cuda::SampleRow* rows() const { return rows_.as<ops::cuda::SampleRow>(); }
  const ops::cuda::LogitEdit* edits() const { return edits_.as<ops::cuda::LogitEdit>(); }
  const uint32_t* allowed() const { return allowed_.as<uint32_t>(); }
  const ops::cuda::TokenCount* counts() const { return counts_.as<ops::cuda::TokenCount>(); }
  // How often the edits have moved.
  int64_t moved() const { return moved_; }

  // Whether the row's next token is drawn, and whether its next prompt token is scored.
  static bool draws(const core::Segment& s, const LogitsRow& row) {
    return s.sample && row.position == s.token_end - 1;
  }
  static bool scores(const core::Segment& s, const LogitsRow& row) {
    return s.sampling->prompt_logprobs.has_value() && row.position + 1 < s.prompt_len;
  }

 private:
  // Tokens on their way, several batches of them.
  static constexpr size_t kBatches = 4;
  static constexpr int32_t kBatchTokens = 8192;
  struct Batch {
    device::cuda::Event copied;
    bool is_used = false;
  };
  // A slot's row of counts holds tokens [0, tokens) of the sequence.
  struct Counted {
    core::SeqId seq{};
    int32_t tokens = 0;
  };

  ops::cuda::SampleRow row_of(device::cuda::Stream& stream, const core::Segment& s,
                              const LogitsRow& row);
  void add_edits(const core::Segment& s);
  int32_t add_mask(std::span<const uint32_t> mask);
  void count(device::cuda::Stream& stream, const core::Segment& s);
  void flush_counted(device::cuda::Stream& stream);
  ops::cuda::LogitEdit& edit(core::TokenId token);
  base::Result<void> reserve(int64_t edits);

  int64_t vocab_size_ = 0;
  int32_t logits_rows_max_ = 1;
  std::vector<core::TokenId> eos_;
  device::cuda::Buffer rows_, edits_;
  device::cuda::PinnedBuffer host_rows_, host_edits_;
  int64_t moved_ = 0;
  std::vector<ops::cuda::LogitEdit> list_;
  // (V) the last row that had an edit of the token, and where it is in the list.
  std::vector<int64_t> edited_by_;
  std::vector<int32_t> edit_at_;
  int64_t row_number_ = 0;

  device::cuda::Buffer allowed_;  // (slots, ceil(V / 32))
  device::cuda::PinnedBuffer host_allowed_;
  int32_t num_masks_ = 0;

  device::cuda::Buffer counts_;   // (slots, V)
  device::cuda::Buffer counted_;  // (kBatches, kBatchTokens), as on the host
  device::cuda::PinnedBuffer host_counted_;
  std::array<Batch, kBatches> batches_;
  size_t batch_ = 0;
  int32_t num_counted_ = 0;  // of the batch
  std::vector<Counted> slots_;
};

}  // namespace exec::cuda
