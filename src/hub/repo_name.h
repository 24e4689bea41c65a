// What people type for a model on a server with the Hugging Face Hub's API. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"

namespace hub {

struct RepoName {
  std::string id;                 // org/name; behind `hf:` also a bare name
  std::string revision = "main";  // a branch, a tag, or a commit's 40 hex digits
  std::string file;  // "": the folder's model; a GGUF file's path in it, or its quantisation
};

//   [hf:]org/name[@revision][:file]
// Errors: kNotFound when `text` has no `hf:` and is no such name, or looks like a path to a file
// (a.b/model.gguf); kInvalidArgument when it has and is not, which says what is wrong.
base::Result<RepoName> parse_repo_name(std::string_view text);

// Whether `path` is a file's inside a repository and safe below any folder: relative, no component
// empty, `.` or `..`, no control character or backslash, each component at most 255 bytes.
bool is_repo_path(std::string_view path);

// 40 lower-case hex digits.
bool is_commit(std::string_view text);

// Foreign text in messages: one line of printable ASCII, at most 120 bytes.
std::string printable(std::string_view text);

}  // namespace hub
