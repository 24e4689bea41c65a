// The look of --help: names on the left, one sentence and the default on the right, no type
// algebra.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace apps {

class HelpFormatter final : public CLI::Formatter {
 public:
  HelpFormatter() { column_width(34); }

 private:
  // "--threads N": the type without its range, which an error message names.
  std::string make_option_opts(const CLI::Option* option) const override {
    if (option->get_positional() || option->get_type_size() == 0) return "";
    const std::string type = option->get_type_name().substr(0, option->get_type_name().find(':'));
    const std::string value = type == "TEXT" || type == "FILE" ? type : type.empty() ? "" : "N";
    return value.empty() ? "" : " " + value;
  }

  std::string make_option_name(const CLI::Option* option, bool is_positional) const override {
    std::string name = CLI::Formatter::make_option_name(option, is_positional);
    for (size_t at = name.find('{'); at != std::string::npos;
         at = name.find('{')) {  // "{false}" of a flag's second name
      name.erase(at, name.find('}') - at + 1);
    }
    return name;
  }

  std::string make_option_desc(const CLI::Option* option) const override {
    std::string value = option->get_default_str();
    if (value.starts_with('[') && value.ends_with(']'))
      value = value.substr(1, value.size() - 2);  // a list
    return option->get_description() + (value.empty() ? "" : " (" + value + ")");
  }
};

}  // namespace apps
