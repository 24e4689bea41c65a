#include "apps/vllm_flags.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <utility>

namespace apps {
namespace {

// A value of vLLM's and the arguments that say it here: words apart by a space, % stands for the
// value. "*": any value. "": dropped.
struct Word {
  std::string_view value, ours;
};

struct Spelling {
  std::string_view name;
  bool takes_value;
  std::vector<Word> words;     // none fits: refused
  std::string_view otherwise;  // why it is dropped or refused
};

constexpr int32_t kThresholdMax = 1 << 24;  // as --chunk-size
constexpr std::string_view kOneDevice = "one device serves a model here";
constexpr std::string_view kTls = "TLS is left to a proxy in front of the server";
constexpr std::string_view kMatrices = "matrices are BF16, fp8, or as a GGUF file has them";

std::vector<Spelling> memory_spellings() {
  return {
      {"--block-size", true, {{"*", "--page-size %"}}, ""},
      {"--gpu-memory-utilization", true, {{"*", "--device-memory %"}}, ""},
      {"--kv-cache-memory-bytes", true, {{"*", "--device-memory %"}}, ""},
      {"--kv-offloading-size", true, {{"*", "--host-memory %GiB"}}, ""},
      {"--kv-offloading-backend", true, {{"native", ""}}, "the host tier is built in"},
      {"--cpu-offload-gb", true, {{"0", ""}}, "weights stay on the device, KV pages move"},
      {"--kv-transfer-config", true, {}, "--host-memory and --disk-path are the tiers here"},
      {"--kv-cache-dtype",
       true,
       {{"auto", "--kv-cache-dtype bf16"},
        {"bfloat16", "--kv-cache-dtype bf16"},
        {"float16", "--kv-cache-dtype f16"},
        {"fp8", "--kv-cache-dtype fp8_e4m3"},
        {"*", "--kv-cache-dtype %"}},
       ""},
      {"--max-model-len",
       true,
       {{"auto", "--max-model-len 0"}, {"-1", "--max-model-len 0"}, {"*", "--max-model-len %"}},
       ""},
      {"--max-num-batched-tokens", true, {{"*", "--max-num-batched-tokens %"}}, ""},
  };
}

std::vector<Spelling> model_spellings() {
  return {
      {"--model", true, {{"*", "%"}}, ""},
      {"--dtype",
       true,
       {{"auto", ""}, {"bfloat16", ""}},
       "a GPU computes in BF16 and the CPU in FP32"},
      {"--quantization",
       true,
       {{"fp8", "--weights fp8"}, {"gguf", "--weights quantised"}, {"none", ""}, {"None", ""}},
       kMatrices},
      {"-q", true, {{"fp8", "--weights fp8"}, {"gguf", "--weights quantised"}}, kMatrices},
      {"--load-format",
       true,
       {{"safetensors", "--load-format auto"},
        {"gguf", "--load-format auto"},
        {"*", "--load-format %"}},
       ""},
      {"--trust-remote-code", false, {{"", ""}}, "no code of a model is run"},
      {"--generation-config",
       true,
       {{"vllm", ""}},
       "sampling defaults of generation_config.json are not applied here: give vllm"},
      {"--hf-overrides", true, {}, "a model's config.json is taken as it is"},
      {"--enable-lora", false, {}, "there is no LoRA here"},
      {"--speculative-config", true, {}, "there is no speculation here"},
      {"--tensor-parallel-size", true, {{"1", ""}}, kOneDevice},
      {"-tp", true, {{"1", ""}}, kOneDevice},
      {"--pipeline-parallel-size", true, {{"1", ""}}, kOneDevice},
      {"-pp", true, {{"1", ""}}, kOneDevice},
      {"--data-parallel-size", true, {{"1", ""}}, kOneDevice},
      {"-dp", true, {{"1", ""}}, kOneDevice},
  };
}

std::vector<Spelling> serving_spellings() {
  return {
      {"--enable-chunked-prefill", false, {{"", ""}}, "prompts are always computed in pieces"},
      {"--no-enable-chunked-prefill", false, {}, "prompts are always computed in pieces"},
      // What else it is hangs on preset and model (set_prompt_pace()): it stays what it is here.
      {"--long-prefill-token-threshold",
       true,
       {{"0", ""}, {"*", "--long-prefill-token-threshold %"}},
       ""},
      {"--max-num-partial-prefills",
       true,
       {},
       "how many prompts share a step follows from --max-num-batched-tokens"},
      {"--scheduling-policy", true, {{"fcfs", ""}}, "requests run first come, first served"},
      {"--enable-auto-tool-choice", false, {{"", ""}}, "tool calls are always looked for"},
      {"--max-logprobs", true, {{"20", ""}}, "20 is the limit"},
      {"--enable-prompt-tokens-details", false, {{"", ""}}, "cached_tokens is always there"},
      {"--enable-request-id-headers", false, {{"", ""}}, "x-request-id is always sent"},
      {"--enable-log-requests", false, {{"", "--log-requests"}}, ""},
      {"--no-enable-log-requests", false, {{"", "--no-log-requests"}}, ""},
      {"--disable-log-requests", false, {{"", "--no-log-requests"}}, ""},
      {"--disable-log-stats", false, {{"", "--no-log-status"}}, ""},
      {"--uvicorn-log-level",
       true,
       {{"critical", "--log-level error"}, {"warning", "--log-level warn"}, {"*", "--log-level %"}},
       ""},
      {"--otlp-traces-endpoint", true, {}, "no spans are sent; the log has traceparent's ids"},
      {"--ssl-certfile", true, {}, kTls},
      {"--ssl-keyfile", true, {}, kTls},
  };
}

const std::vector<Spelling>& spellings() {
  static const std::vector<Spelling> all = [] {
    std::vector<Spelling> made = memory_spellings();
    for (auto* more : {model_spellings, serving_spellings}) {
      for (Spelling& spelling : more()) made.push_back(std::move(spelling));
    }
    return made;
  }();
  return all;
}

const Spelling* find(std::string_view name) {
  for (const Spelling& spelling : spellings()) {
    if (spelling.name == name) return &spelling;
  }
  return nullptr;
}

// "32k" is 32000 and "32K" 32768, as vLLM reads them. Nothing: no such number.
std::optional<std::string> plain_number(std::string_view text) {
  double number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<size_t>(text.data() + text.size() - end));
  if (failed != std::errc() || unit.size() > 1) return std::nullopt;
  if (unit.empty()) return std::string(text);
  const size_t at = std::string_view("kKmMgG").find(unit.front());
  if (at == std::string_view::npos) return std::nullopt;
  const double scaled = number * std::pow(at % 2 == 0 ? 1000.0 : 1024.0, 1 + at / 2);
  if (!(scaled >= 0 && scaled < 1e15) || scaled != std::floor(scaled)) return std::nullopt;
  return std::to_string(static_cast<int64_t>(scaled));
}

// 0.92 -> 92%
std::optional<std::string> percent(std::string_view text) {
  double share = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), share);
  if (failed != std::errc() || end != text.data() + text.size() || !(share > 0 && share <= 1)) {
    return std::nullopt;
  }
  return fmt::format("{}%", std::round(share * 1e4) / 1e2);
}

// Of an option that --help hides, whose name CLI11's messages leave out.
base::Result<std::string> tokens_of_threshold(std::string_view name, std::string_view value) {
  int32_t tokens = 0;
  const auto [end, failed] = std::from_chars(value.data(), value.data() + value.size(), tokens);
  if (failed == std::errc() && end == value.data() + value.size() && tokens > 0 &&
      tokens <= kThresholdMax) {
    return std::to_string(tokens);
  }
  return base::error(base::Code::kInvalidArgument, "{} {}: expected a whole number from 0 to {}",
                     name, value, kThresholdMax);
}

base::Result<std::string> own_value(std::string_view name, std::string_view value) {
  if (name == "--long-prefill-token-threshold") return tokens_of_threshold(name, value);
  std::optional<std::string> made(value);
  if (name == "--max-model-len" || name == "--max-num-batched-tokens") made = plain_number(value);
  if (name == "--kv-cache-memory-bytes") made = plain_number(value);
  if (name == "--gpu-memory-utilization") made = percent(value);
  if (made) return *made;
  return base::error(base::Code::kInvalidArgument, "{} {}: expected {}", name, value,
                     name == "--gpu-memory-utilization"
                         ? "a share above 0 and at most 1"
                         : "a whole number, also with k, m, g (thousands) or K, M, G (1024s)");
}

}  // namespace

std::optional<bool> vllm_takes_value(std::string_view name) {
  const Spelling* spelling = find(name);
  if (spelling == nullptr) return std::nullopt;
  return spelling->takes_value;
}

base::Result<Translated> translate_vllm(std::string_view name, std::string_view value) {
  const Spelling& spelling = *find(name);
  const std::string typed = std::string(name) + (spelling.takes_value ? " " : "") +
                            std::string(spelling.takes_value ? value : "");
  for (const Word& word : spelling.words) {
    if (word.value != "*" && word.value != value) continue;
    Translated made;
    std::string_view rest = word.ours;
    while (!rest.empty()) {
      const std::string_view piece = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), piece.size() + 1));
      std::string argument(piece);
      if (const size_t at = argument.find('%'); at != std::string::npos) {
        ASSIGN_OR_RETURN(const std::string own, own_value(name, value));
        argument.replace(at, 1, own);
      }
      made.arguments.push_back(std::move(argument));
    }
    const std::string ours = fmt::format("{}", fmt::join(made.arguments, " "));
    if (ours.empty()) {
      made.note = fmt::format("{} needs no saying{}{}", typed,
                              spelling.otherwise.empty() ? "" : ": ", spelling.otherwise);
    } else if (ours != typed) {
      made.note = fmt::format("{} is {}", typed, ours);
    }
    return made;
  }
  return base::error(base::Code::kUnsupported, "{}: {}", typed, spelling.otherwise);
}

}  // namespace apps
