#include "apps/typed_options.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <optional>
#include <set>
#include <span>

#include "apps/vllm_flags.h"

namespace apps {
namespace {

// One option with its values, or one positional argument, as typed.
struct Piece {
  std::string name;                    // "--host", "-t"; "" of a positional
  std::vector<std::string> arguments;  // all of it
  std::string value;                   // its first one, if it takes any
};

std::string with_hyphens(std::string name) {
  std::replace(name.begin() + 2, name.end(), '_', '-');
  return name;
}

class Reader {
 public:
  Reader(const CLI::App& app) : root_(app), level_(&app) {}

  base::Result<CommandLine> read(const std::vector<std::string>& typed) {
    std::vector<Piece> pieces;
    size_t own = 0;  // where those of the subcommand begin
    std::span<const std::string> rest = typed;
    while (!rest.empty()) {
      Piece piece = take(&rest);
      if (!piece.name.empty() || !descend(piece.arguments.front())) {
        pieces.push_back(std::move(piece));
        continue;
      }
      pieces.push_back(std::move(piece));
      own = pieces.size();
    }
    std::vector<Piece> typed_own(pieces.begin() + static_cast<ptrdiff_t>(own), pieces.end());
    pieces.resize(own);
    RETURN_IF_ERROR(translate(&typed_own, nullptr));
    const auto file = std::ranges::find(typed_own, "--config", &Piece::name);
    if (file != typed_own.end() && has("--config")) {
      ASSIGN_OR_RETURN(std::vector<Piece> more, read_config(file->value));
      RETURN_IF_ERROR(translate(&more, &file->value));
      add_missing(pieces, typed_own, std::move(more));
    }
    CommandLine line;
    for (const auto* list : {&pieces, &typed_own}) {
      for (const Piece& piece : *list) {
        line.arguments.insert(line.arguments.end(), piece.arguments.begin(), piece.arguments.end());
      }
    }
    if (!notes_.empty()) line.note = fmt::format("{}", fmt::join(notes_, "; "));
    return line;
  }

 private:
  const CLI::Option* option(const std::string& name) const {
    if (const CLI::Option* found = level_->get_option_no_throw(name)) return found;
    return root_.get_option_no_throw(name);
  }
  bool has(const std::string& name) const { return level_->get_option_no_throw(name) != nullptr; }
  bool knows_vllm() const {
    return level_->get_name() == "serve" && level_->get_parent() == &root_;
  }

  // Into the subcommand of that name, if there is one.
  bool descend(const std::string& name) {
    for (const CLI::App* sub : level_->get_subcommands([](const CLI::App*) { return true; })) {
      if (sub->get_name() != name) continue;
      level_ = sub;
      return true;
    }
    return false;
  }

  // How many values may follow the option.
  int values_max(const std::string& name) const {
    if (const CLI::Option* known = option(name)) {
      const int all = known->get_items_expected_max();
      return known->get_allow_extra_args() ? all : std::min(all, known->get_type_size_max());
    }
    return knows_vllm() && vllm_takes_value(name).value_or(false) ? 1 : 0;
  }

  Piece take(std::span<const std::string>* rest) const {
    Piece piece;
    std::string first = rest->front();
    *rest = rest->subspan(1);
    const bool is_long = first.starts_with("--") && first.size() > 2;
    if (!is_long && !(first.starts_with('-') && first.size() > 1)) {
      piece.arguments = {std::move(first)};
      return piece;
    }
    const size_t equals = is_long ? first.find('=') : std::string::npos;
    piece.name = is_long ? with_hyphens(first.substr(0, equals)) : first;
    if (equals != std::string::npos) {
      piece.value = first.substr(equals + 1);
      piece.arguments = {piece.name + first.substr(equals)};
      return piece;
    }
    piece.arguments = {piece.name};
    if (!is_long && first.size() > 2 && option(first) == nullptr && !vllm_takes_value(first)) {
      piece.name = first.substr(0, 2);  // -t4
      return piece;
    }
    for (int i = 0; i < values_max(piece.name) && !rest->empty(); ++i) {
      // The first value belongs to its option whatever it is, as -1 does.
      if (i > 0 && rest->front().starts_with('-')) break;
      if (i == 0) piece.value = rest->front();
      piece.arguments.push_back(rest->front());
      *rest = rest->subspan(1);
    }
    return piece;
  }

  base::Result<void> translate(std::vector<Piece>* pieces, const std::string* file) {
    if (!knows_vllm()) return {};
    std::vector<Piece> made;
    for (Piece& piece : *pieces) {
      const std::optional<bool> known = vllm_takes_value(piece.name);
      if (!known) {
        made.push_back(std::move(piece));
        continue;
      }
      if (*known && piece.arguments.size() == 1 && piece.value.empty()) {
        return base::error(base::Code::kInvalidArgument, "{}: a value is missing", piece.name);
      }
      auto translated = translate_vllm(piece.name, *known ? piece.value : "");
      if (!translated.ok()) {
        return base::error(translated.error().code, "{}{}", file ? *file + ": " : "",
                           translated.error().message);
      }
      if (!translated->note.empty()) notes_.push_back(translated->note);
      if (translated->arguments.empty()) continue;
      const std::string& name = translated->arguments.front();
      made.push_back({.name = name.starts_with('-') ? name : "",
                      .arguments = translated->arguments,
                      .value = translated->arguments.back()});
    }
    *pieces = std::move(made);
    return {};
  }

  base::Result<std::vector<Piece>> read_config(const std::string& path) const {
    std::vector<CLI::ConfigItem> items;
    try {
      std::ifstream file(path);
      if (!file.good()) throw CLI::FileError::Missing(path);
      if (file.peek() == 0xEF) file.ignore(3);  // the mark that some editors put before UTF-8
      items = CLI::ConfigTOML().from_config(file);
    } catch (const CLI::Error& e) {
      return base::error(base::Code::kInvalidArgument, "--config {}: {}", path, e.what());
    }
    std::vector<Piece> pieces;
    for (const CLI::ConfigItem& item : items) {
      if (!item.parents.empty()) {
        return base::error(base::Code::kInvalidArgument,
                           "{}: '{}': expected options of spillway {} without sections", path,
                           item.fullname(), level_->get_name());
      }
      RETURN_IF_ERROR(add_item(path, item, &pieces));
    }
    return pieces;
  }

  base::Result<void> add_item(const std::string& path, const CLI::ConfigItem& item,
                              std::vector<Piece>* pieces) const {
    // As "" is refused: a list of no keys would open the server.
    if (item.inputs.empty()) {
      return base::error(base::Code::kInvalidArgument, "{}: {}: a value is missing", path,
                         item.name);
    }
    for (const std::string& value : item.inputs) {
      // What was not closed, or was cut at a #, has its first quote still.
      const bool is_object = value.starts_with('{') && value.ends_with('}');
      if (value.starts_with('\'') || (value.find('"') != std::string::npos && !is_object)) {
        return base::error(base::Code::kInvalidArgument,
                           "{}: {}: a quoted value ends on its line and has no # or quotes inside "
                           "(a JSON object in single quotes has quotes)",
                           path, item.name);
      }
    }
    const CLI::Option* positional = level_->get_option_no_throw(item.name);
    if (positional != nullptr && positional->get_positional() && item.inputs.size() == 1) {
      pieces->push_back({.name = "", .arguments = item.inputs, .value = item.inputs.front()});
      return {};
    }
    const std::string name = with_hyphens("--" + item.name);
    const bool is_vllms = knows_vllm() && vllm_takes_value(name);
    if ((!has(name) && !is_vllms) || name == "--config" || name == "--help") {
      return base::error(base::Code::kInvalidArgument, "{}: '{}' is no option of spillway {}", path,
                         item.name, level_->get_name());
    }
    for (const std::string& value : item.inputs) {
      // A flag of vLLM's has no value: false is as good as not there.
      if (is_vllms && !*vllm_takes_value(name)) {
        if (value == "true") pieces->push_back({.name = name, .arguments = {name}, .value = ""});
        continue;
      }
      pieces->push_back({.name = name, .arguments = {name + "=" + value}, .value = value});
    }
    return {};
  }

  // The command line wins: of the file's options it gets those it has none of.
  void add_missing(const std::vector<Piece>& before, std::vector<Piece>& own,
                   std::vector<Piece> more) const {
    std::set<std::string> given;
    for (const auto* list : {&before, static_cast<const std::vector<Piece>*>(&own)}) {
      for (const Piece& piece : *list) {
        if (const CLI::Option* known = piece.name.empty() ? nullptr : option(piece.name)) {
          for (const std::string& name : known->get_lnames()) given.insert(name);
        }
      }
    }
    // One thing under two names.
    if (given.contains("chunk-size") || given.contains("max-inject-tokens")) {
      given.insert("long-prefill-token-threshold");
    }
    if (given.contains("long-prefill-token-threshold")) {
      given.insert({"chunk-size", "max-inject-tokens"});
    }
    const bool has_positional =
        std::ranges::any_of(own, [](const Piece& piece) { return piece.name.empty(); });
    for (Piece& piece : more) {
      if (piece.name.empty() ? has_positional : given.contains(piece.name.substr(2))) continue;
      own.push_back(std::move(piece));
    }
  }

  const CLI::App& root_;
  const CLI::App* level_;
  std::vector<std::string> notes_;
};

}  // namespace

base::Result<CommandLine> read_command_line(const CLI::App& app,
                                            const std::vector<std::string>& typed) {
  return Reader(app).read(typed);
}

}  // namespace apps
