#include "grammar/constraint.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "grammar/work_limit.h"

namespace grammar {
namespace {

using base::Code;
using Next = core::TokenConstraint::Next;

bool ends_inside(std::string_view text) {
  return !text.empty() && text.back() == '\xed';
}

// A line of what the library threw.
std::string first_line(const std::exception& exception) {
  const std::string what = exception.what();
  return what.substr(0, what.find('\n'));
}

}  // namespace

base::Result<std::shared_ptr<core::TokenConstraint>> Constraint::create(
    const xgrammar::CompiledGrammar& grammar, std::shared_ptr<const Vocabulary> vocabulary,
    Spec::Json json, ConstraintOptions options) {
  try {
    const WorkLimit limit(kStepCpuUs);
    const int64_t begin_us = thread_cpu_us();
    std::shared_ptr<Constraint> made(
        new Constraint(grammar, std::move(vocabulary), json, std::move(options)));
    if (made->waits_) {
      made->allow_all();
    } else if (made->fill() == Next::kFault) {
      return base::error(Code::kInvalidArgument, "{}", made->fault_);
    } else if (std::ranges::all_of(made->mask_, [](uint32_t word) { return word == 0; })) {
      return base::error(Code::kInvalidArgument, "it allows nothing but an empty output");
    }
    if (!made->waits_) made->allow_opener();
    if (thread_cpu_us() - begin_us > kStepCpuUs)
      return base::error(Code::kUnsupported, "its first token takes too long to find");
    return std::shared_ptr<core::TokenConstraint>(std::move(made));
  } catch (const WorkLimitReached&) {
    return base::error(Code::kUnsupported, "its first token takes too long to find");
  } catch (const std::exception& exception) {
    return base::error(Code::kInvalidArgument, "{}", first_line(exception));
  }
}

Constraint::Constraint(const xgrammar::CompiledGrammar& grammar,
                       std::shared_ptr<const Vocabulary> vocabulary, Spec::Json json,
                       ConstraintOptions options)
    : vocabulary_(std::move(vocabulary)),
      json_(json),
      options_(std::move(options)),
      matcher_(grammar),
      mask_(static_cast<size_t>(core::mask_words(vocabulary_->size))),
      waits_(!options_.starts_after.empty() && options_.opener < 0) {}

Next Constraint::accept(core::TokenId token) {
  if (!fault_.empty()) return Next::kFault;
  if (!core::allows(mask_, token)) return fail("a token that its grammar does not allow was drawn");
  if (is_end(token) && completed_) return Next::kMustEnd;
  if (std::exchange(is_first_, false) && !options_.starts_after.empty() &&
      token == options_.opener) {
    waits_ = true;
    return allow_all();
  }
  constexpr const char* kTooLong = "its grammar took too long to find the tokens that may follow";
  const int64_t begin_us = thread_cpu_us();
  try {
    const WorkLimit limit(kStepCpuUs);
    const Next next = waits_ ? wait_for_start(token) : step(token);
    const int64_t cpu_us = thread_cpu_us() - begin_us;
    if (next == Next::kFault || cpu_us <= kStepCpuUs) return next;
    return fail(kTooLong);
  } catch (const WorkLimitReached&) {
    return fail(kTooLong);
  } catch (const std::exception& exception) {
    return fail("its grammar failed: " + first_line(exception));
  }
}

Next Constraint::step(core::TokenId token) {
  after_ed_ = ends_inside(vocabulary_->tokens.GetDecodedVocab()[static_cast<size_t>(token)]);
  if (!matcher_.AcceptToken(token))
    return fail("its grammar does not take a token that it allowed");
  return fill();
}

// What stands behind the awaited text in the same token is the grammar's first, white space left
// out.
Next Constraint::wait_for_start(core::TokenId token) {
  if (token == options_.closer) {
    waits_ = false;
    return fill();
  }
  seen_ += vocabulary_->tokens.GetDecodedVocab()[static_cast<size_t>(token)];
  const size_t at = seen_.find(options_.starts_after);
  if (at == std::string::npos) {
    const size_t kept = options_.starts_after.size() - 1;
    if (seen_.size() > kept) seen_.erase(0, seen_.size() - kept);
    return Next::kGoesOn;
  }
  std::string_view rest = std::string_view(seen_).substr(at + options_.starts_after.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(" \t\r\n"), rest.size()));
  if (!rest.empty() && !matcher_.AcceptString(std::string(rest)))
    return fail("the text behind the end of its reasoning is not what its grammar asks for");
  waits_ = false;
  return fill();
}

Next Constraint::fill() {
  int64_t words = std::ssize(mask_);
  DLTensor tensor{.data = mask_.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &words,
                  .strides = nullptr,
                  .byte_offset = 0};
  matcher_.FillNextTokenBitmask(&tensor);
  completed_ = matcher_.IsCompleted();
  const bool is_json = json_ == Spec::Json::kAll || (json_ == Spec::Json::kInTags && !completed_);
  for (size_t i = 0; i < mask_.size() && is_json; ++i) mask_[i] &= vocabulary_->json_tokens[i];
  for (size_t i = 0; i < mask_.size() && after_ed_; ++i) mask_[i] &= vocabulary_->after_ed[i];
  if (const int32_t rest = vocabulary_->size % 32; rest != 0)
    mask_.back() &= (uint32_t{1} << rest) - 1;
  set_ends(false);
  const bool goes_on = std::ranges::any_of(mask_, [](uint32_t word) { return word != 0; });
  if (!goes_on && !completed_)
    return fail("no token of the vocabulary continues what its grammar asks for");
  if (completed_) set_ends(true);
  return goes_on ? Next::kGoesOn : Next::kMustEnd;
}

void Constraint::allow_opener() {
  if (options_.starts_after.empty() || options_.opener < 0) return;
  mask_[static_cast<size_t>(options_.opener) / 32] |= uint32_t{1} << (options_.opener % 32);
}

Next Constraint::allow_all() {
  std::ranges::fill(mask_, ~uint32_t{0});
  if (const int32_t rest = vocabulary_->size % 32; rest != 0)
    mask_.back() &= (uint32_t{1} << rest) - 1;
  completed_ = options_.may_end_before;
  set_ends(completed_);
  return Next::kGoesOn;
}

Next Constraint::fail(std::string why) {
  fault_ = std::move(why);
  return Next::kFault;
}

bool Constraint::is_end(core::TokenId token) const {
  return std::ranges::find(options_.end_tokens, token) != options_.end_tokens.end();
}

void Constraint::set_ends(bool allowed) {
  for (const core::TokenId token : options_.end_tokens) {
    uint32_t& word = mask_[static_cast<size_t>(token) / 32];
    const uint32_t bit = uint32_t{1} << (token % 32);
    word = allowed ? word | bit : word & ~bit;
  }
}

}  // namespace grammar
