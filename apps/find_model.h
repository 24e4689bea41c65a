// Models by name: what the environment says about where they come from and are kept (src/hub/).
#pragma once

#include <string>

#include "base/result.h"

namespace apps {

// The path of `model` (a path or a name of hub/), fetched when it must be, with a line of progress
// on a terminal. `weights` false: of a repository of safetensors only the files beside them.
// Thread: any, one at a time.
base::Result<std::string> find_model_path(const std::string& model, bool weights);

// Makes a fetch that runs or is begun later end soon, with kCancelled. Thread: any.
void stop_fetching();

// A model's name as people see it: without the mark of repositories.
std::string shown_model_name(const std::string& model);

}  // namespace apps
