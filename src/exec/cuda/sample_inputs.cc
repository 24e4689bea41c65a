#include "exec/cuda/sample_inputs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"

namespace exec::cuda {
namespace {

using ops::cuda::CountedToken;
using ops::cuda::LogitEdit;
using ops::cuda::SampleRow;
using ops::cuda::TokenCount;

// Edits that there is room for at first: those of a few tokens a sequence.
constexpr int64_t kEditsASequence = 256;

int64_t rows_max(const KvOptions& options) {
  return std::max(options.rows_max, options.max_num_seqs);
}

int64_t counts_bytes(const KvOptions& options, int64_t vocab_size) {
  return options.max_num_seqs * vocab_size * int64_t{sizeof(TokenCount)};
}

int64_t masks_bytes(const KvOptions& options, int64_t vocab_size) {
  return options.max_num_seqs * core::mask_words(vocab_size) * int64_t{sizeof(uint32_t)};
}

bool has_penalties(const core::SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

}  // namespace

int64_t SampleInputs::bytes(const KvOptions& options, int64_t vocab_size) {
  return rows_max(options) * int64_t{sizeof(SampleRow)} +
         options.max_num_seqs * kEditsASequence * int64_t{sizeof(LogitEdit)} +
         int64_t{kBatches} * kBatchTokens * int64_t{sizeof(CountedToken)} +
         masks_bytes(options, vocab_size) + counts_bytes(options, vocab_size);
}

base::Result<SampleInputs> SampleInputs::create(const KvOptions& options, int64_t vocab_size,
                                                int32_t logits_rows_max,
                                                std::span<const core::TokenId> eos) {
  SampleInputs made;
  made.vocab_size_ = vocab_size;
  made.logits_rows_max_ = logits_rows_max;
  made.eos_.assign(eos.begin(), eos.end());
  made.edited_by_.assign(static_cast<size_t>(vocab_size), -1);
  made.edit_at_.resize(static_cast<size_t>(vocab_size));
  const int64_t row_bytes = rows_max(options) * int64_t{sizeof(SampleRow)};
  ASSIGN_OR_RETURN(made.rows_, device::cuda::Buffer::allocate(row_bytes, "sampling"));
  ASSIGN_OR_RETURN(made.host_rows_, device::cuda::PinnedBuffer::allocate(row_bytes, "sampling"));
  RETURN_IF_ERROR(made.reserve(options.max_num_seqs * kEditsASequence));
  const int64_t mask_bytes = masks_bytes(options, vocab_size);
  ASSIGN_OR_RETURN(made.allowed_, device::cuda::Buffer::allocate(mask_bytes, "masks of tokens"));
  ASSIGN_OR_RETURN(made.host_allowed_,
                   device::cuda::PinnedBuffer::allocate(mask_bytes, "masks of tokens"));
  ASSIGN_OR_RETURN(made.counts_, device::cuda::Buffer::allocate(counts_bytes(options, vocab_size),
                                                                "counts of tokens"));
  const int64_t counted_bytes = int64_t{kBatches} * kBatchTokens * int64_t{sizeof(CountedToken)};
  ASSIGN_OR_RETURN(made.counted_, device::cuda::Buffer::allocate(counted_bytes, "sampling"));
  ASSIGN_OR_RETURN(made.host_counted_,
                   device::cuda::PinnedBuffer::allocate(counted_bytes, "sampling"));
  for (Batch& batch : made.batches_) {
    ASSIGN_OR_RETURN(batch.copied, device::cuda::Event::create());
  }
  made.slots_.resize(static_cast<size_t>(options.max_num_seqs));
  return made;
}

base::Result<void> SampleInputs::reserve(int64_t edits) {
  const int64_t bytes = edits * int64_t{sizeof(LogitEdit)};
  if (bytes <= edits_.size()) return {};
  // Both or neither: size() is that of the two.
  ASSIGN_OR_RETURN(auto device, device::cuda::Buffer::allocate(bytes, "changes of logits"));
  ASSIGN_OR_RETURN(auto host, device::cuda::PinnedBuffer::allocate(bytes, "changes of logits"));
  edits_ = std::move(device);
  host_edits_ = std::move(host);
  list_.reserve(static_cast<size_t>(edits));
  ++moved_;
  return {};
}

base::Result<void> SampleInputs::build(device::cuda::Stream& stream,
                                       std::span<const core::Segment> planned,
                                       std::span<const LogitsRow> rows, int32_t capacity) {
  list_.clear();
  num_masks_ = 0;
  const int64_t num_rows = std::max<int64_t>(std::ssize(rows), capacity);
  CHECK(num_rows * int64_t{sizeof(SampleRow)} <= rows_.size(), "{} rows with logits", num_rows);
  auto* const out = host_rows_.as<SampleRow>();
  for (int64_t i = 0; i < num_rows; ++i) {
    out[i] = {};
    if (i < std::ssize(rows)) {
      const LogitsRow& row = rows[static_cast<size_t>(i)];
      out[i] = row_of(stream, planned[static_cast<size_t>(row.segment)], row);
    }
    out[i].logits_row = static_cast<int32_t>(i % logits_rows_max_);
  }
  flush_counted(stream);
  RETURN_IF_ERROR(reserve(std::ssize(list_) + std::ssize(list_) / 2));
  stream.copy(rows_.data(), out, num_rows * int64_t{sizeof(SampleRow)});
  if (num_masks_ > 0) {
    stream.copy(allowed_.data(), host_allowed_.data(),
                num_masks_ * core::mask_words(vocab_size_) * int64_t{sizeof(uint32_t)});
  }
  if (list_.empty()) return {};
  const int64_t edit_bytes = std::ssize(list_) * int64_t{sizeof(LogitEdit)};
  std::memcpy(host_edits_.data(), list_.data(), static_cast<size_t>(edit_bytes));
  stream.copy(edits_.data(), host_edits_.data(), edit_bytes);
  return {};
}

SampleRow SampleInputs::row_of(device::cuda::Stream& stream, const core::Segment& s,
                               const LogitsRow& row) {
  const core::SamplingParams& params = *s.sampling;
  const auto top = [](std::optional<int32_t> wanted) {
    return wanted ? std::min(*wanted, ops::cuda::kSampleTopMax) : -1;
  };
  SampleRow asked;
  ++row_number_;
  asked.edits_begin = static_cast<int32_t>(list_.size());
  if (draws(s, row)) {
    asked.temperature = params.temperature;
    asked.top_p = params.top_p;
    asked.min_p = params.min_p;
    asked.top_k = params.top_k;
    asked.seed = params.seed;
    asked.draw = s.token_end - s.prompt_len;
    asked.repetition_penalty = params.repetition_penalty;
    asked.presence_penalty = params.presence_penalty;
    asked.frequency_penalty = params.frequency_penalty;
    asked.num_logprobs = top(params.logprobs);
    if (has_penalties(params)) {
      asked.counts_row = s.slot;
      count(stream, s);
    }
    if (!s.allowed.empty()) asked.allowed_row = add_mask(s.allowed);
    add_edits(s);
  } else if (scores(s, row)) {
    asked.forced = s.tokens[static_cast<size_t>(row.position) + 1];
    asked.num_logprobs = top(params.prompt_logprobs);
  }
  asked.edits_end = static_cast<int32_t>(list_.size());
  return asked;
}

// One a sequence that draws: there are as many rows as slots.
int32_t SampleInputs::add_mask(std::span<const uint32_t> mask) {
  const int64_t words = core::mask_words(vocab_size_);
  const int64_t at = num_masks_ * words;
  CHECK(std::ssize(mask) == words && (at + words) * int64_t{sizeof(uint32_t)} <= allowed_.size(),
        "mask {} of {} words", num_masks_, mask.size());
  std::ranges::copy(mask, host_allowed_.as<uint32_t>() + at);
  return num_masks_++;
}

void SampleInputs::add_edits(const core::Segment& s) {
  const core::SamplingParams& params = *s.sampling;
  const auto is_token = [&](core::TokenId token) { return token >= 0 && token < vocab_size_; };
  for (const auto& [token, bias] : params.logit_bias) {
    if (is_token(token)) edit(token).bias += bias;
  }
  if (s.token_end - s.prompt_len >= params.min_tokens) return;
  for (const core::TokenId token : eos_) {
    if (is_token(token)) edit(token).masked = 1;
  }
  for (const core::TokenId token : params.stop_token_ids) {
    if (is_token(token)) edit(token).masked = 1;
  }
}

// Brings the slot's row up to the sequence's last token. Of a sequence known tokens do not change.
void SampleInputs::count(device::cuda::Stream& stream, const core::Segment& s) {
  Counted& row = slots_[static_cast<size_t>(s.slot)];
  if (row.seq != s.seq || row.tokens == 0 || row.tokens > s.token_end) {
    flush_counted(stream);
    stream.fill(counts_.as<TokenCount>() + s.slot * vocab_size_, 0,
                vocab_size_ * int64_t{sizeof(TokenCount)});
    row = {.seq = s.seq};
  }
  for (; row.tokens < s.token_end; ++row.tokens) {
    const core::TokenId token = s.tokens[static_cast<size_t>(row.tokens)];
    CHECK(token >= 0 && token < vocab_size_, "token {} of {}", token, vocab_size_);
    Batch& batch = batches_[batch_];
    // A GPU that failed fails the step that waits for its results.
    if (std::exchange(batch.is_used, false)) (void)batch.copied.synchronize();
    const auto at = static_cast<int64_t>(batch_) * kBatchTokens + num_counted_++;
    host_counted_.as<CountedToken>()[at] = {s.slot, token, row.tokens < s.prompt_len ? 1 : 0};
    if (num_counted_ == kBatchTokens) flush_counted(stream);
  }
}

void SampleInputs::flush_counted(device::cuda::Stream& stream) {
  if (num_counted_ == 0) return;
  const auto begin = static_cast<int64_t>(batch_) * kBatchTokens;
  CountedToken* const tokens = counted_.as<CountedToken>() + begin;
  stream.copy(tokens, host_counted_.as<CountedToken>() + begin,
              num_counted_ * int64_t{sizeof(CountedToken)});
  ops::cuda::count_tokens(stream.handle(), {.tokens = tokens,
                                            .num_tokens = num_counted_,
                                            .counts = counts_.as<TokenCount>(),
                                            .vocab_size = vocab_size_});
  stream.record(batches_[batch_].copied);
  batches_[batch_].is_used = true;
  batch_ = (batch_ + 1) % kBatches;
  num_counted_ = 0;
}

// The row's edit of the token, there or made.
LogitEdit& SampleInputs::edit(core::TokenId token) {
  const auto at = static_cast<size_t>(token);
  if (edited_by_[at] != row_number_) {
    edited_by_[at] = row_number_;
    edit_at_[at] = static_cast<int32_t>(list_.size());
    list_.push_back({.token = token});
  }
  return list_[static_cast<size_t>(edit_at_[at])];
}

}  // namespace exec::cuda
