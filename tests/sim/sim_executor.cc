#include "sim/sim_executor.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"

namespace sim {

using core::RowKind;
using core::TokenId;

uint64_t mix(uint64_t a, uint64_t b) {  // splitmix64 over both
  uint64_t z = a * 0x9e3779b97f4a7c15ull + b + 0x632be59bd9b4e019ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

uint64_t first_chain(const core::SamplingParams& sampling) {
  return mix(1, sampling.seed);
}

uint64_t next_chain(uint64_t chain, TokenId token, bool is_generated, bool kinds_count) {
  return mix(chain, static_cast<uint64_t>(token) * 2 + (kinds_count && is_generated));
}

TokenId token_after(uint64_t chain, int32_t vocab_size) {
  return static_cast<TokenId>(mix(chain, 2) % static_cast<uint64_t>(vocab_size));
}

float logprob_after(uint64_t chain) {
  return -static_cast<float>(mix(chain, 3) % 1000);
}

Oracle oracle(const core::Request& request, int32_t vocab_size, bool kinds_count) {
  Oracle oracle;
  uint64_t chain = first_chain(request.sampling);
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    chain = next_chain(chain, request.prompt[i], false, kinds_count);
    if (i + 1 < request.prompt.size()) oracle.prompt_logprobs.push_back(logprob_after(chain));
  }
  for (int32_t i = 0; i < request.sampling.max_tokens; ++i) {
    oracle.generated.push_back(token_after(chain, vocab_size));
    chain = next_chain(chain, oracle.generated.back(), true, kinds_count);
  }
  return oracle;
}

SimExecutor::SimExecutor(const ExecutorOptions& options) : options_(options) {
  rows_.resize(static_cast<size_t>(options.num_blocks) * options.page_tokens);
}

SimExecutor::Row& SimExecutor::row(std::span<const core::BlockId> blocks, int32_t position) {
  return const_cast<Row&>(std::as_const(*this).row(blocks, position));
}

const SimExecutor::Row& SimExecutor::row(std::span<const core::BlockId> blocks,
                                         int32_t position) const {
  const auto table_idx = static_cast<size_t>(position / options_.page_tokens);
  CHECK(table_idx < blocks.size(), "position {} is beyond the block table", position);
  const int32_t block = core::index(blocks[table_idx]);
  CHECK(block >= 0 && block < options_.num_blocks, "block {}", block);
  return rows_[static_cast<size_t>(block) * options_.page_tokens + position % options_.page_tokens];
}

void check_plan_shape(const core::StepPlan& plan, const ExecutorOptions& options,
                      int32_t blocks_ready) {
  int32_t num_rows = 0, rows_together = 0;
  bool prompts_began = false;
  std::set<core::SeqId> seqs;
  std::set<int32_t> slots;
  for (const core::Segment& s : plan.segments) {
    num_rows += s.token_end - s.token_begin;
    if (s.layer_buffers.empty()) rows_together += s.token_end - s.token_begin;
    CHECK(s.token_begin >= 0 && s.token_begin < s.token_end, "an empty segment");
    CHECK(s.token_end <= std::ssize(s.tokens) && s.sampling != nullptr);
    CHECK(s.logits_begin >= s.token_begin && s.logits_begin <= s.token_end);
    CHECK(!s.sample || (s.token_end == std::ssize(s.tokens) && s.logits_begin < s.token_end));
    CHECK(seqs.insert(s.seq).second && slots.insert(s.slot).second, "a sequence or slot twice");
    CHECK(s.slot >= 0 && s.slot < options.max_num_seqs, "slot {}", s.slot);
    CHECK(s.kind == RowKind::kPrompt || !prompts_began, "a decode behind a prompt chunk");
    CHECK((s.kind == RowKind::kPrompt) == (s.token_end <= s.prompt_len) &&
              (s.kind == RowKind::kDecode) == (s.token_begin >= s.prompt_len),
          "rows of two kinds in one segment");
    for (const core::BlockId block : s.blocks) {
      CHECK(core::index(block) < blocks_ready, "block {} is not there yet", core::index(block));
    }
    prompts_began |= s.kind == RowKind::kPrompt;
  }
  CHECK(num_rows == plan.num_rows && rows_together <= options.max_num_batched_tokens, "{} rows",
        num_rows);
}

void SimExecutor::check_plan(const core::StepPlan& plan, const core::TransferPlan& transfers) {
  check_plan_shape(plan, options_, ready_.count);
  std::set<const Row*> written;
  for (const core::Segment& s : plan.segments) {
    for (int32_t p = s.token_begin; p < s.token_end; ++p) {
      CHECK(written.insert(&row(s.blocks, p)).second, "two rows of the step in one place");
    }
  }
  for (const core::BlockCopy& c : transfers.copies) {
    CHECK(c.from != c.to && c.num_tokens > 0 && c.num_tokens < options_.page_tokens,
          "a copy of {} tokens from {} to {}", c.num_tokens, core::index(c.from),
          core::index(c.to));
  }
}

base::Result<void> SimExecutor::run(const core::StepPlan& plan, const core::TransferPlan& transfers,
                                    core::StepResult* result) {
  check_plan(plan, transfers);
  for (const core::BlockCopy& copy : transfers.copies) {
    const auto page = static_cast<size_t>(options_.page_tokens);
    Row* to = &rows_[static_cast<size_t>(core::index(copy.to)) * page];
    std::fill_n(to, page, Row{});
    std::copy_n(&rows_[static_cast<size_t>(core::index(copy.from)) * page], copy.num_tokens, to);
    rows_copied_ += copy.num_tokens;
  }
  if (std::exchange(fail_next_, false)) {
    for (const core::Segment& s : plan.segments) {
      for (int32_t p = s.token_begin; p < s.token_end; ++p) row(s.blocks, p) = Row{};
    }
    return base::error(base::Code::kInternal, "the simulated device failed");
  }
  // All rows are written before any is read: a write into another sequence's page is seen in the
  // same step.
  for (const core::Segment& segment : plan.segments) write_rows(segment);
  result->segments.resize(plan.segments.size());
  for (size_t i = 0; i < plan.segments.size(); ++i) fill(plan.segments[i], &result->segments[i]);
  return {};
}

void SimExecutor::write_rows(const core::Segment& s) {
  decode_replays_ += s.kind == RowKind::kDecode && s.token_end - s.token_begin > 1;
  Row before{.chain = first_chain(*s.sampling), .prompt_made = true};
  if (s.token_begin > 0) before = row(s.blocks, s.token_begin - 1);
  for (int32_t p = s.token_begin; p < s.token_end; ++p) {
    const bool is_generated = s.kind == RowKind::kDecode;
    before = {.token = s.tokens[p],
              .chain = next_chain(before.chain, s.tokens[p], is_generated, options_.kinds_count),
              .prompt_made = before.prompt_made && !is_generated};
    row(s.blocks, p) = before;
  }
}

void SimExecutor::fill(const core::Segment& s, core::SegmentResult* result) const {
  result->seq = s.seq;
  result->sampled = s.sample;
  result->has_logprobs = false;
  result->prompt.clear();
  uint64_t chain = first_chain(*s.sampling);
  for (int32_t p = 0; p < s.token_end; ++p) {
    chain = next_chain(chain, s.tokens[p], p >= s.prompt_len, options_.kinds_count);
    const Row& read = row(s.blocks, p);
    CHECK(read.token == s.tokens[p] && read.chain == chain,
          "sequence {} reads a wrong page: row {} of {} holds token {}, expected {}",
          core::number(s.seq), p, s.token_end, read.token, s.tokens[p]);
    if (s.sampling->prompt_logprobs && p >= s.logits_begin && p + 1 < s.prompt_len) {
      result->prompt.push_back({.token = {s.tokens[p + 1], logprob_after(chain)}, .rank = 1});
    }
  }
  if (!s.sample) return;
  result->token = token_after(chain, options_.vocab_size);
  if (s.sampling->logprobs) {
    result->has_logprobs = true;
    result->logprobs = {.token = {result->token, logprob_after(chain)}, .rank = 1};
  }
}

bool SimExecutor::is_prompt_made(core::BlockId block) const {
  const auto page = static_cast<size_t>(options_.page_tokens);
  const auto first = rows_.begin() + static_cast<ptrdiff_t>(core::index(block) * page);
  return std::all_of(first, first + options_.page_tokens,
                     [](const Row& r) { return r.prompt_made; });
}

void SimExecutor::check_pages(const sched::Sequence& s) const {
  uint64_t chain = first_chain(s.request.sampling);
  for (int32_t p = 0; p < s.computed; ++p) {
    chain = next_chain(chain, s.tokens[p], p >= s.prompt_len, options_.kinds_count);
    const Row& held = row(s.kv.blocks, p);
    CHECK(held.token == s.tokens[p] && held.chain == chain,
          "a page of sequence {} was overwritten at position {}", core::number(s.id), p);
  }
}

}  // namespace sim
