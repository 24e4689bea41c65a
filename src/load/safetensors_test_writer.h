// Writes safetensors files and folders of them for tests.
#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace load {

// Length, header, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string file(reinterpret_cast<const char*>(&length), sizeof(length));
  file += header;
  file += data;
  return file;
}

struct SafetensorsTestFile {
  struct Entry {
    std::string name;
    std::string type;
    std::vector<int64_t> shape;
    int64_t bytes = 0;
  };
  std::vector<Entry> entries;

  void add(const std::string& name, std::vector<int64_t> shape, const std::string& type = "BF16") {
    int64_t bytes = type == "F32" ? 4 : type == "F8_E4M3" ? 1 : 2;
    for (int64_t width : shape) bytes *= width;
    entries.push_back({name, type, std::move(shape), bytes});
  }
  void erase(const std::string& name) {
    std::erase_if(entries, [&](const Entry& e) { return e.name == name; });
  }
  // Data: each tensor's bytes are its index, from 1.
  std::string build() const {
    std::string header = "{\"__metadata__\":{\"format\":\"pt\"}", data;
    for (const Entry& e : entries) {
      header += fmt::format(R"(,"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", e.name,
                            e.type, fmt::join(e.shape, ","), data.size(),
                            data.size() + static_cast<size_t>(e.bytes));
      data.append(static_cast<size_t>(e.bytes), static_cast<char>(1 + (&e - entries.data())));
    }
    return safetensors_bytes(header + "}", data);
  }
};

// A model of 2 layers, 32 wide, 2 heads of 16 over 1, vocabulary 8: as config_json() in the tests
// says.
inline SafetensorsTestFile tiny_safetensors(bool qkv_bias = false, bool qk_norm = false) {
  SafetensorsTestFile f;
  f.add("model.embed_tokens.weight", {8, 32});
  f.add("model.norm.weight", {32});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string blk = fmt::format("model.layers.{}.", layer);
    f.add(blk + "input_layernorm.weight", {32});
    f.add(blk + "self_attn.q_proj.weight", {32, 32});
    f.add(blk + "self_attn.k_proj.weight", {16, 32});
    f.add(blk + "self_attn.v_proj.weight", {16, 32});
    f.add(blk + "self_attn.o_proj.weight", {32, 32});
    f.add(blk + "post_attention_layernorm.weight", {32});
    f.add(blk + "mlp.gate_proj.weight", {48, 32});
    f.add(blk + "mlp.up_proj.weight", {48, 32});
    f.add(blk + "mlp.down_proj.weight", {32, 48});
    if (qkv_bias) {
      f.add(blk + "self_attn.q_proj.bias", {32});
      f.add(blk + "self_attn.k_proj.bias", {16});
      f.add(blk + "self_attn.v_proj.bias", {16});
    }
    if (qk_norm) {
      f.add(blk + "self_attn.q_norm.weight", {16});
      f.add(blk + "self_attn.k_norm.weight", {16});
    }
  }
  return f;
}

// `more` is added behind the keys every model has: R"(,"key":value)".
inline std::string config_json(const std::string& model_type, const std::string& more = "") {
  return fmt::format(
      R"({{"model_type":"{}","hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,)"
      R"("num_attention_heads":2,"num_key_value_heads":1,"head_dim":16,"vocab_size":8,)"
      R"("max_position_embeddings":4096,"rms_norm_eps":1e-5,"hidden_act":"silu","use_cache":true{}}})",
      model_type, more);
}

// A folder that goes away with the object.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern =
        (std::filesystem::temp_directory_path() / "spillway-load-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << text;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace load
