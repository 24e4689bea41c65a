#include "load/model_files.h"

#include <sys/stat.h>

#include <utility>

#include "load/gguf_model.h"

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
                                               uint64_t dummy_seed) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0) {
    return base::error(Code::kNotFound, "{}: no such file or folder", path);
  }
  if (format == LoadFormat::kDummy || !S_ISREG(info.st_mode)) {
    return base::error(Code::kUnsupported, "{}: expected a .gguf file (seed {})", path, dummy_seed);
  }
  return open_gguf(path);
}

}  // namespace load
