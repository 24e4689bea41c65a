// Folders written here open as whole models: one file and shards, with the tokenizer's side files
// in their variants; and what is missing, left over or of another type is named.
#include "load/huggingface.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "load/safetensors_test_writer.h"

namespace load {
namespace {

using base::Code;
using testing::ElementsAre;
using testing::HasSubstr;

std::unique_ptr<ModelFiles> open_good(const TemporaryFolder& folder) {
  auto model = open_model(folder.path(), LoadFormat::kAuto, 0);
  EXPECT_TRUE(model.ok()) << model.error().message;
  return model.ok() ? std::move(model).value() : std::make_unique<ModelFiles>();
}

void expect_refused(const TemporaryFolder& folder, const std::vector<std::string>& parts,
                    Code code) {
  auto model = open_model(folder.path(), LoadFormat::kAuto, 0);
  ASSERT_FALSE(model.ok()) << parts[0];
  EXPECT_EQ(model.error().code, code) << model.error().message;
  for (const std::string& part : parts) EXPECT_THAT(model.error().message, HasSubstr(part));
}

const std::string kTied = R"(,"tie_word_embeddings":true,"bos_token_id":0,"eos_token_id":2)";

TEST(HuggingFace, OneFile) {
  TemporaryFolder folder;
  folder.write("config.json", config_json("llama", kTied));
  folder.write("model.safetensors", tiny_safetensors().build());
  const auto model = open_good(folder);
  EXPECT_EQ(model->format, "safetensors");
  EXPECT_EQ(model->tensors.size(), 20u);
  const Tensor& down = model->tensors.at("blk.1.ffn_down");
  EXPECT_EQ(down.type, core::DType::kBF16);
  EXPECT_THAT(down.shape, ElementsAre(32, 48));
  EXPECT_EQ(static_cast<int>(down.bytes[0]), 20);  // the 20th tensor of the file
  EXPECT_EQ(down.file, model->files[0].get());
  EXPECT_EQ(model->tensors.at("blk.0.attn_q").rope_interleaved_head_dim, 0);
  EXPECT_FALSE(model->has_tokenizer);
}

// The text model of a checkpoint with vision, names as the hub has them and as transformers 5 saves
// them.
TEST(HuggingFace, Gemma3WithVision) {
  for (const char* prefix : {"language_model.model.", "model.language_model."}) {
    SafetensorsTestFile file;
    for (const auto& entry : tiny_safetensors(false, true).entries) {
      std::string name = entry.name;
      name.replace(0, std::string_view("model.").size(), prefix);
      file.add(name, entry.shape);
    }
    for (int layer = 0; layer < 2; ++layer) {
      const std::string blk = fmt::format("{}layers.{}.", prefix, layer);
      file.add(blk + "pre_feedforward_layernorm.weight", {32});
      file.add(blk + "post_feedforward_layernorm.weight", {32});
    }
    file.add("vision_tower.vision_model.embeddings.patch_embedding.bias", {4});
    file.add("multi_modal_projector.mm_input_projection_weight", {4, 4});
    TemporaryFolder folder;
    folder.write(
        "config.json",
        R"({"model_type":"gemma3","text_config":{"model_type":"gemma3_text","hidden_size":32,)"
        R"("intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":2,)"
        R"("num_key_value_heads":1,"head_dim":16,"vocab_size":8}})");
    folder.write("model.safetensors", file.build());
    const auto model = open_good(folder);
    EXPECT_EQ(model->tensors.size(), 2 + 2 * 13u);
    EXPECT_TRUE(model->tensors.at("blk.0.attn_post_norm").stored_less_one);
    EXPECT_TRUE(model->tensors.at("blk.1.attn_q_norm").stored_less_one);
    EXPECT_TRUE(model->tensors.at("output_norm").stored_less_one);
    EXPECT_FALSE(model->tensors.at("blk.0.attn_q").stored_less_one);
  }
}

TEST(HuggingFace, Shards) {
  SafetensorsTestFile first = tiny_safetensors(true), second;
  const std::string moved = "model.layers.1.mlp.down_proj.weight";
  first.erase(moved);
  second.add(moved, {32, 48}, "F32");
  second.add("lm_head.weight", {8, 32}, "F16");
  TemporaryFolder folder;
  folder.write("config.json", config_json("qwen2"));
  folder.write("a.safetensors", first.build());
  folder.write("b.safetensors", second.build());
  folder.write(
      "model.safetensors.index.json",
      R"({"metadata":{},"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"b.safetensors"}})");
  const auto model = open_good(folder);
  EXPECT_EQ(model->format, "safetensors in 2 files");
  EXPECT_EQ(model->tensors.at("output").type, core::DType::kF16);
  EXPECT_EQ(model->tensors.at("blk.1.ffn_down").file, model->files[1].get());
  EXPECT_EQ(model->tensors.at("blk.1.attn_q_bias").file, model->files[0].get());

  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"lm_head.weight":"a.safetensors"}})");
  expect_refused(folder, {"a.safetensors: tensor 'lm_head.weight': expected it in this file"},
                 Code::kInvalidArgument);
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"lm_head.weight":"../b.safetensors"}})");
  expect_refused(
      folder,
      {"key 'weight_map.lm_head.weight': expected the name of a .safetensors file beside it"},
      Code::kInvalidArgument);
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"lm_head.weight":"c.safetensors"}})");
  expect_refused(folder, {"c.safetensors: cannot open"}, Code::kNotFound);
  second.add("model.norm.weight", {32});
  folder.write("b.safetensors", second.build());
  folder.write("model.safetensors.index.json",
               R"({"weight_map":{"x":"a.safetensors","lm_head.weight":"b.safetensors"}})");
  expect_refused(folder, {"tensor 'x'"}, Code::kInvalidArgument);
  folder.write(
      "model.safetensors.index.json",
      R"({"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"b.safetensors"}})");
  expect_refused(folder, {"tensor 'model.norm.weight': expected in one file"},
                 Code::kInvalidArgument);
}

TEST(HuggingFace, NamesTheTensorThatIsWrong) {
  TemporaryFolder folder;
  folder.write("config.json", config_json("llama", kTied));
  SafetensorsTestFile f = tiny_safetensors();
  f.erase("model.layers.1.self_attn.v_proj.weight");
  folder.write("model.safetensors", f.build());
  expect_refused(folder,
                 {"model.safetensors: tensor 'model.layers.1.self_attn.v_proj.weight': expected "
                  "shape (16, 32), found none"},
                 Code::kInvalidArgument);
  f.add("model.layers.1.self_attn.v_proj.weight", {16, 16});
  folder.write("model.safetensors", f.build());
  expect_refused(folder, {"expected shape (16, 32), found (16, 16)"}, Code::kInvalidArgument);
  f.erase("model.layers.1.self_attn.v_proj.weight");
  f.add("model.layers.1.self_attn.v_proj.weight", {16, 32}, "F8_E4M3");
  folder.write("model.safetensors", f.build());
  expect_refused(
      folder,
      {"'model.layers.1.self_attn.v_proj.weight': expected BF16, F16 or F32, found F8_E4M3"},
      Code::kUnsupported);

  f = tiny_safetensors();
  f.add("model.layers.0.self_attn.rotary_emb.inv_freq", {8}, "F32");
  f.add("lm_head.weight", {8, 32});  // a copy of the embedding: it is tied
  folder.write("model.safetensors", f.build());
  open_good(folder);
  f.add("model.layers.0.self_attn.sinks", {2});
  folder.write("model.safetensors", f.build());
  expect_refused(folder, {"tensor 'model.layers.0.self_attn.sinks'", "found one of shape (2)"},
                 Code::kUnsupported);
  folder.write("config.json", config_json("llama"));
  folder.write("model.safetensors", tiny_safetensors().build());
  expect_refused(folder, {"tensor 'lm_head.weight': expected shape (8, 32), found none"},
                 Code::kInvalidArgument);
}

TEST(HuggingFace, MissingFiles) {
  TemporaryFolder folder;
  expect_refused(folder, {"config.json: cannot open"}, Code::kNotFound);
  folder.write("config.json", config_json("llama", kTied));
  expect_refused(folder,
                 {"expected model.safetensors or model.safetensors.index.json, found neither"},
                 Code::kNotFound);
  folder.write("pytorch_model.bin", "x");
  expect_refused(folder, {"pytorch_model.bin (convert it to safetensors)"}, Code::kNotFound);
  EXPECT_EQ(open_model(folder.path() + "/nothing", LoadFormat::kAuto, 0).error().code,
            Code::kNotFound);
  EXPECT_THAT(open_model(folder.path() + "/config.json", LoadFormat::kAuto, 0).error().message,
              HasSubstr("dummy"));
}

TEST(HuggingFace, Tokenizer) {
  TemporaryFolder folder;
  folder.write("config.json", config_json("llama", kTied));
  folder.write("model.safetensors", tiny_safetensors().build());
  folder.write("tokenizer.json", R"({"model":{}})");
  auto model = open_good(folder);
  EXPECT_TRUE(model->has_tokenizer);
  EXPECT_EQ(model->tokenizer_json, R"({"model":{}})");
  EXPECT_EQ(model->tokenizer.bos, 0);  // from config.json
  EXPECT_EQ(model->tokenizer.eos, 2);

  folder.write("generation_config.json", R"({"eos_token_id":[2,5],"bos_token_id":1})");
  folder.write(
      "tokenizer_config.json",
      R"({"bos_token":null,"eos_token":{"__type":"AddedToken","content":"<e>"},"add_bos_token":true,
      "added_tokens_decoder":{"4":{"content":"<e>"}},"chat_template":"plain"})");
  model = open_good(folder);
  EXPECT_EQ(model->config.bos, 1);
  EXPECT_THAT(model->config.eos, ElementsAre(2, 5, 4));
  EXPECT_EQ(model->tokenizer.bos, -1);
  EXPECT_EQ(model->tokenizer.eos, 4);
  EXPECT_THAT(model->tokenizer.eog, ElementsAre(2, 5));
  EXPECT_TRUE(model->tokenizer.add_bos);
  EXPECT_EQ(model->tokenizer.chat_template, "plain");

  folder.write(
      "tokenizer_config.json",
      R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(open_good(folder)->tokenizer.chat_template, "d");
  folder.write("chat_template.jinja", "from its own file");
  EXPECT_EQ(open_good(folder)->tokenizer.chat_template, "from its own file");
  folder.write("tokenizer_config.json", R"({"chat_template":[{"name":"rag","template":"t"}]})");
  expect_refused(folder,
                 {"tokenizer_config.json: key 'chat_template': expected one named 'default'"},
                 Code::kInvalidArgument);
  folder.write("tokenizer_config.json", R"({"bos_token":3})");
  expect_refused(folder, {"key 'bos_token': expected a string or an object, found 3"},
                 Code::kInvalidArgument);
  folder.write("tokenizer_config.json",
               R"({"eos_token":"<e>","added_tokens_decoder":{"99":{"content":"<e>"}}})");
  expect_refused(folder, {"eos token: expected an id below 8, found 99"}, Code::kInvalidArgument);
  folder.write("tokenizer_config.json", R"({"added_tokens_decoder":{"x":{"content":"<e>"}}})");
  expect_refused(folder, {"key 'added_tokens_decoder.x': expected a token id"},
                 Code::kInvalidArgument);
}

}  // namespace
}  // namespace load
