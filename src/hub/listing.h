// What a repository holds, as the Hub's API tells it, and which of its files a model needs. Pure;
// the bytes are hostile: every name and size is checked here, and what is parsed is bounded by what
// was given.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hub {

struct RepoFile {
  std::string path;                   // is_repo_path
  std::optional<int64_t> size_bytes;  // nullopt: the server did not say
  std::string checksum;  // SHA-256 (64 hex digits), git's blob id (40), or "": not said
};

struct Listing {
  std::string commit;
  std::vector<RepoFile> files;

  const RepoFile* find(std::string_view path) const;
};

// The answer to GET /api/models/ID/revision/REVISION?blobs=true. `source` names it in messages.
// Errors: kIo when it is no JSON, lacks the commit or the files, or names a file that
// is_repo_path() refuses.
base::Result<Listing> parse_listing(std::string_view source, std::string_view json);

// The weight files that an index (model.safetensors.index.json) names, sorted. Errors: kIo.
base::Result<std::vector<std::string>> parse_shards(std::string_view source, std::string_view json);

// The files beside the weights that a model of safetensors needs: its configuration, tokenizer and
// chat template, of the top folder.
std::vector<RepoFile> side_files(const Listing& listing);

// Where the weights are: model.safetensors, or an index whose shards the caller reads from it.
inline constexpr const char* kWholeWeights = "model.safetensors";
inline constexpr const char* kWeightIndex = "model.safetensors.index.json";

// Whether there is a model of safetensors. Errors: kNotFound: what there is instead; GGUF files
// with their sizes and how to name one. `id` is the repository's.
base::Result<void> check_has_safetensors(const std::string& id, const Listing& listing);

// The GGUF file that `wanted` means: a path, or a quantisation (`Q4_K_M`, case does not matter)
// that stands in one file's name. Errors: kNotFound, with the files that there are; kUnsupported
// for a part of a split file.
base::Result<RepoFile> choose_gguf(const std::string& id, const Listing& listing,
                                   const std::string& wanted);

}  // namespace hub
