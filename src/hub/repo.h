// A model by its name on the Hugging Face Hub, or on a server with the same API: found in the
// cache, else fetched into it.
//
// Fetched are only the files that a model needs (listing.h); each is checked by size and checksum
// before it gets its name, and what was interrupted goes on where it ended. With the network, the
// server is asked first which commit a branch is; without it, what is whole in the cache serves.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>

#include "base/result.h"
#include "hub/repo_name.h"

namespace hub {

// How far a fetch is.
struct FetchProgress {
  std::string name;     // of the model
  std::string file;     // on its way now
  int file_number = 0;  // from 1
  int num_files = 0;
  int64_t bytes = 0;  // of all files together, those from an earlier fetch counted in
  int64_t total_bytes = 0;
  double bytes_per_s = 0;  // since this fetch began; 0: not known yet
};

struct RepoOptions {
  std::string endpoint = "https://huggingface.co";
  std::string cache_folder;  // that holds models--org--name; "": nowhere
  std::string token;         // "": look into token_file
  std::string token_file;    // "": none
  bool offline = false;
  bool weights = true;  // false: of a model of safetensors, only the files beside them
  std::string user_agent = "spillway";
  std::function<void(const FetchProgress&)> progress;  // twice a second; may be empty
  std::function<bool()> cancelled;                     // several times a second; may be empty
  // Before a line is logged: a line of progress should not stand there. May be empty.
  std::function<void()> before_log;
};

// The environment's variables that huggingface_hub reads, so that both keep one cache: HF_ENDPOINT,
// HF_HUB_CACHE (HUGGINGFACE_HUB_CACHE), HF_HOME, XDG_CACHE_HOME, HOME, HF_TOKEN
// (HUGGING_FACE_HUB_TOKEN), HF_TOKEN_PATH, HF_HUB_DISABLE_IMPLICIT_TOKEN, HF_HUB_OFFLINE
// (TRANSFORMERS_OFFLINE). Pure; `variable` gives null for one that is not set.
RepoOptions repo_options(const std::function<const char*(const char*)>& variable);

// The path of the model's folder (a snapshot), or of its GGUF file. Blocks for as long as the
// network takes. Errors, which say what to do: kNotFound (no such repository, revision, file or
// model in it; offline and not in the cache), kInvalidArgument (401 and 403: the terms or the
// token; bad options), kIo (network, disk, checksum), kOverloaded, kTooLarge (no space),
// kUnsupported (split GGUF), kCancelled.
base::Result<std::string> find_repo_model(const RepoName& name, const RepoOptions& options);

}  // namespace hub
