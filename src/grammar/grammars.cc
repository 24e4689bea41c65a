#include "grammar/grammars.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <list>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>

#include "base/log.h"
#include "base/thread_name.h"
#include "grammar/compile.h"
#include "grammar/constraint.h"
#include "grammar/work_limit.h"

namespace grammar {
namespace {

using base::Code;
using base::error;
using Clock = std::chrono::steady_clock;

class Compiled final : public Grammar {
 public:
  Compiled(xgrammar::CompiledGrammar compiled, std::shared_ptr<const Vocabulary> vocabulary,
           Spec::Json json)
      : compiled_(std::move(compiled)), vocabulary_(std::move(vocabulary)), json_(json) {}

  base::Result<std::shared_ptr<core::TokenConstraint>> begin(
      ConstraintOptions options) const override {
    return Constraint::create(compiled_, vocabulary_, json_, std::move(options));
  }
  int64_t bytes() const { return static_cast<int64_t>(compiled_.MemorySizeBytes()); }

 private:
  xgrammar::CompiledGrammar compiled_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  Spec::Json json_;
};

using Made = base::Result<std::shared_ptr<const Compiled>>;

// All that tells one spec from another.
std::string key_of(const Spec& spec) {
  std::string key =
      fmt::format("{}{}{}{}{}:", static_cast<int>(spec.kind), static_cast<int>(spec.json),
                  spec.closed ? 'c' : 'o', spec.any_whitespace ? 'w' : 'n', spec.text.size());
  key += spec.text;
  for (const std::string& choice : spec.choices) key += fmt::format("{}:{}", choice.size(), choice);
  return key;
}

// The most recently used first. Not thread-safe.
class Cache {
 public:
  explicit Cache(int64_t bytes_max) : bytes_max_(bytes_max) {}

  std::shared_ptr<const Compiled> find(const std::string& key) {
    const auto found = places_.find(key);
    if (found == places_.end()) return nullptr;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->grammar;
  }

  // One that is larger than the bound is not kept.
  void insert(const std::string& key, std::shared_ptr<const Compiled> grammar) {
    const int64_t bytes = grammar->bytes() + 2 * static_cast<int64_t>(key.size());
    if (bytes > bytes_max_ || places_.contains(key)) return;
    while (bytes_ + bytes > bytes_max_) {
      bytes_ -= entries_.back().bytes;
      places_.erase(entries_.back().key);
      entries_.pop_back();
    }
    entries_.push_front({key, std::move(grammar), bytes});
    places_.emplace(entries_.front().key, entries_.begin());
    bytes_ += bytes;
  }

  int64_t bytes() const { return bytes_; }

 private:
  struct Entry {
    std::string key;
    std::shared_ptr<const Compiled> grammar;
    int64_t bytes;
  };
  const int64_t bytes_max_;
  int64_t bytes_ = 0;
  std::list<Entry> entries_;
  std::unordered_map<std::string_view, std::list<Entry>::iterator> places_;
};

// What compilations that nobody waits for any more still use.
struct Shared {
  Shared(int32_t size, std::function<std::string_view(core::TokenId)> of,
         const GrammarsOptions& options)
      : vocab_size(size),
        bytes_of(std::move(of)),
        tag_bytes_of(options.tag_bytes_of),
        compile_us(options.compile_us),
        cache(options.cache_bytes) {}

  const int32_t vocab_size;
  const std::function<std::string_view(core::TokenId)> bytes_of, tag_bytes_of;
  const int64_t compile_us;

  std::mutex mutex;
  std::condition_variable_any changed;
  // Made at the first compilation that needs it.
  std::shared_ptr<const Vocabulary> vocabulary, tag_vocabulary;
  Cache cache;
  int running = 0;
  Grammars::Counters counters;
};

struct Job {
  Spec spec;
  std::string key;
  std::atomic<bool> cancelled{false};  // nobody waits for it any more
  // Of Shared::mutex. Its thread's clock and where that ends, from when the vocabulary is there.
  std::optional<clockid_t> clock = {};
  int64_t end_cpu_us = 0;
  std::optional<Made> made = {};
};

bool continues_surrogate(char c) {
  return static_cast<unsigned char>(c) >= 0xa0 && static_cast<unsigned char>(c) <= 0xbf;
}

// Of a token: nothing in it that JSON has nowhere but in white space, or UTF-8 nowhere at all.
bool is_for_json(std::string_view token) {
  for (size_t i = 0; i < token.size(); ++i) {
    if (static_cast<unsigned char>(token[i]) < 0x20 && token[i] != '\n') return false;
    if (i > 0 && token[i - 1] == '\xed' && continues_surrogate(token[i])) return false;
  }
  return true;
}

std::shared_ptr<const Vocabulary> make_vocabulary(
    int32_t vocab_size, const std::function<std::string_view(core::TokenId)>& bytes_of) {
  std::vector<std::string> tokens;
  tokens.reserve(static_cast<size_t>(vocab_size));
  const auto words = static_cast<size_t>(core::mask_words(vocab_size));
  std::vector<uint32_t> json(words), after_ed(words);
  for (core::TokenId id = 0; id < vocab_size; ++id) {
    const std::string& token = tokens.emplace_back(bytes_of(id));
    const uint32_t bit = uint32_t{1} << (id % 32);
    if (is_for_json(token)) json[static_cast<size_t>(id) / 32] |= bit;
    if (token.empty() || !continues_surrogate(token[0]))
      after_ed[static_cast<size_t>(id) / 32] |= bit;
  }
  xgrammar::TokenizerInfo info(tokens, xgrammar::VocabType::RAW, vocab_size,
                               std::vector<int32_t>{});
  return std::make_shared<const Vocabulary>(Vocabulary{.size = vocab_size,
                                                       .tokens = std::move(info),
                                                       .after_ed = std::move(after_ed),
                                                       .json_tokens = std::move(json)});
}

std::shared_ptr<const Vocabulary> vocabulary_of(Shared& shared, Spec::Kind kind) {
  const bool of_tags = kind == Spec::Kind::kStructuralTag && shared.tag_bytes_of != nullptr;
  std::shared_ptr<const Vocabulary>& kept = of_tags ? shared.tag_vocabulary : shared.vocabulary;
  {
    const std::lock_guard lock(shared.mutex);
    if (kept != nullptr) return kept;
  }
  auto made = make_vocabulary(shared.vocab_size, of_tags ? shared.tag_bytes_of : shared.bytes_of);
  const std::lock_guard lock(shared.mutex);
  if (kept == nullptr) kept = std::move(made);
  return kept;
}

base::Error takes_too_long(int64_t compile_us) {
  return error(Code::kTooLarge, "it takes more than {} s to compile", compile_us / 1'000'000);
}

void start_clock(Shared& shared, Job& job) {
  const std::lock_guard lock(shared.mutex);
  job.end_cpu_us = thread_cpu_us() + shared.compile_us;
  clockid_t clock{};
  if (pthread_getcpuclockid(pthread_self(), &clock) != 0) return;
  job.clock = clock;
  shared.changed.notify_all();
}

// Of its processor time. REQUIRES: Shared::mutex, no result: so its thread lives, and its clock.
std::optional<int64_t> time_left_us(const Job& job) {
  timespec now{};
  if (!job.clock || clock_gettime(*job.clock, &now) != 0) return std::nullopt;
  return job.end_cpu_us - (int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000);
}

Made compile_now(Shared& shared, Job& job) {
  try {
    const Spec& spec = job.spec;
    std::shared_ptr<const Vocabulary> vocabulary = vocabulary_of(shared, spec.kind);
    start_clock(shared, job);
    const WorkLimit limit(shared.compile_us, &job.cancelled);
    // One thread: what the library throws on others ends the process. Its own cache is off.
    xgrammar::GrammarCompiler compiler(vocabulary->tokens, /*max_threads=*/1,
                                       /*cache_enabled=*/false);
    ASSIGN_OR_RETURN(xgrammar::CompiledGrammar compiled, compile_spec(compiler, spec));
    // The same answer whether or not its parser was at work when the time was over.
    if (thread_cpu_us() > job.end_cpu_us) return takes_too_long(shared.compile_us);
    return std::make_shared<const Compiled>(std::move(compiled), std::move(vocabulary),
                                            json_of(spec));
  } catch (const WorkLimitReached&) {
    return takes_too_long(shared.compile_us);
  } catch (const std::exception& exception) {
    LOG_ERROR("the vocabulary cannot be used for structured output: {}", exception.what());
    return error(Code::kInternal, "the model's vocabulary cannot be used for structured output");
  }
}

void run(const std::shared_ptr<Shared>& shared, const std::shared_ptr<Job>& job) {
  base::name_this_thread("grammar");
  Made made = compile_now(*shared, *job);
  const std::lock_guard lock(shared->mutex);
  if (made.ok()) shared->cache.insert(job->key, made.value());
  ++shared->counters.compiled;
  --shared->running;
  job->made.emplace(std::move(made));
  shared->changed.notify_all();
}

class CachedGrammars final : public Grammars {
 public:
  CachedGrammars(int32_t vocab_size, std::function<std::string_view(core::TokenId)> bytes_of,
                 const GrammarsOptions& options)
      : options_(options),
        shared_(std::make_shared<Shared>(vocab_size, std::move(bytes_of), options)) {}

  // Compilations that are over soon may end; one that hangs does not hold the process up.
  ~CachedGrammars() override {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait_for(lock, std::chrono::seconds(2),
                              [this] { return shared_->running == 0; });
  }

  using Grammars::compile;
  base::Result<std::shared_ptr<const Grammar>> compile(const Spec& spec,
                                                       const std::stop_token& stop) override {
    RETURN_IF_ERROR(check_spec(spec));
    const auto job = std::make_shared<Job>(spec, key_of(spec));
    std::unique_lock lock(shared_->mutex);
    std::shared_ptr<const Grammar> found;
    // Somebody else may compile the same while this waits.
    const bool has_turn = shared_->changed.wait_until(lock, stop, wait_end(), [&] {
      found = find_kept(job->key);
      return found != nullptr || shared_->running < kCompilationsMax;
    });
    if (found != nullptr) return found;
    if (stop.stop_requested()) return error(Code::kCancelled, "nobody waits for it");
    if (!has_turn) {
      return error(Code::kOverloaded, "{} other grammars are being compiled", kCompilationsMax);
    }
    ++shared_->running;
    std::thread([shared = shared_, job] { run(shared, job); }).detach();
    Made made = wait_for(lock, *job, stop);
    if (!made.ok()) return std::move(made).error();
    return std::shared_ptr<const Grammar>(std::move(made).value());
  }

  std::shared_ptr<const Grammar> find(const Spec& spec) override {
    const std::string key = key_of(spec);
    const std::lock_guard lock(shared_->mutex);
    return find_kept(key);
  }

  Counters counters() const override {
    const std::lock_guard lock(shared_->mutex);
    Counters counters = shared_->counters;
    counters.cached_bytes = shared_->cache.bytes();
    return counters;
  }

 private:
  Clock::time_point wait_end() const {
    return Clock::now() + std::chrono::microseconds(options_.wait_us);
  }

  // REQUIRES: Shared::mutex.
  std::shared_ptr<const Grammar> find_kept(const std::string& key) {
    auto found = shared_->cache.find(key);
    if (found != nullptr) ++shared_->counters.found;
    return found;
  }

  // The result of a job that runs, or why it is given up. A thread that got no processor is no
  // grammar that takes too long: only its own clock says that.
  Made wait_for(std::unique_lock<std::mutex>& lock, Job& job, const std::stop_token& stop) {
    const auto end = wait_end();
    while (true) {
      const bool has_clock = job.clock.has_value();
      const std::optional<int64_t> left_us = time_left_us(job);
      // By the clock it is over no sooner than by the thread's own.
      const auto next =
          left_us ? std::min(end, Clock::now() + std::chrono::microseconds(*left_us + 1000)) : end;
      shared_->changed.wait_until(lock, stop, next, [&] {
        return job.made.has_value() || job.clock.has_value() != has_clock;
      });
      if (job.made) return *std::move(job.made);
      const bool is_heavy = time_left_us(job).value_or(1) <= 0;
      if (!is_heavy && !stop.stop_requested() && Clock::now() < end) continue;
      job.cancelled.store(true, std::memory_order_relaxed);
      if (stop.stop_requested()) return error(Code::kCancelled, "nobody waits for it");
      if (is_heavy) return takes_too_long(options_.compile_us);
      return error(Code::kOverloaded, "it is not compiled after {} s, of which it got too few",
                   options_.wait_us / 1'000'000);
    }
  }

  const GrammarsOptions options_;
  const std::shared_ptr<Shared> shared_;
};

}  // namespace

std::unique_ptr<Grammars> Grammars::create(int32_t vocab_size,
                                           std::function<std::string_view(core::TokenId)> bytes_of,
                                           const GrammarsOptions& options) {
  return std::make_unique<CachedGrammars>(vocab_size, std::move(bytes_of), options);
}

}  // namespace grammar
