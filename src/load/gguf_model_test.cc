// A tiny model of each architecture opens with the right configuration, tensors and tokenizer;
// every option that would change the mathematics is refused by name; and a valid file cut anywhere
// or with any byte changed never does worse than an error.
#include "load/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "load/gguf_test_writer.h"
#include "load/model_files.h"

namespace load {
namespace {

using base::Code;
using core::TokenKind;
using testing::ElementsAre;
using testing::HasSubstr;

base::Result<std::unique_ptr<ModelFiles>> read(const std::string& bytes) {
  return read_gguf_model("f.gguf", bytes_of(bytes));
}

void expect_refused(const GgufTestFile& file, Code code, const std::vector<std::string>& parts) {
  const std::string bytes = file.build();
  auto model = read(bytes);
  ASSERT_FALSE(model.ok()) << parts[0];
  EXPECT_EQ(model.error().code, code) << model.error().message;
  EXPECT_THAT(model.error().message, HasSubstr("f.gguf: "));
  for (const std::string& part : parts) EXPECT_THAT(model.error().message, HasSubstr(part));
}

core::ModelConfig config_of(const GgufTestFile& file) {
  const std::string bytes = file.build();
  auto model = read(bytes);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? (*model)->config : core::ModelConfig();
}

TEST(GgufModel, LlamaIsReadWhole) {
  const std::string bytes = tiny_gguf().build();
  auto model = read(bytes);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const core::ModelConfig& c = (*model)->config;
  EXPECT_EQ(c.arch, core::Arch::kLlama);
  EXPECT_EQ(c.name, "tiny");
  EXPECT_EQ(c.num_layers, 2);
  EXPECT_EQ(c.model_dim, 32);
  EXPECT_EQ(c.ffn_dim, 48);
  EXPECT_EQ(c.num_q_heads, 2);
  EXPECT_EQ(c.num_kv_heads, 1);
  EXPECT_EQ(c.head_dim, 16);
  EXPECT_EQ(c.vocab_size, 8);
  EXPECT_EQ(c.context_max, 4096);
  EXPECT_EQ(c.norm_eps, 1e-6f);
  EXPECT_EQ(c.rope.theta, 50000.0);
  EXPECT_EQ(c.rope.scaling, core::RopeScaling::kNone);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_FALSE(c.qkv_bias || c.qk_norm || c.attention_out_bias || c.mlp_bias);
  EXPECT_EQ(c.bos, 1);
  EXPECT_THAT(c.eos, ElementsAre(2, 0));  // <|im_end|>, and <|endoftext|> ends a turn too
  EXPECT_EQ((*model)->format, "GGUF v3");
  EXPECT_EQ((*model)->tensors.size(), 2 + 2 * 9u);
  EXPECT_THAT((*model)->tensors.at("blk.1.ffn_down").shape, ElementsAre(32, 48));
  EXPECT_EQ((*model)->tensors.at("blk.1.attn_q").rope_interleaved_head_dim, 16);
  EXPECT_EQ((*model)->tensors.at("blk.1.attn_k").rope_interleaved_head_dim, 16);
  EXPECT_EQ((*model)->tensors.at("blk.1.attn_v").rope_interleaved_head_dim, 0);
}

TEST(GgufModel, LlamaBiasesAreReorderedWithTheirRows) {
  GgufTestFile f = tiny_gguf();
  for (const char* blk : {"blk.0.", "blk.1."}) {
    f.add_tensor(std::string(blk) + "attn_q.bias", {32});
    f.add_tensor(std::string(blk) + "attn_k.bias", {16});
    f.add_tensor(std::string(blk) + "attn_v.bias", {16});
  }
  const std::string bytes = f.build();
  auto model = read(bytes);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_TRUE((*model)->config.qkv_bias);
  EXPECT_EQ((*model)->tensors.at("blk.0.attn_q_bias").rope_interleaved_head_dim, 16);
  EXPECT_EQ((*model)->tensors.at("blk.0.attn_k_bias").rope_interleaved_head_dim, 16);
  EXPECT_EQ((*model)->tensors.at("blk.0.attn_v_bias").rope_interleaved_head_dim, 0);
}

TEST(GgufModel, QwenRowsStandInOrder) {
  const std::string two = tiny_gguf("qwen2").build(), three = tiny_gguf("qwen3").build();
  auto qwen2 = read(two), qwen3 = read(three);
  ASSERT_TRUE(qwen2.ok()) << qwen2.error().message;
  ASSERT_TRUE(qwen3.ok()) << qwen3.error().message;
  EXPECT_TRUE((*qwen2)->config.qkv_bias);
  EXPECT_TRUE((*qwen3)->config.qk_norm);
  EXPECT_EQ((*qwen2)->tensors.at("blk.0.attn_q").rope_interleaved_head_dim, 0);
  EXPECT_THAT((*qwen2)->tensors.at("blk.0.attn_k_bias").shape, ElementsAre(16));
  EXPECT_THAT((*qwen3)->tensors.at("blk.0.attn_k_norm").shape, ElementsAre(16));
}

TEST(GgufModel, Gemma3) {
  GgufTestFile f = tiny_gguf("gemma3");
  const core::ModelConfig plain = config_of(f);
  EXPECT_TRUE(plain.qk_norm && plain.post_norms && plain.gelu_gate && plain.scaled_embeddings);
  EXPECT_FALSE(plain.windows.any_streaming());
  EXPECT_EQ(plain.attention_scale, 0.0f);
  f.set("gemma3.attention.sliding_window", 512u);
  f.set("gemma3.rope.freq_base_swa", 20000.0f);
  const std::string bytes = f.build();
  const auto model = read(bytes).value();
  EXPECT_FALSE(model->tensors.at("blk.1.attn_post_norm").stored_less_one);
  EXPECT_THAT(model->tensors.at("blk.1.ffn_post_norm").shape, ElementsAre(32));
  EXPECT_EQ(model->config.local_rope.theta, 20000.0);
  const core::HeadKind window{0, 512};
  EXPECT_THAT(model->config.windows.kinds, ElementsAre(window, window));  // the sixth sees all
  f.set("gemma3.attention.sliding_window_pattern", 2u);
  EXPECT_THAT(config_of(f).windows.kinds, ElementsAre(window, core::HeadKind{}));
  f.set_array<uint8_t>("gemma3.attention.sliding_window_pattern", GgufType::kBool, {0, 1});
  EXPECT_THAT(config_of(f).windows.kinds, ElementsAre(core::HeadKind{}, window));
  f.set_array<uint8_t>("gemma3.attention.sliding_window_pattern", GgufType::kBool, {0, 1, 1});
  expect_refused(f, Code::kInvalidArgument, {"expected a period or one flag", "found 3 flags"});
  f.set("gemma3.attention.sliding_window_pattern", 0u);
  expect_refused(f, Code::kInvalidArgument, {"sliding_window_pattern': expected 1 or more"});
}

TEST(GgufModel, HeadSizeMayDifferFromTheEvenShare) {
  GgufTestFile f = tiny_gguf("qwen3");
  f.set("qwen3.attention.key_length", 32u);
  f.set("qwen3.attention.value_length", 32u);
  for (const char* blk : {"blk.0.", "blk.1."}) {
    for (const auto& [name, dims] : std::vector<std::pair<std::string, std::vector<uint64_t>>>{
             {"attn_q.weight", {32, 64}},
             {"attn_k.weight", {32, 32}},
             {"attn_v.weight", {32, 32}},
             {"attn_output.weight", {64, 32}},
             {"attn_q_norm.weight", {32}},
             {"attn_k_norm.weight", {32}}}) {
      f.erase_tensor(blk + name);
      f.add_tensor(blk + name, dims);
    }
  }
  EXPECT_EQ(config_of(f).head_dim, 32);
  f.set("qwen3.attention.value_length", 16u);
  expect_refused(f, Code::kUnsupported,
                 {"'qwen3.attention.value_length': expected the head size 32", "found 16"});
}

TEST(GgufModel, RopeScalings) {
  GgufTestFile linear = tiny_gguf();
  linear.set("llama.rope.scaling.factor", 4.0f);
  EXPECT_EQ(config_of(linear).rope.scaling, core::RopeScaling::kLinear);  // no type means linear
  EXPECT_EQ(config_of(linear).rope.factor, 4.0);
  linear.set("llama.rope.scaling.type", "none");
  EXPECT_EQ(config_of(linear).rope.scaling, core::RopeScaling::kNone);
  EXPECT_EQ(config_of(linear).rope.factor, 1.0);

  GgufTestFile yarn = tiny_gguf("qwen2");
  yarn.set("qwen2.rope.scaling.type", "yarn");
  yarn.set("qwen2.rope.scaling.factor", 4.0f);
  yarn.set("qwen2.rope.scaling.original_context_length", 2048u);
  core::ModelConfig c = config_of(yarn);
  EXPECT_EQ(c.rope.scaling, core::RopeScaling::kYarn);
  EXPECT_EQ(c.rope.original_context, 2048);
  EXPECT_EQ(c.rope.attention_factor, 0.0);
  EXPECT_EQ(c.context_max, 8192);
  yarn.set("qwen2.rope.scaling.attn_factor", 0.5f);
  EXPECT_DOUBLE_EQ(config_of(yarn).rope.attention_factor, 0.5 * (1 + 0.1 * std::log(4.0)));
  yarn.set("qwen2.rope.scaling.yarn_ext_factor", 0.5f);
  expect_refused(yarn, Code::kUnsupported, {"yarn_ext_factor': expected 1"});

  GgufTestFile divisors = tiny_gguf();
  divisors.tensors.push_back({"rope_freqs.weight", 0, {8}, {}});
  for (float d : {1.f, 1.f, 1.f, 2.f, 4.f, 8.f, 8.f, 8.f}) {
    divisors.tensors.back().bytes.append(reinterpret_cast<const char*>(&d), 4);
  }
  EXPECT_THAT(config_of(divisors).rope.freq_divisors, ElementsAre(1, 1, 1, 2, 4, 8, 8, 8));
  GgufTestFile zero = tiny_gguf();
  zero.add_tensor("rope_freqs.weight", {8});
  expect_refused(zero, Code::kInvalidArgument,
                 {"rope frequency divisors: expected finite numbers above 0, found 0"});
  GgufTestFile wide = tiny_gguf();
  wide.add_tensor("rope_freqs.weight", {16});
  expect_refused(wide, Code::kInvalidArgument,
                 {"'rope_freqs.weight': expected F32 (8), found F32 (16)"});
}

TEST(GgufModel, RefusesWhatChangesTheMathematics) {
  auto with = [](auto value, const std::string& key) {
    GgufTestFile f = tiny_gguf();
    f.set(key, value);
    return f;
  };
  expect_refused(
      with("gemma2", "general.architecture"), Code::kUnsupported,
      {"'general.architecture': expected llama, qwen2, qwen3 or gemma3, found 'gemma2'"});
  expect_refused(with(8u, "llama.expert_count"), Code::kUnsupported,
                 {"'llama.expert_count': expected 0", "found 8"});
  expect_refused(with(1024u, "llama.attention.sliding_window"), Code::kUnsupported,
                 {"'llama.attention.sliding_window': sliding-window attention is not supported",
                  "found 1024"});
  EXPECT_EQ(config_of(with(4096u, "llama.attention.sliding_window")).num_layers,
            2);  // never slides
  expect_refused(with(false, "llama.attention.causal"), Code::kUnsupported,
                 {"'llama.attention.causal'"});
  expect_refused(with(8u, "llama.rope.dimension_count"), Code::kUnsupported,
                 {"'llama.rope.dimension_count': expected the head size 16", "found 8"});
  expect_refused(with("longrope", "llama.rope.scaling.type"), Code::kUnsupported, {"'longrope'"});
  expect_refused(
      with(30.0f, "llama.final_logit_softcapping"), Code::kUnsupported,
      {"key 'llama.final_logit_softcapping': expected 0 (others are not supported), found 30"});
  expect_refused(with("adapter", "general.type"), Code::kUnsupported,
                 {"'general.type': expected 'model'"});
  expect_refused(with(2u, "split.count"), Code::kUnsupported, {"'split.count'"});
  expect_refused(with(1u, "general.quantization_version"), Code::kUnsupported,
                 {"expected 2, found 1"});
  expect_refused(with("bert", "tokenizer.ggml.model"), Code::kUnsupported,
                 {"'tokenizer.ggml.model'", "'bert'"});
}

TEST(GgufModel, RefusesSizesOutOfRange) {
  auto with = [](uint32_t value, const std::string& key) {
    GgufTestFile f = tiny_gguf();
    f.set("llama." + key, value);
    return f;
  };
  expect_refused(with(0, "block_count"), Code::kInvalidArgument,
                 {"number of layers: expected 1 to 4096, found 0"});
  expect_refused(with(1u << 31, "block_count"), Code::kInvalidArgument,
                 {"'llama.block_count': expected 0 to 2147483647"});
  expect_refused(with(3, "attention.head_count"), Code::kUnsupported,
                 {"head size: expected a multiple of 16 up to 256, found 10"});
  expect_refused(with(0, "attention.head_count"), Code::kInvalidArgument,
                 {"number of attention heads"});
  expect_refused(with(3, "attention.head_count_kv"), Code::kInvalidArgument,
                 {"expected a divisor of 2 attention heads, found 3"});
  expect_refused(with(9, "vocab_size"), Code::kInvalidArgument,
                 {"'llama.vocab_size': expected 8", "found 9"});
  GgufTestFile f = tiny_gguf();
  f.erase("llama.block_count");
  expect_refused(f, Code::kInvalidArgument,
                 {"key 'llama.block_count': expected an integer, found none"});
}

TEST(GgufModel, NamesTheTensorThatIsWrong) {
  GgufTestFile missing = tiny_gguf();
  missing.erase_tensor("blk.1.ffn_up.weight");
  expect_refused(missing, Code::kInvalidArgument,
                 {"tensor 'blk.1.ffn_up.weight': expected shape (48, 32), found none"});
  GgufTestFile wrong = tiny_gguf();
  wrong.erase_tensor("blk.0.attn_k.weight");
  wrong.add_tensor("blk.0.attn_k.weight", {32, 32});
  expect_refused(wrong, Code::kInvalidArgument,
                 {"tensor 'blk.0.attn_k.weight': expected shape (16, 32), found (32, 32)"});
  GgufTestFile extra = tiny_gguf();
  extra.add_tensor("blk.0.attn_sinks.weight", {2});
  expect_refused(extra, Code::kUnsupported,
                 {"tensor 'blk.0.attn_sinks.weight'", "found one of shape (2)"});
  GgufTestFile layers = tiny_gguf();
  layers.set("llama.block_count", 1u);
  expect_refused(layers, Code::kUnsupported, {"tensor 'blk.1."});
}

TEST(GgufTokenizer, ByteLevelBpe) {
  const std::string bytes = tiny_gguf().build();
  auto model = read(bytes);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const core::TokenizerData& t = (*model)->tokenizer;
  EXPECT_TRUE((*model)->has_tokenizer);
  EXPECT_EQ(t.model, core::TokenizerData::Model::kBpe);
  EXPECT_EQ(t.pre, "smollm");
  EXPECT_EQ(t.tokens.size(), 8u);
  EXPECT_EQ(t.kinds[0], TokenKind::kControl);
  EXPECT_THAT(t.merges, ElementsAre(std::pair<std::string, std::string>("a", "b"),
                                    std::pair<std::string, std::string>("ab", "c")));
  ASSERT_EQ(t.added.size(), 3u);
  EXPECT_TRUE(t.added[1].special);
  EXPECT_EQ(t.added[1].text, "<|im_start|>");
  EXPECT_FALSE(t.add_bos || t.add_eos || t.ignore_merges || t.add_space_prefix);
  EXPECT_EQ(t.bos, 1);
  EXPECT_EQ(t.eos, 2);
  EXPECT_EQ(t.unk, -1);
  EXPECT_THAT(t.eog, ElementsAre(0));
}

TEST(GgufTokenizer, Llama3VocabulariesTakeWholePiecesAndStartWithBos) {
  GgufTestFile f = tiny_gguf();
  f.set("tokenizer.ggml.pre", "llama-v3");
  f.set("tokenizer.chat_template", "{{ bos_token }}");
  std::string bytes = f.build();
  auto model = read(bytes);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->tokenizer.pre, "llama-bpe");
  EXPECT_TRUE((*model)->tokenizer.ignore_merges);
  EXPECT_TRUE((*model)->tokenizer.add_bos);
  EXPECT_EQ((*model)->tokenizer.chat_template, "{{ bos_token }}");
  f.set("tokenizer.ggml.add_bos_token", false);
  bytes = f.build();
  EXPECT_FALSE(read(bytes).value()->tokenizer.add_bos);
}

TEST(GgufTokenizer, SentencePiece) {
  GgufTestFile f = tiny_gguf();
  f.set("tokenizer.ggml.model", "llama");
  f.set("tokenizer.ggml.tokens", {"<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "\u2581a", "b"});
  f.set_array<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {2, 3, 3, 6, 1, 1, 1, 4});
  f.set_array<float>("tokenizer.ggml.scores", GgufType::kFloat32, {0, 0, 0, 0, -1, -2, -3, 0});
  f.set("tokenizer.ggml.unknown_token_id", 0u);
  const std::string bytes = f.build();
  auto model = read(bytes);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const core::TokenizerData& t = (*model)->tokenizer;
  EXPECT_EQ(t.model, core::TokenizerData::Model::kSpm);
  EXPECT_TRUE(t.byte_fallback && t.add_space_prefix && t.add_bos);
  EXPECT_FALSE(t.add_eos);
  EXPECT_EQ(t.unk, 0);
  EXPECT_EQ(t.scores[6], -3.0f);
  EXPECT_EQ(t.kinds[3], TokenKind::kByte);
  ASSERT_EQ(t.added.size(), 4u);  // <unk>, <s>, </s> and the user-defined b
  EXPECT_FALSE(t.added[3].special);
  f.erase("tokenizer.ggml.scores");
  expect_refused(f, Code::kInvalidArgument,
                 {"'tokenizer.ggml.scores': expected 8 elements, found 0"});
}

TEST(GgufTokenizer, PaddedVocabularyGetsUnusedTokens) {
  GgufTestFile f = tiny_gguf();
  f.erase_tensor("token_embd.weight");
  f.add_tensor("token_embd.weight", {32, 10});
  const std::string bytes = f.build();
  auto model = read(bytes);
  ASSERT_TRUE(model.ok()) << model.error().message;
  EXPECT_EQ((*model)->config.vocab_size, 10);
  EXPECT_EQ((*model)->tokenizer.tokens.size(), 10u);
  EXPECT_EQ((*model)->tokenizer.tokens[9], "[PAD9]");
  EXPECT_EQ((*model)->tokenizer.kinds[9], TokenKind::kUnused);
  f.erase_tensor("token_embd.weight");
  f.add_tensor("token_embd.weight", {32, 7});
  expect_refused(f, Code::kInvalidArgument,
                 {"'tokenizer.ggml.tokens': expected 1 to 7 tokens", "found 8"});
}

TEST(GgufTokenizer, RefusesDamage) {
  GgufTestFile f = tiny_gguf();
  f.set("tokenizer.ggml.eos_token_id", 8u);
  expect_refused(f, Code::kInvalidArgument,
                 {"'tokenizer.ggml.eos_token_id': expected an id below 8, found 8"});
  f = tiny_gguf();
  f.set("tokenizer.ggml.merges", {"a b", "abc"});
  expect_refused(f, Code::kInvalidArgument, {"'tokenizer.ggml.merges'", "in merge 1, found 'abc'"});
  f = tiny_gguf();
  f.set_array<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {1, 1, 1, 1, 1, 1, 1, 7});
  expect_refused(f, Code::kInvalidArgument,
                 {"'tokenizer.ggml.token_type': expected 1 to 6 for token 7, found 7"});
  f = tiny_gguf();
  f.set("tokenizer.ggml.tokens", "abc");
  expect_refused(f, Code::kInvalidArgument, {"expected an array of strings, found string"});
  f = tiny_gguf();
  f.erase("tokenizer.ggml.model");
  const std::string bytes = f.build();
  EXPECT_FALSE(read(bytes).value()->has_tokenizer);
}

TEST(GgufModel, CutFilesAreErrors) {
  const std::string whole = tiny_gguf().build();
  for (size_t size = 0; size < whole.size(); size += size < 4096 ? 1 : 64) {
    const std::string cut =
        whole.substr(0, size);  // its own allocation, so that a sanitizer sees its end
    EXPECT_FALSE(read(cut).ok()) << size;
  }
}

TEST(GgufModel, ChangedBytesNeverDoWorseThanAnError) {
  const std::string whole = tiny_gguf("qwen3").build();
  int read_anyway = 0;
  const size_t header = 4096;  // and a little more
  for (size_t at = 0; at < whole.size(); at += at < header ? 1 : 997) {
    for (uint8_t mask : {0x01, 0x80, 0xFF}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      read_anyway += read(changed).ok();
    }
  }
  EXPECT_GT(read_anyway, 0);  // names and numbers that any value suits
}

// Written by the format's own Python package (tests/fuzz/make_corpus.py), so that this reader and
// the writer above cannot share a mistake.
TEST(GgufModel, FilesOfAnotherWriterOpen) {
  const std::string folder = SPILLWAY_SOURCE_DIR "/tests/fuzz/corpus/gguf/";
  auto open = [&](const char* name) { return open_model(folder + name, LoadFormat::kAuto, 0); };
  auto llama = open("llama_q4_0.gguf"), qwen2 = open("qwen2_q5_1_spm.gguf"),
       qwen3 = open("qwen3_q4_1.gguf");
  ASSERT_TRUE(llama.ok()) << llama.error().message;
  ASSERT_TRUE(qwen2.ok()) << qwen2.error().message;
  ASSERT_TRUE(qwen3.ok()) << qwen3.error().message;
  EXPECT_EQ((*llama)->tensors.at("blk.0.ffn_down").type, core::DType::kQ4_0);
  EXPECT_THAT((*llama)->config.rope.freq_divisors, testing::Each(1.0f));
  EXPECT_EQ((*llama)->tokenizer.tokens.at(7), "[PAD7]");
  EXPECT_EQ((*llama)->tokenizer.chat_template, "{{ messages[0].content }}");
  EXPECT_EQ((*qwen2)->config.rope.scaling, core::RopeScaling::kYarn);
  EXPECT_EQ((*qwen2)->tokenizer.tokens.at(6), "\u2581a");
  EXPECT_EQ((*qwen2)->tokenizer.scores.at(6), -3.0f);
  EXPECT_FALSE((*qwen3)->has_tokenizer);
  EXPECT_THAT((*qwen3)->tensors.at("blk.0.attn_k").shape, ElementsAre(16, 32));
  for (const char* damaged : {"cut_in_data.gguf", "cut_in_header.gguf", "huge_array.gguf",
                              "huge_key_count.gguf", "huge_tensor_count.gguf", "version_1.gguf"}) {
    EXPECT_FALSE(open(damaged).ok()) << damaged;
  }
}

TEST(GgufModel, LongneedleOpens) {
  auto model = open_model(SPILLWAY_SOURCE_DIR "/models/longneedle/longneedle-q8_0.gguf",
                          LoadFormat::kAuto, 0);
  ASSERT_TRUE(model.ok()) << model.error().message;
  const core::ModelConfig& c = (*model)->config;
  EXPECT_EQ(c.num_layers, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.num_kv_heads, 2);
  EXPECT_EQ(c.context_max, 262144);
  EXPECT_EQ(c.rope.theta, 1e7);
  EXPECT_TRUE(c.tied_embeddings);
  EXPECT_EQ((*model)->tensors.size(), 74u);
  EXPECT_EQ((*model)->tensors.at("blk.7.attn_output").type, core::DType::kQ8_0);
  EXPECT_EQ((*model)->tensors.at("blk.7.attn_output").file, (*model)->files[0].get());
  EXPECT_EQ((*model)->tokenizer.merges.size(), 7933u);
}

}  // namespace
}  // namespace load
