// Writes GGUF files for tests, right ones and, through raw(), wrong ones.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/model_config.h"
#include "load/expected_tensors.h"
#include "load/gguf.h"

namespace load {

// Bytes appended in the file's own order.
class ByteWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T>
  ByteWriter& raw(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return *this;
  }
  ByteWriter& raw(std::string_view text) {
    bytes_.append(text);
    return *this;
  }
  ByteWriter& string(std::string_view text) { return raw<uint64_t>(text.size()).raw(text); }
  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }

 private:
  std::string bytes_;
};

struct GgufTestTensor {
  std::string name;
  uint32_t type = 0;           // the file's number; 0 = F32
  std::vector<uint64_t> dims;  // as in the file: row length first
  std::string bytes;
};

// Keys and tensors in any order; build() lays them out. Tests change the public fields to damage a
// file.
struct GgufTestFile {
  std::vector<std::pair<std::string, std::string>> keys;  // name -> type number and value, encoded
  std::vector<GgufTestTensor> tensors;
  uint32_t version = 3;
  uint64_t alignment = 32;

  void set_encoded(const std::string& key, std::string encoded) {
    for (auto& [name, value] : keys) {
      if (name == key) return void(value = std::move(encoded));
    }
    keys.emplace_back(key, std::move(encoded));
  }
  template <typename T>
  void set_scalar(const std::string& key, GgufType type, T value) {
    set_encoded(key, ByteWriter().raw(static_cast<uint32_t>(type)).raw(value).bytes());
  }
  void set(const std::string& key, uint32_t value) { set_scalar(key, GgufType::kUint32, value); }
  void set(const std::string& key, float value) { set_scalar(key, GgufType::kFloat32, value); }
  void set(const std::string& key, bool value) {
    set_scalar(key, GgufType::kBool, static_cast<uint8_t>(value));
  }
  void set(const std::string& key, const char* text) {
    set_encoded(key, ByteWriter().raw(uint32_t{8}).string(text).bytes());
  }
  void set(const std::string& key, const std::vector<std::string>& texts) {
    ByteWriter w;
    w.raw(uint32_t{9}).raw(uint32_t{8}).raw<uint64_t>(texts.size());
    for (const std::string& text : texts) w.string(text);
    set_encoded(key, w.bytes());
  }
  template <typename T>
  void set_array(const std::string& key, GgufType element, const std::vector<T>& values) {
    ByteWriter w;
    w.raw(uint32_t{9}).raw(static_cast<uint32_t>(element)).raw<uint64_t>(values.size());
    for (T value : values) w.raw(value);
    set_encoded(key, w.bytes());
  }
  void erase(const std::string& key) {
    std::erase_if(keys, [&](const auto& entry) { return entry.first == key; });
  }
  void erase_tensor(const std::string& name) {
    std::erase_if(tensors, [&](const GgufTestTensor& t) { return t.name == name; });
  }
  GgufTestTensor& tensor(const std::string& name) {
    for (GgufTestTensor& t : tensors) {
      if (t.name == name) return t;
    }
    return tensors.emplace_back(GgufTestTensor{name, 0, {}, {}});
  }
  // F32, zeros.
  void add_tensor(const std::string& name, std::vector<uint64_t> dims) {
    uint64_t elements = 1;
    for (uint64_t d : dims) elements *= d;
    tensors.push_back({name, 0, std::move(dims), std::string(elements * 4, '\0')});
  }

  std::string build() const {
    ByteWriter w;
    w.raw("GGUF").raw(version).raw<uint64_t>(tensors.size()).raw<uint64_t>(keys.size());
    for (const auto& [name, value] : keys) w.string(name).raw(std::string_view(value));
    uint64_t offset = 0;
    for (const GgufTestTensor& t : tensors) {
      w.string(t.name).raw(static_cast<uint32_t>(t.dims.size()));
      for (uint64_t d : t.dims) w.raw(d);
      w.raw(t.type).raw(offset);
      offset += padded(t.bytes.size());
    }
    std::string file = w.bytes();
    file.resize(padded(file.size()));
    for (const GgufTestTensor& t : tensors) {
      file += t.bytes;
      file.resize(padded(file.size()));
    }
    return file;
  }

 private:
  uint64_t padded(uint64_t bytes) const { return (bytes + alignment - 1) / alignment * alignment; }
};

// A whole model of `arch` in a few KB: 2 layers, 32 wide, 2 heads of 16 over 1, a byte-level BPE
// vocabulary of 8.
inline GgufTestFile tiny_gguf(const std::string& arch = "llama") {
  GgufTestFile f;
  f.set("general.architecture", arch.c_str());
  f.set("general.name", "tiny");
  f.set(arch + ".block_count", 2u);
  f.set(arch + ".embedding_length", 32u);
  f.set(arch + ".feed_forward_length", 48u);
  f.set(arch + ".context_length", 4096u);
  f.set(arch + ".attention.head_count", 2u);
  f.set(arch + ".attention.head_count_kv", 1u);
  f.set(arch + ".attention.layer_norm_rms_epsilon", 1e-6f);
  f.set(arch + ".rope.freq_base", 50000.0f);
  f.set("tokenizer.ggml.model", "gpt2");
  f.set("tokenizer.ggml.pre", "smollm");
  f.set("tokenizer.ggml.tokens",
        {"<|endoftext|>", "<|im_start|>", "<|im_end|>", "a", "b", "c", "ab", "abc"});
  f.set_array<int32_t>("tokenizer.ggml.token_type", GgufType::kInt32, {3, 3, 3, 1, 1, 1, 1, 1});
  f.set("tokenizer.ggml.merges", {"a b", "ab c"});
  f.set("tokenizer.ggml.bos_token_id", 1u);
  f.set("tokenizer.ggml.eos_token_id", 2u);
  f.add_tensor("token_embd.weight", {32, 8});
  for (int layer = 0; layer < 2; ++layer) {
    const std::string blk = "blk." + std::to_string(layer) + ".";
    f.add_tensor(blk + "attn_norm.weight", {32});
    f.add_tensor(blk + "attn_q.weight", {32, 32});
    f.add_tensor(blk + "attn_k.weight", {32, 16});
    f.add_tensor(blk + "attn_v.weight", {32, 16});
    f.add_tensor(blk + "attn_output.weight", {32, 32});
    f.add_tensor(blk + "ffn_norm.weight", {32});
    f.add_tensor(blk + "ffn_gate.weight", {32, 48});
    f.add_tensor(blk + "ffn_up.weight", {32, 48});
    f.add_tensor(blk + "ffn_down.weight", {48, 32});
    if (arch == "qwen2") {
      f.add_tensor(blk + "attn_q.bias", {32});
      f.add_tensor(blk + "attn_k.bias", {16});
      f.add_tensor(blk + "attn_v.bias", {16});
    }
    if (arch == "gemma3") {
      f.add_tensor(blk + "post_attention_norm.weight", {32});
      f.add_tensor(blk + "post_ffw_norm.weight", {32});
    }
    if (arch == "qwen3" || arch == "gemma3") {
      f.add_tensor(blk + "attn_q_norm.weight", {16});
      f.add_tensor(blk + "attn_k_norm.weight", {16});
    }
  }
  f.add_tensor("output_norm.weight", {32});
  return f;
}

inline std::span<const std::byte> bytes_of(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace load
