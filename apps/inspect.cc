// spillway inspect: what a model file holds, without loading its weights.
#include "apps/commands.h"
#include "apps/house.h"
#include "load/describe.h"

namespace apps {

base::Result<void> inspect(const std::string& model, const std::string& load_format) {
  ASSIGN_OR_RETURN(std::unique_ptr<load::ModelFiles> files,
                   open_model_files(model, load_format, 0, "BF16"));
  fmt::print("{}", load::describe(*files));
  return {};
}

}  // namespace apps
