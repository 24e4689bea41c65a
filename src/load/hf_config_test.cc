// config.json: the defaults of each model type, RoPE in old and new spelling, and every option that
// would change the mathematics refused by name, known to this reader or not.
#include "load/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "load/safetensors_test_writer.h"

namespace load {
namespace {

using base::Code;
using core::RopeScaling;
using testing::ElementsAre;
using testing::HasSubstr;

core::ModelConfig config_of(const std::string& json) {
  auto config = read_hf_config("config.json", json);
  EXPECT_TRUE(config.ok()) << config.error().message;
  return config.ok() ? *config : core::ModelConfig();
}

void expect_refused(const std::string& json, const std::vector<std::string>& parts,
                    Code code = Code::kUnsupported) {
  auto config = read_hf_config("config.json", json);
  ASSERT_FALSE(config.ok()) << json;
  EXPECT_EQ(config.error().code, code) << config.error().message;
  EXPECT_THAT(config.error().message, HasSubstr("config.json: "));
  for (const std::string& part : parts) EXPECT_THAT(config.error().message, HasSubstr(part));
}

TEST(HfConfig, LlamaSizes) {
  const core::ModelConfig c = config_of(config_json(
      "llama",
      R"(,"architectures":["LlamaForCausalLM"],"rope_theta":5e5,"tie_word_embeddings":true,"bos_token_id":1,"eos_token_id":[2,3])"));
  EXPECT_EQ(c.arch, core::Arch::kLlama);
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_EQ(c.model_dim, 32);
  EXPECT_EQ(c.ffn_dim, 48);
  EXPECT_EQ(c.num_q_heads, 2);
  EXPECT_EQ(c.num_kv_heads, 1);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.vocab_size, 8);
  EXPECT_EQ(c.context_max, 4096);
  EXPECT_EQ(c.norm_eps, 1e-5f);
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ(c.bos, 1);
  EXPECT_THAT(c.eos, ElementsAre(2, 3));
}

TEST(HfConfig, DefaultsDependOnTheType) {
  const char* llama =
      R"({"model_type":"llama","hidden_size":64,"intermediate_size":48,"num_hidden_layers":2,
    "num_attention_heads":4,"vocab_size":8,"max_position_embeddings":2048})";
  const core::ModelConfig c = config_of(llama);
  EXPECT_EQ(c.num_kv_heads, 4);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_FALSE(c.tied_embeddings || c.qkv_bias || c.attention_out_bias || c.mlp_bias || c.qk_norm);
  EXPECT_EQ(c.bos, -1);

  const std::string qwen3 =
      R"({"model_type":"qwen3","hidden_size":64,"intermediate_size":48,"num_hidden_layers":2,
    "num_attention_heads":4,"num_key_value_heads":2,"vocab_size":8,"max_position_embeddings":2048})";
  EXPECT_EQ(config_of(qwen3).head_dim, 128);
  EXPECT_TRUE(config_of(qwen3).qk_norm);
  EXPECT_FALSE(config_of(qwen3).qkv_bias);
  EXPECT_TRUE(config_of(config_json("qwen2")).qkv_bias);
  EXPECT_FALSE(config_of(config_json("qwen2")).attention_out_bias);
  std::string no_heads = config_json("qwen2");
  no_heads.replace(no_heads.find("num_key_value_heads"), 19, "num_key_value_hats_");
  expect_refused(no_heads, {"'num_key_value_heads': expected an integer, found none"},
                 Code::kInvalidArgument);
}

TEST(HfConfig, Biases) {
  const core::ModelConfig llama =
      config_of(config_json("llama", R"(,"attention_bias":true,"mlp_bias":true)"));
  EXPECT_TRUE(llama.qkv_bias && llama.attention_out_bias && llama.mlp_bias);
  const core::ModelConfig qwen3 = config_of(config_json("qwen3", R"(,"attention_bias":true)"));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.attention_out_bias);
  expect_refused(config_json("qwen3", R"(,"mlp_bias":true)"), {"key 'mlp_bias'"});
  expect_refused(config_json("mistral", R"(,"sliding_window":null,"attention_bias":true)"),
                 {"key 'attention_bias'"});
}

TEST(HfConfig, RopeInOldAndNewSpelling) {
  for (const char* kind : {"type", "rope_type"}) {
    const core::ModelConfig c = config_of(config_json(
        "llama", fmt::format(R"(,"rope_scaling":{{"{}":"linear","factor":4.0}})", kind)));
    EXPECT_EQ(c.rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(c.rope.factor, 4.0);
  }
  const core::ModelConfig v5 = config_of(
      config_json("llama", R"(,"rope_parameters":{"rope_type":"default","rope_theta":250000.0})"));
  EXPECT_EQ(v5.rope.scaling, RopeScaling::kNone);
  EXPECT_EQ(v5.rope.theta, 250000.0);
  EXPECT_EQ(config_of(config_json("llama", R"(,"rope_scaling":null)")).rope.scaling,
            RopeScaling::kNone);

  const core::RopeConfig llama3 =
      config_of(config_json("llama", R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0,
      "low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":512})"))
          .rope;
  EXPECT_EQ(llama3.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(llama3.factor, 8.0);
  EXPECT_EQ(llama3.original_context, 512);
}

TEST(HfConfig, Yarn) {
  const core::ModelConfig plain = config_of(config_json(
      "qwen2",
      R"(,"rope_scaling":{"type":"yarn","factor":4.0,"original_max_position_embeddings":2048})"));
  EXPECT_EQ(plain.rope.scaling, RopeScaling::kYarn);
  EXPECT_EQ(plain.rope.original_context, 2048);
  EXPECT_EQ(plain.rope.attention_factor, 0.0);
  EXPECT_TRUE(plain.rope.truncate);
  EXPECT_EQ(plain.context_max, 8192);
  EXPECT_EQ(config_of(config_json("qwen2", R"(,"rope_scaling":{"type":"yarn","factor":2.0})"))
                .rope.original_context,
            4096);

  const core::RopeConfig full =
      config_of(
          config_json("llama", R"(,"rope_scaling":{"rope_type":"yarn","factor":40.0,"beta_fast":16,
      "beta_slow":2,"truncate":false,"mscale":1.0,"mscale_all_dim":0.8,"original_max_position_embeddings":4096})"))
          .rope;
  EXPECT_EQ(full.beta_fast, 16.0);
  EXPECT_EQ(full.beta_slow, 2.0);
  EXPECT_FALSE(full.truncate);
  EXPECT_DOUBLE_EQ(full.attention_factor, (0.1 * std::log(40.0) + 1) / (0.08 * std::log(40.0) + 1));
  EXPECT_EQ(config_of(config_json(
                          "llama",
                          R"(,"rope_scaling":{"type":"yarn","factor":4.0,"attention_factor":1.5})"))
                .rope.attention_factor,
            1.5);
}

TEST(HfConfig, RefusesOtherRopes) {
  auto rope = [](const std::string& fields) {
    return config_json("llama", R"(,"rope_scaling":{)" + fields + "}");
  };
  expect_refused(rope(R"("type":"dynamic","factor":2.0)"),
                 {"key 'rope_scaling.type'", "found 'dynamic'"});
  expect_refused(rope(R"("rope_type":"longrope","short_factor":[1],"long_factor":[1])"),
                 {"key 'rope_scaling.rope_type'", "found 'longrope'"});
  expect_refused(rope(R"("type":"linear","factor":2.0,"ramp":1)"), {"key 'rope_scaling.ramp'"});
  expect_refused(rope(R"("type":"linear")"),
                 {"key 'rope_scaling.factor': expected a number, found none"},
                 Code::kInvalidArgument);
  expect_refused(rope(R"("factor":2.0)"), {"key 'rope_scaling.factor'"}, Code::kInvalidArgument);
  expect_refused(rope(R"("type":"linear","factor":-1)"), {"rope factor: expected a number above 0"},
                 Code::kInvalidArgument);
  expect_refused(rope(R"("type":"linear","rope_type":"yarn","factor":2)"),
                 {"key 'rope_scaling.type': expected the same as rope_type"},
                 Code::kInvalidArgument);
  expect_refused(
      rope(R"("rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4)"),
      {"'rope_scaling.original_max_position_embeddings': expected a number of tokens, found none"},
      Code::kInvalidArgument);
  expect_refused(
      rope(
          R"("rope_type":"llama3","factor":8,"low_freq_factor":4,"high_freq_factor":4,"original_max_position_embeddings":512)"),
      {"rope high_freq_factor: expected more than low_freq_factor 4, found 4"},
      Code::kInvalidArgument);
  expect_refused(config_json("llama", R"(,"partial_rotary_factor":0.5)"),
                 {"key 'partial_rotary_factor': expected 1", "found 0.5"});
  EXPECT_EQ(config_of(config_json("llama", R"(,"partial_rotary_factor":1.0)")).head_dim, 16);
}

TEST(HfConfig, SlidingWindows) {
  EXPECT_EQ(config_of(config_json("mistral", R"(,"sliding_window":null)")).arch,
            core::Arch::kLlama);
  config_of(config_json("mistral", R"(,"sliding_window":4096)"));  // never slides
  expect_refused(config_json("mistral", R"(,"sliding_window":1024)"),
                 {"key 'sliding_window': sliding-window attention is not supported", "found 1024"});
  config_of(config_json("qwen2", R"(,"sliding_window":1024,"use_sliding_window":false)"));
  config_of(config_json(
      "qwen2", R"(,"sliding_window":1024,"use_sliding_window":true,"max_window_layers":2)"));
  expect_refused(
      config_json("qwen2",
                  R"(,"sliding_window":1024,"use_sliding_window":true,"max_window_layers":1)"),
      {"key 'sliding_window'"});
  expect_refused(config_json("llama", R"(,"sliding_window":1024)"), {"key 'sliding_window'"});
  config_of(config_json("qwen3", R"(,"layer_types":["full_attention","full_attention"])"));
  expect_refused(config_json("qwen3", R"(,"layer_types":["full_attention","sliding_attention"])"),
                 {"key 'layer_types'", "found 'sliding_attention'"});
}

TEST(HfConfig, RefusesWhatChangesTheMathematics) {
  expect_refused(config_json("gemma2"), {"key 'model_type': expected 'llama', 'mistral', 'qwen2', "
                                         "'qwen3', 'gemma3' or 'gemma3_text', found 'gemma2'"});
  expect_refused(config_json("llama", R"(,"architectures":["LlamaForSequenceClassification"])"),
                 {"'architectures': expected 'LlamaForCausalLM'"});
  expect_refused(config_json("llama", R"(,"quantization_config":{"quant_method":"awq"})"),
                 {"key 'quantization_config'", "found method 'awq'"});
  expect_refused(config_json("llama", R"(,"auto_map":{"AutoModelForCausalLM":"modeling_x.X"})"),
                 {"key 'auto_map'"});
  std::string gelu = config_json("llama");
  gelu.replace(gelu.find("silu"), 4, "gelu");
  expect_refused(gelu,
                 {"key 'hidden_act': expected 'silu' (others are not supported), found 'gelu'"});
  // Not known at all, but with a name that speaks of it and a value that does something.
  for (const char* key : {"attn_logit_softcapping", "embedding_multiplier", "residual_scale",
                          "num_experts", "no_rope_layers", "use_qk_norm", "layer_norm_style"}) {
    expect_refused(config_json("llama", fmt::format(R"(,"{}":2)", key)),
                   {fmt::format("key '{}': expected no such key", key)});
    for (const char* off : {"null", "false", "0", "0.0", "\"\"", "[]", "{}"}) {
      config_of(config_json("llama", fmt::format(R"(,"{}":{})", key, off)));
    }
  }
  config_of(config_json("llama", R"(,"residual_multiplier":1.0)"));
  expect_refused(config_json("llama", R"(,"num_experts":1)"), {"num_experts"});
}

const char* const kGemma3 =
    R"({"model_type":"gemma3_text","hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,
    "num_attention_heads":2,"num_key_value_heads":1,"head_dim":16,"vocab_size":8,"sliding_window":24)";

TEST(HfConfig, Gemma3InOldAndNewSpelling) {
  const core::ModelConfig old = config_of(
      std::string(kGemma3) +
      R"(,"rope_theta":2e6,"rope_local_base_freq":2e4,"rope_scaling":{"rope_type":"linear","factor":8.0},
      "sliding_window_pattern":2,"query_pre_attn_scalar":64,"attn_logit_softcapping":null})");
  const core::ModelConfig now = config_of(
      std::string(kGemma3) +
      R"(,"rope_parameters":{"full_attention":{"rope_type":"linear","factor":8.0,"rope_theta":2e6},
      "sliding_attention":{"rope_type":"default","rope_theta":2e4}},"_sliding_window_pattern":6,
      "layer_types":["sliding_attention","full_attention"],"query_pre_attn_scalar":64,
      "use_bidirectional_attention":false,"hidden_activation":"gelu_pytorch_tanh"})");
  for (const core::ModelConfig& c : {old, now}) {
    EXPECT_EQ(c.arch, core::Arch::kGemma3);
    EXPECT_TRUE(c.qk_norm && c.post_norms && c.gelu_gate && c.scaled_embeddings);
    EXPECT_TRUE(c.tied_embeddings);
    EXPECT_EQ(c.context_max, 131072);
    EXPECT_EQ(c.attention_scale, 0.125f);
    EXPECT_EQ(c.rope.theta, 2e6);
    EXPECT_EQ(c.rope.scaling, RopeScaling::kLinear);
    EXPECT_EQ(c.rope.factor, 8.0);
    EXPECT_EQ(c.local_rope.theta, 2e4);
    EXPECT_EQ(c.local_rope.scaling, RopeScaling::kNone);
    EXPECT_THAT(c.windows.kinds, ElementsAre(core::HeadKind{0, 24}, core::HeadKind{}));
  }
}

TEST(HfConfig, Gemma3InsideAModelWithVision) {
  const std::string text(kGemma3);
  const core::ModelConfig c =
      config_of(R"({"model_type":"gemma3","architectures":["Gemma3ForConditionalGeneration"],)"
                R"("eos_token_id":[1,6],"vision_config":{"hidden_size":1152},"text_config":)" +
                text + "}}");
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_THAT(c.eos, ElementsAre(1, 6));
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_EQ(c.local_rope.theta, 1e4);
  expect_refused(R"({"model_type":"gemma3"})", {"key 'text_config': expected an object"},
                 Code::kInvalidArgument);
}

TEST(HfConfig, Gemma3RefusesWhatChangesTheMathematics) {
  auto with = [](const char* more) { return std::string(kGemma3) + more + "}"; };
  expect_refused(with(R"(,"use_bidirectional_attention":true)"), {"use_bidirectional_attention"});
  expect_refused(with(R"(,"final_logit_softcapping":30.0)"), {"final_logit_softcapping"});
  expect_refused(with(R"(,"hidden_activation":"gelu")"), {"hidden_activation"});
  expect_refused(with(R"(,"layer_types":["full_attention","chunked_attention"])"),
                 {"layer_types", "chunked_attention"});
  expect_refused(with(R"(,"layer_types":["full_attention"])"), {"one element a layer"},
                 Code::kInvalidArgument);
  expect_refused(with(R"(,"query_pre_attn_scalar":0)"), {"query_pre_attn_scalar"},
                 Code::kInvalidArgument);
  expect_refused(with(R"(,"rope_parameters":{"rope_type":"default"})"), {"rope_parameters"},
                 Code::kInvalidArgument);
  expect_refused(with(R"(,"sliding_window_pattern":0)"), {"sliding_window_pattern"},
                 Code::kInvalidArgument);
}

TEST(HfConfig, AcceptsBookkeeping) {
  config_of(config_json(
      "llama",
      R"(,"_name_or_path":"x","_attn_implementation_autoset":true,"attention_dropout":0.1,"pad_token_id":0,
      "initializer_range":0.02,"pretraining_tp":1,"torch_dtype":"bfloat16","transformers_version":"4.48.0","rope_interleaved":false,
      "is_llama_config":true,"transformers.js_config":{"kv_cache_dtype":"x"},"use_flash_attn":true,"a_key_of_tomorrow":7)"));
}

TEST(HfConfig, RefusesDamage) {
  expect_refused("{", {"expected JSON"}, Code::kInvalidArgument);
  expect_refused("", {"expected JSON"}, Code::kInvalidArgument);
  expect_refused("{}", {"key 'model_type'", "found none"}, Code::kInvalidArgument);
  expect_refused(config_json("llama", R"(,"hidden_size":32)"), {"key 'hidden_size': given twice"},
                 Code::kInvalidArgument);
  expect_refused(config_json("llama", R"(,"rope_theta":"big")"),
                 {"key 'rope_theta': expected a number, found 'big'"}, Code::kInvalidArgument);
  expect_refused(config_json("llama", R"(,"tie_word_embeddings":1)"),
                 {"key 'tie_word_embeddings': expected true or false, found 1"},
                 Code::kInvalidArgument);
  expect_refused(config_json("llama", R"(,"eos_token_id":"x")"), {"key 'eos_token_id'"},
                 Code::kInvalidArgument);
  expect_refused(config_json("llama", R"(,"eos_token_id":8)"),
                 {"eos token: expected an id below 8, found 8"}, Code::kInvalidArgument);
  expect_refused(config_json("llama", R"(,"rope_theta":1e999)"), {"config.json"},
                 Code::kInvalidArgument);
  std::string layers = config_json("llama");
  layers.replace(layers.find("num_hidden_layers\":2"), 20, "num_hidden_layers\":1000000000");
  expect_refused(layers, {"number of layers: expected 1 to 4096, found 1000000000"},
                 Code::kInvalidArgument);
}

}  // namespace
}  // namespace load
