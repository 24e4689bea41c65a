#include "load/hf_config.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "load/check_config.h"
#include "load/json.h"
#include "load/printable.h"

namespace load {
namespace {

using base::Code;
using base::Result;

struct ModelType {
  std::string_view name;
  std::string_view class_name;
  core::Arch arch;
};
constexpr ModelType kModelTypes[] = {
    {"llama", "LlamaForCausalLM", core::Arch::kLlama},
    {"mistral", "MistralForCausalLM", core::Arch::kLlama},
    {"qwen2", "Qwen2ForCausalLM", core::Arch::kQwen2},
    {"qwen3", "Qwen3ForCausalLM", core::Arch::kQwen3},
    {"gemma3_text", "Gemma3ForCausalLM", core::Arch::kGemma3},
    {"gemma3", "Gemma3ForConditionalGeneration", core::Arch::kGemma3}};

// Of training, generation and bookkeeping, though some names sound like mathematics.
constexpr std::string_view kHarmless[] = {"initializer_range",
                                          "use_cache",
                                          "pretraining_tp",
                                          "torch_dtype",
                                          "dtype",
                                          "transformers_version",
                                          "output_attentions",
                                          "output_hidden_states",
                                          "return_dict",
                                          "use_return_dict",
                                          "tokenizer_class",
                                          "id2label",
                                          "label2id",
                                          "num_labels",
                                          "attn_implementation",
                                          "chunk_size_feed_forward",
                                          "gradient_checkpointing",
                                          "is_decoder",
                                          "is_llama_config",
                                          "transformers.js_config",
                                          "temperature",
                                          "top_k",
                                          "top_p",
                                          "max_length",
                                          "min_length",
                                          "length_penalty",
                                          "repetition_penalty",
                                          "no_repeat_ngram_size",
                                          "do_sample",
                                          "num_beams",
                                          "num_beam_groups",
                                          "diversity_penalty",
                                          "early_stopping",
                                          "typical_p",
                                          "num_return_sequences",
                                          "problem_type",
                                          "finetuning_task",
                                          "task_specific_params",
                                          "prefix",
                                          "unsloth_fixed",
                                          "unsloth_version",
                                          "model_max_length"};

// Parts of names that speak of what is computed.
constexpr std::string_view kMathematics[] = {
    "attention", "attn",  "rope",   "rotary", "scal",  "multipl", "soft",   "cap",     "norm",
    "bias",      "activ", "act_fn", "head",   "layer", "expert",  "moe",    "router",  "window",
    "spars",     "mask",  "posit",  "embed",  "resid", "logit",   "quant",  "lora",    "mlp",
    "hidden",    "dim",   "alibi",  "qk",     "kv",    "query",   "clip",   "clamp",   "conv",
    "ssm",       "mamba", "parall", "chunk",  "gate",  "factor",  "temper", "encoder", "cross"};

bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

bool is_harmless(std::string_view key) {
  return key.starts_with('_') || key.ends_with("token_id") || key.ends_with("token_ids") ||
         contains(key, "dropout") || contains(key, "flash") ||
         std::find(std::begin(kHarmless), std::end(kHarmless), key) != std::end(kHarmless);
}

bool is_off(std::string_view key, const JsonValue& value) {
  double number = 0;
  std::string_view string;
  if (value.is_bool()) return !value.get_bool().value_unsafe();
  if (value.get(number) == simdjson::SUCCESS) {
    return number == 0 || (number == 1 && (contains(key, "scal") || contains(key, "multipl")));
  }
  if (value.get(string) == simdjson::SUCCESS) return string.empty();
  if (value.is_array()) return value.get_array().value_unsafe().size() == 0;
  if (value.is_object()) return value.get_object().value_unsafe().size() == 0;
  return true;
}

Result<void> refuse_unknown_keys(const JsonObject& root) {
  for (const auto& [key, value] : root.unread()) {
    if (is_harmless(key) || is_off(key, value)) continue;
    for (std::string_view part : kMathematics) {
      if (contains(key, part)) {
        return root.wrong(key, "no such key (it may change what the model computes)",
                          Code::kUnsupported);
      }
    }
    LOG_WARN("{}: key '{}' is not known and was ignored", root.file(), root.name_of(key));
  }
  return {};
}

Result<const ModelType*> read_model_type(const JsonObject& root) {
  ASSIGN_OR_RETURN(auto name, root.string("model_type"));
  const auto* type = std::find_if(std::begin(kModelTypes), std::end(kModelTypes),
                                  [&](const ModelType& t) { return name && t.name == *name; });
  if (type == std::end(kModelTypes)) {
    return root.wrong("model_type",
                      "'llama', 'mistral', 'qwen2', 'qwen3', 'gemma3' or 'gemma3_text'",
                      name ? Code::kUnsupported : Code::kInvalidArgument);
  }
  std::optional<JsonValue> classes = root.find("architectures");
  simdjson::dom::array array;
  if (classes && classes->get(array) != simdjson::SUCCESS) {
    return root.wrong("architectures", "an array");
  }
  if (!classes) return type;
  for (JsonValue element : array) {
    std::string_view found;
    if (element.get(found) != simdjson::SUCCESS || found != type->class_name) {
      return base::error(Code::kUnsupported, "{}: key 'architectures': expected '{}', found {}",
                         root.file(), type->class_name, describe_json(element));
    }
  }
  return type;
}

Result<bool> flag_or(const JsonObject& root, std::string_view key, bool absent) {
  ASSIGN_OR_RETURN(auto value, root.boolean(key));
  return value.value_or(absent);
}

// Where a key is absent, the default of the model's own class.
Result<void> read_sizes(const JsonObject& root, const ModelType& type, core::ModelConfig& c) {
  ASSIGN_OR_RETURN(c.num_layers, read_hf_size(root, "num_hidden_layers", -1));
  ASSIGN_OR_RETURN(c.model_dim, read_hf_size(root, "hidden_size", -1));
  ASSIGN_OR_RETURN(c.ffn_dim, read_hf_size(root, "intermediate_size", -1));
  ASSIGN_OR_RETURN(c.vocab_size, read_hf_size(root, "vocab_size", -1));
  ASSIGN_OR_RETURN(c.context_max, read_hf_size(root, "max_position_embeddings", -1));
  ASSIGN_OR_RETURN(c.num_q_heads, read_hf_size(root, "num_attention_heads", -1));
  // Null means as many as attention heads for all; absent means that for llama and a number of its
  // own for the others.
  const bool absent = !root.fields().contains("num_key_value_heads");
  if (absent && type.name != "llama") return root.wrong("num_key_value_heads", "an integer");
  ASSIGN_OR_RETURN(c.num_kv_heads, read_hf_size(root, "num_key_value_heads", c.num_q_heads));
  const int32_t even_share = c.num_q_heads > 0 ? c.model_dim / c.num_q_heads : 0;
  ASSIGN_OR_RETURN(c.head_dim, read_hf_size(root, "head_dim",
                                            type.arch == core::Arch::kQwen3 ? 128 : even_share));
  ASSIGN_OR_RETURN(auto eps, root.number("rms_norm_eps"));
  c.norm_eps = static_cast<float>(eps.value_or(1e-6));
  return {};
}

Result<void> read_flags(const JsonObject& root, const ModelType& type, core::ModelConfig& c) {
  ASSIGN_OR_RETURN(c.tied_embeddings, flag_or(root, "tie_word_embeddings", false));
  ASSIGN_OR_RETURN(bool attention_bias, flag_or(root, "attention_bias", false));
  switch (type.arch) {
    case core::Arch::kQwen2:
      c.qkv_bias = true;
      break;  // always, and the output never
    case core::Arch::kLlama:
    case core::Arch::kQwen3:
    case core::Arch::kGemma3:
      c.qkv_bias = c.attention_out_bias = attention_bias;
      break;
  }
  if (type.name == "mistral" && attention_bias) {
    return root.wrong("attention_bias", "none, or false, for mistral", Code::kUnsupported);
  }
  if (type.name == "llama") {
    ASSIGN_OR_RETURN(c.mlp_bias, flag_or(root, "mlp_bias", false));
  }
  c.qk_norm = type.arch == core::Arch::kQwen3;
  ASSIGN_OR_RETURN(auto activation, root.string("hidden_act"));
  if (activation && *activation != "silu" && *activation != "swish") {
    return root.wrong("hidden_act", "'silu' (others are not supported)", Code::kUnsupported);
  }
  return {};
}

// A window that no position reaches is none. Qwen slides only when told to, and only from layer
// max_window_layers on.
Result<void> refuse_sliding_window(const JsonObject& root, const ModelType& type,
                                   const core::ModelConfig& c) {
  if (type.name == "llama") return {};  // has no such key: the rule for unknown ones applies
  const bool qwen = type.arch != core::Arch::kLlama;
  const bool absent = !root.fields().contains("sliding_window");
  ASSIGN_OR_RETURN(int32_t window, read_hf_size(root, "sliding_window", absent ? 4096 : 0));
  ASSIGN_OR_RETURN(bool slides, flag_or(root, "use_sliding_window", !qwen));
  ASSIGN_OR_RETURN(int32_t first_layer, read_hf_size(root, "max_window_layers", qwen ? 28 : 0));
  const bool active = slides && window != 0 && window < c.context_max && first_layer < c.num_layers;
  if (!active) return {};
  return base::error(Code::kUnsupported,
                     "{}: key 'sliding_window': sliding-window attention is not supported "
                     "(expected null, or at least the context of {}), found {}{}",
                     root.file(), c.context_max, window, absent ? " (the default)" : "");
}

Result<void> refuse_options(const JsonObject& root) {
  ASSIGN_OR_RETURN(const auto quantization, root.object("quantization_config"));
  if (quantization != nullptr) {
    ASSIGN_OR_RETURN(auto method, quantization->string("quant_method"));
    return base::error(Code::kUnsupported,
                       "{}: key 'quantization_config': expected none (BF16, F16 or F32 weights), "
                       "found method '{}'",
                       root.file(), printable(method.value_or("unknown")));
  }
  ASSIGN_OR_RETURN(const auto code, root.object("auto_map"));
  if (code != nullptr && code->fields().contains("AutoModelForCausalLM")) {
    return root.wrong("auto_map", "no model code of its own", Code::kUnsupported);
  }
  return {};
}

Result<void> refuse_layer_types(const JsonObject& root) {
  std::optional<JsonValue> layer_types = root.find("layer_types");
  if (!layer_types) return {};
  simdjson::dom::array array;
  if (layer_types->get(array) != simdjson::SUCCESS) return root.wrong("layer_types", "an array");
  for (JsonValue element : array) {
    std::string_view kind;
    if (element.get(kind) != simdjson::SUCCESS || kind != "full_attention") {
      return base::error(Code::kUnsupported,
                         "{}: key 'layer_types': expected 'full_attention' alone, found {}",
                         root.file(), describe_json(element));
    }
  }
  return {};
}

// What all but gemma3 share.
Result<void> read_body(const JsonObject& root, const ModelType& type, core::ModelConfig& c) {
  RETURN_IF_ERROR(read_sizes(root, type, c));
  RETURN_IF_ERROR(read_flags(root, type, c));
  RETURN_IF_ERROR(read_hf_rope(root, c));
  RETURN_IF_ERROR(refuse_sliding_window(root, type, c));
  return refuse_layer_types(root);
}

}  // namespace

Result<int32_t> read_hf_size(const JsonObject& root, std::string_view key, int32_t absent) {
  ASSIGN_OR_RETURN(auto value, root.integer(key));
  if (value && (*value < 0 || *value > INT32_MAX)) return root.wrong(key, "0 to 2147483647");
  if (!value && absent < 0) return root.wrong(key, "an integer");
  return value ? static_cast<int32_t>(*value) : absent;
}

Result<std::vector<core::TokenId>> read_hf_token_ids(const JsonObject& root, std::string_view key) {
  std::vector<core::TokenId> ids;
  std::optional<JsonValue> value = root.find(key);
  if (!value) return ids;
  auto add = [&](const JsonValue& element) {
    int64_t id = 0;
    if (element.get(id) != simdjson::SUCCESS || id > INT32_MAX) return false;
    const auto token = static_cast<core::TokenId>(id);
    if (id >= 0 && std::find(ids.begin(), ids.end(), token) == ids.end()) ids.push_back(token);
    return true;
  };
  simdjson::dom::array array;
  if (value->get(array) != simdjson::SUCCESS) {
    if (!add(*value)) return root.wrong(key, "a token id or an array of them");
    return ids;
  }
  for (JsonValue element : array) {
    if (!add(element)) return root.wrong(key, "a token id or an array of them");
  }
  return ids;
}

namespace {

// Keeps what is there where these keys are absent.
Result<void> read_token_ids(const JsonObject& root, core::ModelConfig& config) {
  ASSIGN_OR_RETURN(const auto bos, read_hf_token_ids(root, "bos_token_id"));
  if (!bos.empty()) config.bos = bos[0];
  ASSIGN_OR_RETURN(auto eos, read_hf_token_ids(root, "eos_token_id"));
  if (!eos.empty()) config.eos = std::move(eos);
  return {};
}

}  // namespace

Result<core::ModelConfig> read_hf_config(const std::string& file, std::string_view json) {
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(file, json));
  ASSIGN_OR_RETURN(const JsonObject root, document.root());
  ASSIGN_OR_RETURN(const ModelType* type, read_model_type(root));
  core::ModelConfig config;
  config.arch = type->arch;
  RETURN_IF_ERROR(refuse_options(root));
  // A model with vision describes its text model in an object of its own.
  std::unique_ptr<JsonObject> nested;
  if (type->name == "gemma3") {
    ASSIGN_OR_RETURN(nested, root.object("text_config"));
    if (nested == nullptr) return root.wrong("text_config", "an object");
    (void)nested->find("model_type");
    (void)nested->find("architectures");
    RETURN_IF_ERROR(refuse_options(*nested));
  }
  const JsonObject& body = nested != nullptr ? *nested : root;
  if (type->arch == core::Arch::kGemma3) {
    RETURN_IF_ERROR(read_hf_gemma3(body, config));
  } else {
    RETURN_IF_ERROR(read_body(body, *type, config));
  }
  RETURN_IF_ERROR(read_token_ids(body, config));
  if (nested != nullptr) RETURN_IF_ERROR(read_token_ids(root, config));
  RETURN_IF_ERROR(refuse_unknown_keys(body));
  RETURN_IF_ERROR(check_config(file, config));
  return config;
}

}  // namespace load
