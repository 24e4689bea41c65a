#include "load/huggingface.h"

#include <sys/stat.h>

#include <algorithm>
#include <set>
#include <utility>

#include "load/check_config.h"
#include "load/dummy.h"
#include "load/expected_tensors.h"
#include "load/hf_config.h"
#include "load/json.h"
#include "load/printable.h"

namespace load {
namespace {

using base::Code;
using base::Result;

// Real ones stay far below: a configuration has KBs, an index of a large model 200 KB, the largest
// tokenizers 35 MB.
constexpr size_t kConfigBytesMax = 64 << 20;
constexpr size_t kTokenizerBytesMax = 256 << 20;

Result<std::string> read_text(const std::string& path, size_t bytes_max) {
  ASSIGN_OR_RETURN(const base::MappedFile file, base::MappedFile::open(path));
  if (file.bytes().size() > bytes_max) {
    return base::error(Code::kTooLarge, "{}: expected up to {} bytes, found {}", path, bytes_max,
                       file.bytes().size());
  }
  return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
}

// Empty when there is no such file.
Result<std::string> read_optional_text(const std::string& path, size_t bytes_max) {
  Result<std::string> text = read_text(path, bytes_max);
  if (!text.ok() && text.error().code == Code::kNotFound) return std::string();
  return text;
}

bool exists(const std::string& path) {
  struct stat info{};
  return ::stat(path.c_str(), &info) == 0;
}

struct Found {
  const SafetensorsFile* file = nullptr;
  const SafetensorsTensor* tensor = nullptr;
};

// Canonical part -> name inside a layer.
const std::map<std::string_view, std::string_view>& layer_names() {
  static const auto& names = *new std::map<std::string_view, std::string_view>{
      {"attn_norm", "input_layernorm"},    {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},      {"attn_v", "self_attn.v_proj"},
      {"attn_output", "self_attn.o_proj"}, {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"}, {"ffn_norm", "post_attention_layernorm"},
      {"ffn_gate", "mlp.gate_proj"},       {"ffn_up", "mlp.up_proj"},
      {"ffn_down", "mlp.down_proj"}};
  return names;
}

// Of gemma3, where they differ: the norm behind attention has the name that others give to the one
// before the feed-forward.
const std::map<std::string_view, std::string_view>& gemma3_names() {
  static const auto& names = *new std::map<std::string_view, std::string_view>{
      {"attn_post_norm", "post_attention_layernorm"},
      {"ffn_norm", "pre_feedforward_layernorm"},
      {"ffn_post_norm", "post_feedforward_layernorm"}};
  return names;
}

// `model` is what stands before the text model's own names: "model.", or more in a model with
// vision.
std::string hf_name(const std::string& canonical, core::Arch arch, std::string_view model) {
  if (canonical == "token_embd") return fmt::format("{}embed_tokens.weight", model);
  if (canonical == "output_norm") return fmt::format("{}norm.weight", model);
  if (canonical == "output") return "lm_head.weight";
  const NameParts parts = split_name(canonical);
  const auto special = gemma3_names().find(parts.part);
  const bool is_special = arch == core::Arch::kGemma3 && special != gemma3_names().end();
  return fmt::format("{}layers.{}.{}.{}", model, parts.layer,
                     is_special ? special->second : layer_names().at(parts.part),
                     parts.bias ? "bias" : "weight");
}

// Of the text model among all names of a checkpoint.
std::string_view text_prefix(const std::map<std::string_view, Found>& all) {
  for (std::string_view prefix : {"language_model.model.", "model.language_model."}) {
    const auto first = all.lower_bound(prefix);
    if (first != all.end() && first->first.starts_with(prefix)) return prefix;
  }
  return "model.";
}

// Old checkpoints carry RoPE tables; tied ones may carry a copy of the embedding, which their own
// library ignores too.
// A model with vision is served as its text model.
bool is_harmless(std::string_view name, bool tied, bool vision) {
  const bool is_image = name.find("vision_tower.") != std::string_view::npos ||
                        name.find("multi_modal_projector.") != std::string_view::npos;
  return name.ends_with("rotary_emb.inv_freq") || (tied && name.ends_with("lm_head.weight")) ||
         (vision && is_image);
}

// The shards' names in the index, and which tensor it says is where.
struct Index {
  std::set<std::string> shards;
  std::map<std::string, std::string> shard_of;
};

Result<Index> read_index(const std::string& path) {
  ASSIGN_OR_RETURN(const std::string text, read_text(path, kConfigBytesMax));
  ASSIGN_OR_RETURN(const JsonDocument document, JsonDocument::parse(path, text));
  ASSIGN_OR_RETURN(const JsonObject root, document.root());
  ASSIGN_OR_RETURN(const auto weight_map, root.object("weight_map"));
  if (weight_map == nullptr) return root.wrong("weight_map", "an object");
  Index index;
  for (const auto& [tensor, value] : weight_map->fields()) {
    ASSIGN_OR_RETURN(auto shard, weight_map->string(tensor));
    const bool plain = shard && shard->ends_with(".safetensors") &&
                       shard->find('/') == std::string_view::npos &&
                       shard->find('\0') == std::string_view::npos;
    if (!plain) return weight_map->wrong(tensor, "the name of a .safetensors file beside it");
    index.shards.emplace(*shard);
    index.shard_of.emplace(tensor, *shard);
  }
  if (index.shards.empty()) return root.wrong("weight_map", "one tensor or more");
  return index;
}

// Maps and parses one container, and keeps it for the model.
Result<SafetensorsFile> add_file(const std::string& path, ModelFiles& model) {
  ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::open(path));
  model.files.push_back(std::make_unique<base::MappedFile>(std::move(file)));
  return SafetensorsFile::parse(path, model.files.back()->bytes());
}

Result<std::vector<SafetensorsFile>> open_weights(const std::string& folder, ModelFiles& model) {
  std::vector<SafetensorsFile> files;
  const std::string single = folder + "/model.safetensors";
  const std::string index_path = folder + "/model.safetensors.index.json";
  if (exists(single)) {
    ASSIGN_OR_RETURN(SafetensorsFile file, add_file(single, model));
    files.push_back(std::move(file));
    return files;
  }
  if (!exists(index_path)) {
    const bool pickled =
        exists(folder + "/pytorch_model.bin") || exists(folder + "/pytorch_model.bin.index.json");
    return base::error(
        Code::kNotFound, "{}: expected model.safetensors or model.safetensors.index.json, found {}",
        folder, pickled ? "pytorch_model.bin (convert it to safetensors)" : "neither");
  }
  ASSIGN_OR_RETURN(const Index index, read_index(index_path));
  for (const std::string& shard : index.shards) {
    ASSIGN_OR_RETURN(SafetensorsFile file, add_file(fmt::format("{}/{}", folder, shard), model));
    files.push_back(std::move(file));
  }
  std::map<std::string_view, const SafetensorsFile*> by_path;
  for (const SafetensorsFile& file : files) by_path.emplace(file.file(), &file);
  for (const auto& [tensor, shard] : index.shard_of) {
    const std::string path = fmt::format("{}/{}", folder, shard);
    if (!by_path.at(path)->tensors().contains(tensor)) {
      return base::error(
          Code::kInvalidArgument,
          "{}: tensor '{}': expected it in this file (as the index says), found none", path,
          printable(tensor));
    }
  }
  return files;
}

Result<HfTexts> read_texts(const std::string& folder) {
  HfTexts texts;
  ASSIGN_OR_RETURN(texts.tokenizer_json,
                   read_optional_text(folder + "/tokenizer.json", kTokenizerBytesMax));
  ASSIGN_OR_RETURN(texts.tokenizer_config,
                   read_optional_text(folder + "/tokenizer_config.json", kConfigBytesMax));
  ASSIGN_OR_RETURN(texts.generation_config,
                   read_optional_text(folder + "/generation_config.json", kConfigBytesMax));
  ASSIGN_OR_RETURN(texts.chat_template,
                   read_optional_text(folder + "/chat_template.jinja", kConfigBytesMax));
  return texts;
}

std::string last_part(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path.substr(path.rfind('/') + 1);  // npos + 1 = 0: all of it
}

// Everything but the weights.
Result<std::unique_ptr<ModelFiles>> open_descriptions(const std::string& folder,
                                                      const std::string& config_path) {
  auto model = std::make_unique<ModelFiles>();
  ASSIGN_OR_RETURN(const std::string config, read_text(config_path, kConfigBytesMax));
  ASSIGN_OR_RETURN(model->config, read_hf_config(config_path, config));
  model->config.name = printable(last_part(folder));
  ASSIGN_OR_RETURN(HfTexts texts, read_texts(folder));
  RETURN_IF_ERROR(read_hf_tokenizer(folder, std::move(texts), *model));
  RETURN_IF_ERROR(check_config(folder, model->config));  // the token ids again
  return model;
}

}  // namespace

Result<void> read_hf_tensors(const std::vector<SafetensorsFile>& files, ModelFiles& model) {
  CHECK(!files.empty());
  std::map<std::string_view, Found> all;
  for (const SafetensorsFile& file : files) {
    for (const auto& [name, tensor] : file.tensors()) {
      auto [it, added] = all.emplace(name, Found{&file, &tensor});
      if (!added) {
        return base::error(Code::kInvalidArgument,
                           "{}: tensor '{}': expected in one file, found in {} too", file.file(),
                           printable(name), it->second.file->file());
      }
    }
  }
  TensorSource source;
  const std::string_view prefix = text_prefix(all);
  const core::Arch arch = model.config.arch;
  source.file_name = [=](const std::string& name) { return hf_name(name, arch, prefix); };
  source.find = [&](const std::string& name) -> Result<Tensor> {
    auto it = all.find(name);
    if (it == all.end()) return base::error(Code::kNotFound, "{}", name);
    const SafetensorsTensor& found = *it->second.tensor;
    const std::optional<core::DType> type = core::find_dtype(found.type);
    if (!type || core::info(*type).block_elements != 1) {
      return base::error(Code::kUnsupported, "{}: tensor '{}': expected BF16, F16 or F32, found {}",
                         it->second.file->file(), name, printable(found.type));
    }
    Tensor tensor;
    tensor.type = *type;
    tensor.shape = found.shape;
    tensor.bytes = found.bytes;
    return tensor;
  };
  std::vector<std::string> used;
  RETURN_IF_ERROR(collect_tensors(files[0].file(), model.config, source, model.tensors, used));
  const std::set<std::string_view> used_names(used.begin(), used.end());
  for (const auto& [name, found] : all) {
    if (used_names.contains(name) ||
        is_harmless(name, model.config.tied_embeddings, prefix != "model.")) {
      continue;
    }
    return base::error(Code::kUnsupported,
                       "{}: tensor '{}': expected only tensors that a {} model with this "
                       "config.json has, found one of shape {}",
                       found.file->file(), printable(name), core::arch_name(model.config.arch),
                       format_shape(found.tensor->shape));
  }
  for (auto& [name, tensor] : model.tensors) {
    tensor.stored_less_one = arch == core::Arch::kGemma3 && tensor.shape.size() == 1 &&
                             split_name(name).part.ends_with("norm");
    model.weight_bytes += static_cast<int64_t>(tensor.bytes.size());
  }
  return {};
}

Result<std::unique_ptr<ModelFiles>> open_huggingface(const std::string& folder) {
  ASSIGN_OR_RETURN(auto model, open_descriptions(folder, folder + "/config.json"));
  ASSIGN_OR_RETURN(const auto files, open_weights(folder, *model));
  model->format =
      files.size() == 1 ? "safetensors" : fmt::format("safetensors in {} files", files.size());
  RETURN_IF_ERROR(read_hf_tensors(files, *model));
  for (auto& [name, tensor] : model->tensors) {
    for (const auto& file : model->files) {
      const std::span<const std::byte> all = file->bytes();
      const bool inside =
          tensor.bytes.data() >= all.data() && tensor.bytes.data() < all.data() + all.size();
      if (inside) tensor.file = file.get();
    }
  }
  return model;
}

Result<std::unique_ptr<ModelFiles>> open_dummy(const std::string& path, uint64_t seed,
                                               core::DType type) {
  struct stat info{};
  const bool is_folder = ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
  const size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash);
  const std::string folder = is_folder ? path : parent;
  ASSIGN_OR_RETURN(auto model, open_descriptions(folder, is_folder ? path + "/config.json" : path));
  model->format = "dummy";
  RETURN_IF_ERROR(make_dummy_weights(path, seed, *model, type));
  return model;
}

}  // namespace load
