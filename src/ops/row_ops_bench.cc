// row_ops_bench: the ops that touch each value once (norms, rotation, gating, page writes) and the
// choice of a token.
//
//   row_ops_bench [--threads N] [--isa reference|avx2|avx512]
//
// One row should cost about a microsecond, since a decode step runs 7 of them a layer; many rows
// are bound by memory, so they are shown in GB/s of what they read and write. Best of 20 runs, each
// of enough calls to take 2 ms.
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "device/cpu.h"
#include "ops/op_table.h"
#include "ops/sample.h"

namespace {

double seconds() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

// Microseconds of one call.
double best_us(const std::function<void()>& call) {
  call();
  double begin = seconds();
  call();
  const double once = std::max(1e-8, seconds() - begin);
  const int calls = std::max(1, static_cast<int>(2e-3 / once));
  double best = 1e9;
  for (int run = 0; run < 20; ++run) {
    begin = seconds();
    for (int i = 0; i < calls; ++i) call();
    best = std::min(best, (seconds() - begin) / calls);
  }
  return best * 1e6;
}

std::vector<float> random_floats(int64_t count) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = normal(random);
  return values;
}

void print_row(const char* op, int64_t rows, int64_t width, double us, double bytes) {
  std::printf("| %-9s | %5lld x %6lld | %10.2f | %8.1f |\n", op, static_cast<long long>(rows),
              static_cast<long long>(width), us, bytes / us * 1e-3);
}

struct Model {
  const char* name;
  int32_t model_dim, ffn_dim, q_heads, kv_heads, head_dim;
};

void measure_rows(device::Stream& stream, const ops::OpTable& ops, const Model& m, int64_t rows) {
  const int64_t q_width = int64_t{m.q_heads} * m.head_dim,
                kv_width = int64_t{m.kv_heads} * m.head_dim;
  std::vector<float> x = random_floats(rows * m.model_dim), y(x.size()),
                     weight = random_floats(m.model_dim);
  std::vector<float> q = random_floats(rows * q_width),
                     gate_up = random_floats(rows * 2 * m.ffn_dim);
  std::vector<float> gated(
      static_cast<size_t>(rows * m.ffn_dim));  // in place, repeated calls would end in denormals
  std::vector<float> k = random_floats(rows * kv_width),
                     frequencies(static_cast<size_t>(m.head_dim / 2), 0.01f);
  std::vector<int32_t> positions(static_cast<size_t>(rows));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(i) + 1000;
  constexpr int32_t kPageTokens = 32;
  const core::PageShape page{
      .page_tokens = kPageTokens, .logical_page_tokens = kPageTokens, .head_dim = m.head_dim};
  const int64_t frames = (rows + kPageTokens - 1) / kPageTokens;
  std::vector<std::byte> pages(static_cast<size_t>(m.kv_heads * frames * page.page_bytes()));
  std::vector<ops::KvHead> heads;
  for (int32_t head = 0; head < m.kv_heads; ++head) {
    heads.push_back({.base = pages.data() + head * frames * page.page_bytes()});
  }
  const ops::KvLayer kv{page, heads};
  core::PageShape sealed = page;
  sealed.type = core::DType::kI8;
  std::vector<std::byte> sealed_pages(
      static_cast<size_t>(m.kv_heads * frames * sealed.page_bytes()));
  std::vector<ops::KvSealItem> seals;
  for (int64_t i = 0; i < m.kv_heads * frames; ++i) {
    seals.push_back(
        {pages.data() + i * page.page_bytes(), sealed_pages.data() + i * sealed.page_bytes()});
  }
  std::vector<int32_t> table(static_cast<size_t>(frames));
  std::iota(table.begin(), table.end(), 0);
  const ops::AttentionSegment segment{.row_begin = 0,
                                      .row_end = static_cast<int32_t>(rows),
                                      .position_begin = 0,
                                      .frames = table.data()};

  std::printf(
      "\n%s, %lld rows\n| op        |          shape |         us |     GB/s |\n| --- | --- | ---: "
      "| ---: |\n",
      m.name, static_cast<long long>(rows));
  const double f32 = 4.0 * static_cast<double>(rows);
  print_row("rms_norm", rows, m.model_dim, best_us([&] {
              ops.rms_norm(stream, {x.data(), m.model_dim, weight.data(), 1e-5f, rows, 1,
                                    m.model_dim, y.data(), m.model_dim});
            }),
            2 * f32 * m.model_dim);
  print_row("rope", rows, q_width, best_us([&] {
              ops.rope(stream, {q.data(), q_width, rows, m.q_heads, m.head_dim, positions,
                                frequencies, 1.0f});
            }),
            2 * f32 * static_cast<double>(q_width));
  const auto measure_gate = [&](const char* name, ops::SwiGluFn gate) {
    const double us = best_us([&] {
      gate(stream, {gate_up.data(), gate_up.data() + m.ffn_dim, 2 * m.ffn_dim, rows, m.ffn_dim,
                    gated.data(), m.ffn_dim});
    });
    print_row(name, rows, m.ffn_dim, us, 3 * f32 * m.ffn_dim);
  };
  measure_gate("swiglu", ops.swiglu);
  measure_gate("geglu", ops.geglu);
  print_row("kv_write", rows, 2 * kv_width, best_us([&] {
              ops.kv_write(stream, {kv, k.data(), k.data(), kv_width, kv_width, {&segment, 1}});
            }),
            3 * f32 * static_cast<double>(kv_width));
  print_row("kv_seal", rows, 2 * kv_width, best_us([&] { ops.kv_seal(stream, {sealed, seals}); }),
            1.5 * f32 * static_cast<double>(kv_width));
}

void measure_sampling(int32_t vocab) {
  const std::vector<float> logits = random_floats(vocab);
  std::vector<float> row(logits.size());
  std::vector<std::byte> workspace(static_cast<size_t>(ops::sample_workspace_bytes(vocab)) + 64);
  std::byte* const aligned =
      workspace.data() + (64 - reinterpret_cast<uintptr_t>(workspace.data()) % 64) % 64;
  const std::vector<core::TokenId> tokens(1000, 5);
  auto measure = [&](const char* name, const core::SamplingParams& params) {
    core::PositionLogprobs logprobs;
    const double us = best_us([&] {
      row = logits;  // sample() overwrites them
      const auto workspace_bytes = static_cast<size_t>(ops::sample_workspace_bytes(vocab));
      ops::sample({.logits = row,
                   .params = &params,
                   .tokens = tokens,
                   .prompt_len = 500,
                   .workspace = {aligned, workspace_bytes}},
                  params.logprobs ? &logprobs : nullptr);
    });
    std::printf("| %-28s | %6d | %8.1f |\n", name, vocab, us);
  };
  core::SamplingParams greedy, draw, nucleus, penalties, top;
  greedy.temperature = 0;
  nucleus.top_k = 50, nucleus.top_p = 0.9f;
  penalties = greedy, penalties.repetition_penalty = 1.1f, penalties.presence_penalty = 0.5f;
  top = greedy, top.logprobs = 20;
  measure("greedy", greedy);
  measure("draw", draw);
  measure("draw, top_k 50, top_p 0.9", nucleus);
  measure("greedy, penalties", penalties);
  measure("greedy, 20 logprobs", top);
}

}  // namespace

int main(int argc, char** argv) {
  int threads = device::num_physical_cores();
  device::Isa isa = device::detect_isa();
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string_view name = argv[i];
    if (name == "--threads") threads = std::atoi(argv[i + 1]);
    if (name == "--isa") isa = device::parse_isa(argv[i + 1]).value();
  }
  base::ThreadPool pool(threads);
  device::Stream stream(pool);
  const ops::OpTable& ops = ops::op_table(isa);
  std::printf("%s, %d threads\n", device::isa_name(isa), threads);
  for (const Model& model :
       {Model{"SmolLM2-135M", 576, 1536, 9, 3, 64}, Model{"8B", 4096, 14336, 32, 8, 128}}) {
    for (int64_t rows : {1, 8, 512}) measure_rows(stream, ops, model, rows);
  }
  std::printf("\n| sampling, logits copied in    |  vocab |       us |\n| --- | ---: | ---: |\n");
  for (int32_t vocab : {49152, 128256}) measure_sampling(vocab);
  return 0;
}
