#include "sim/serving_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>

#include "base/check.h"
#include "sim/sim_executor.h"

namespace sim {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

struct Client {
  std::shared_ptr<engine::EventStream> events;
  int32_t tokens_left = 0;
  int64_t arrived_us = 0, last_us = 0, worst_us = 0;
};

double seconds(double us) {
  return us / 1e6;
}

double mean(const std::vector<double>& values) {
  if (values.empty()) return 0;
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

class Server {
 public:
  Server(const ServingConfig& config, const std::vector<Arrival>& arrivals)
      : arrivals_(arrivals), sizes_(sizes_of(config)), executor_(executor_options(config)) {
    engine::EngineOptions options = config.options;
    options.inbox_capacity = static_cast<int32_t>(arrivals.size());
    engine_ = engine::make_engine(options, sizes_, llama_8b(), executor_, "sim",
                                  [this] { return executor_.now_us(); });
  }

  ServingFigures run() {
    while (next_ < arrivals_.size() || !clients_.empty()) {
      while (next_ < arrivals_.size() && arrivals_[next_].at_us <= executor_.now_us()) submit();
      const bool all_here = next_ == arrivals_.size() && clients_.size() == arrivals_.size();
      if (engine_->step()) {
        count_step(all_here);
        read_events();
      } else {
        CHECK(clients_.empty() && next_ < arrivals_.size(), "the engine stands still");
        executor_.wait_until(arrivals_[next_].at_us);
      }
    }
    return figures();
  }

 private:
  static engine::ResolvedSizes sizes_of(const ServingConfig& config) {
    const engine::MemorySizes memory{.available_bytes = 512 * kGiB,
                                     .weights_bytes = 16 * kGiB,
                                     .workspace_bytes = kGiB,
                                     .num_threads = 1};
    auto sizes = engine::resolve(config.options, llama_8b(), memory);
    CHECK(sizes.ok(), "{}", sizes.error().message);
    return std::move(sizes).value();
  }

  CostOptions executor_options(const ServingConfig& config) const {
    const core::TierOptions& tiers = config.options.tiers;
    return {.machine = config.machine,
            .model = llama_8b(),
            .locality = config.locality,
            .page_tokens = sizes_.page_tokens,
            .max_num_seqs = sizes_.max_num_seqs,
            .tiered = sizes_.num_frames > 0,
            .load = tiers.load,
            .save = tiers.save,
            .working_set_window = tiers.working_set_window,
            .seed = config.seed};
  }

  void submit() {
    const Arrival& arrival = arrivals_[next_++];
    core::Request request;
    request.id = core::RequestId{next_};
    request.prompt.assign(static_cast<size_t>(arrival.prompt_tokens), 2);
    request.arrival_us = arrival.at_us;
    request.sampling.max_tokens = arrival.output_tokens;
    request.sampling.ignore_eos = true;
    Client client{.events = std::make_shared<engine::EventStream>(request, nullptr),
                  .tokens_left = arrival.output_tokens,
                  .arrived_us = arrival.at_us};
    const auto submitted = engine_->submit(std::move(request), client.events);
    CHECK(submitted.ok(), "{}", submitted.error().message);
    clients_.push_back(std::move(client));
  }

  void count_step(bool all_here) {
    const StepCost& step = executor_.last();
    figures_.prompt_attention_s += seconds(step.prompt_attention_us);
    if (step.decodes == 0) return;
    ++steps_with_decodes_;
    pages_loaded_ += step.pages_loaded;
    decodes_ += step.decodes;
    if (step.prompts > 0 || !all_here) return;
    ++figures_.pure_steps;
    pure_us_ += step.total_us;
    pure_decodes_ += step.decodes;
    pure_pages_ += step.pages_loaded;
  }

  void read_events() {
    const int64_t now_us = executor_.now_us();
    for (size_t i = 0; i < clients_.size();) {
      Client& client = clients_[i];
      bool finished = false;
      while (const auto event = client.events->try_pop()) {
        if (event->kind == engine::Event::Kind::kToken) {
          --client.tokens_left;
          if (client.last_us == 0) {
            ttft_.push_back(seconds(static_cast<double>(now_us - client.arrived_us)));
          } else {
            const int64_t between_us = now_us - client.last_us;
            tbt_.push_back(seconds(static_cast<double>(between_us)));
            client.worst_us = std::max(client.worst_us, between_us);
          }
          client.last_us = now_us;
        }
        if (event->kind != engine::Event::Kind::kFinished) continue;
        finished = true;
        worst_tbt_.push_back(seconds(static_cast<double>(client.worst_us)));
        CHECK(event->reason == core::FinishReason::kLength && client.tokens_left == 0,
              "a request ended early");
        delay_.push_back(
            seconds(static_cast<double>(event->times.scheduled_us - event->times.arrival_us)));
      }
      if (finished) {
        std::swap(client, clients_.back());
        clients_.pop_back();
      } else {
        ++i;
      }
    }
  }

  ServingFigures figures() {
    ServingFigures f = figures_;
    const core::EngineSnapshot s = engine_->snapshot();
    f.put_back = s.put_back;
    f.preemptions = s.preemptions;
    f.steps = s.steps;
    f.makespan_s = seconds(static_cast<double>(executor_.now_us() - arrivals_.front().at_us));
    f.tokens_s = static_cast<double>(s.generated_tokens) / f.makespan_s;
    f.layers_segmented = s.kv.layers_segmented;
    f.mean_ttft_s = mean(ttft_);
    f.mean_delay_s = mean(delay_);
    f.mean_tbt_s = mean(tbt_);
    f.mean_worst_tbt_s = mean(worst_tbt_);
    std::ranges::sort(tbt_);
    if (!tbt_.empty()) f.p99_tbt_s = tbt_[tbt_.size() * 99 / 100];
    const auto steps = static_cast<double>(std::max<int64_t>(1, steps_with_decodes_));
    f.pages_loaded = static_cast<double>(pages_loaded_) / steps;
    f.batch = static_cast<double>(decodes_) / steps;
    if (f.pure_steps == 0) return f;
    const auto pure = static_cast<double>(f.pure_steps);
    f.pure_tokens_s = static_cast<double>(pure_decodes_) / seconds(static_cast<double>(pure_us_));
    f.pure_pages_loaded = static_cast<double>(pure_pages_) / pure;
    f.pure_batch = static_cast<double>(pure_decodes_) / pure;
    return f;
  }

  const std::vector<Arrival>& arrivals_;
  const engine::ResolvedSizes sizes_;
  CostExecutor executor_;
  std::unique_ptr<engine::ServingEngine> engine_;
  size_t next_ = 0;
  std::vector<Client> clients_;
  std::vector<double> ttft_, tbt_, worst_tbt_, delay_;
  int64_t steps_with_decodes_ = 0, pages_loaded_ = 0, decodes_ = 0;
  int64_t pure_us_ = 0, pure_decodes_ = 0, pure_pages_ = 0;
  ServingFigures figures_;
};

}  // namespace

std::vector<Arrival> poisson_arrivals(uint64_t seed, int32_t count, double rate, int32_t prompt_min,
                                      int32_t prompt_max, int32_t output_mean) {
  const auto uniform = [&](uint64_t i) {
    return static_cast<double>(mix(seed, i) >> 11) * 0x1p-53;
  };
  std::vector<Arrival> arrivals;
  double at_s = 0;
  for (uint64_t i = 0; i < static_cast<uint64_t>(count); ++i) {
    at_s += -std::log1p(-uniform(3 * i)) / rate;
    const double prompt =
        prompt_min * std::pow(double{1} * prompt_max / prompt_min, uniform(3 * i + 1));
    const double output = output_mean * (.5 + uniform(3 * i + 2));
    arrivals.push_back({.at_us = std::llround(at_s * 1e6) + 1,
                        .prompt_tokens = static_cast<int32_t>(prompt),
                        .output_tokens = static_cast<int32_t>(output)});
  }
  return arrivals;
}

std::vector<ServingConfig> ablation(int64_t kv_bytes) {
  ServingConfig dense{.name = "dense"};
  dense.options.prefix_cache = false;
  dense.options.max_num_seqs = 96;
  dense.options.max_num_batched_tokens = 2048 + 96;
  dense.options.max_model_len = 33 * 1024;
  dense.options.device_memory_bytes = kv_bytes;
  ServingConfig sparse = dense;
  sparse.name = "+SA";
  sparse.options.sparse.budget_tokens = 2048;
  ServingConfig offload = sparse;
  offload.name = "+Offload";
  offload.options.tiers.host_memory_bytes = 100 * kGiB;
  offload.options.tiers.load = core::LoadMethod::kMemcpy;
  offload.options.tiers.save = core::SaveMethod::kMemcpy;
  ServingConfig transfers = offload;
  transfers.name = "+FT";
  transfers.options.tiers.load = core::LoadMethod::kAuto;
  transfers.options.tiers.save = core::SaveMethod::kAuto;
  ServingConfig admission = transfers;
  admission.name = "+WC";
  admission.options.tiers.admission = core::Admission::kWorkingSet;
  ServingConfig layers = admission;
  layers.name = "+LP";
  layers.options.tiers.prefill = core::Prefill::kLayer;
  return {dense, sparse, offload, transfers, admission, layers};
}

ServingFigures serve(const ServingConfig& config, const std::vector<Arrival>& arrivals) {
  return Server(config, arrivals).run();
}

}  // namespace sim
