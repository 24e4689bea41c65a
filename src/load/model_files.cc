#include "load/model_files.h"

#include <sys/stat.h>

#include <utility>

#include "load/gguf_model.h"
#include "load/huggingface.h"

namespace load {
namespace {

using base::Code;
using base::Result;

Result<std::unique_ptr<ModelFiles>> open_gguf(const std::string& path) {
  ASSIGN_OR_RETURN(base::MappedFile file, base::MappedFile::open(path));
  auto owner = std::make_unique<base::MappedFile>(std::move(file));
  ASSIGN_OR_RETURN(auto model, read_gguf_model(path, owner->bytes()));
  for (auto& [name, tensor] : model->tensors) tensor.file = owner.get();
  model->files.push_back(std::move(owner));
  return model;
}

}  // namespace

Result<std::unique_ptr<ModelFiles>> open_model(const std::string& path, LoadFormat format,
                                               uint64_t dummy_seed, core::DType dummy_type) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    return base::error(Code::kNotFound, "{}: no such file or folder", path);
  }
  if (format == LoadFormat::kDummy) return open_dummy(path, dummy_seed, dummy_type);
  if (S_ISDIR(info.st_mode)) return open_huggingface(path);
  if (path.ends_with(".json")) {
    return base::error(
        Code::kInvalidArgument,
        "{}: expected a .gguf file or a folder with config.json (a config.json alone "
        "has no weights; the dummy load format makes some up)",
        path);
  }
  return open_gguf(path);
}

}  // namespace load
