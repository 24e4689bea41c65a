#include "api/service.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>

#include "http/message.h"

namespace api {
Service::Service(const ServerOptions& options)
    : options_(options),
      access_(options.access, options.host),
      random_(std::random_device{}()),
      draws_(options.seed.value_or(random_())),
      workers_(options.text_workers, grammar::kCompilationsMax,
               static_cast<size_t>(options.text_queue)) {}

void Service::set_backend(Backend backend) {
  backend_ = std::move(backend);
  model_.served_name = options_.served_model_names.front();
  model_.other_names.assign(options_.served_model_names.begin() + 1,
                            options_.served_model_names.end());
  model_.created_s = std::time(nullptr);
  model_.context_max = backend_->engine->context_max();
  model_.config = backend_->config;
  model_.tokenizer = backend_->tokenizer.get();
  model_.chat_template = backend_->chat_template.get();
  model_.end_tokens = model_.config.eos;
  const auto& more = model_.tokenizer->data().eog;
  model_.end_tokens.insert(model_.end_tokens.end(), more.begin(), more.end());
  choose_parsers();
  make_grammars();
  metrics_ =
      std::make_unique<telemetry::Metrics>(model_.served_name, backend_->cache, model_.context_max);
}

// REQUIRES: the options name parsers that exist, or auto.
void Service::choose_parsers() {
  const std::string& source = model_.chat_template->source();
  const auto calls = text::call_format(options_.tool_call_parser);
  const auto reasoning = text::reasoning_format(options_.reasoning_parser);
  model_.template_traits = probe_template(*model_.chat_template);
  if (calls) {
    model_.call_format = *calls;
  } else {
    model_.call_format = model_.template_traits.shows_tools ? text::detect_call_format(source)
                                                            : text::CallFormat::kHermes;
  }
  model_.reasoning_format = reasoning ? *reasoning : text::detect_reasoning_format(source);
  const auto markers = text::markers_of(model_.call_format, model_.reasoning_format);
  const auto count = static_cast<core::TokenId>(model_.config.vocab_size);
  for (core::TokenId id = 0; id < count && !markers.empty(); ++id) {
    if (!model_.tokenizer->is_special(id)) continue;
    const std::string_view bytes = model_.tokenizer->token_bytes(id);
    if (std::find(markers.begin(), markers.end(), bytes) != markers.end())
      model_.marker_tokens.push_back(id);
  }
}

// REQUIRES: choose_parsers().
void Service::make_grammars() {
  const auto bytes_of = [&tokenizer = *model_.tokenizer](core::TokenId id) {
    const bool has_text = id < tokenizer.vocab_size() && !tokenizer.is_special(id);
    return has_text ? tokenizer.token_bytes(id) : std::string_view();
  };
  grammar::GrammarsOptions options;
  // Calls begin with special tokens in some vocabularies; the text that is taken apart shows them.
  if (!model_.marker_tokens.empty()) {
    options.tag_bytes_of = [this, bytes_of](core::TokenId id) {
      const auto& markers = model_.marker_tokens;
      const bool is_marker = std::find(markers.begin(), markers.end(), id) != markers.end();
      return is_marker ? model_.tokenizer->token_bytes(id) : bytes_of(id);
    };
  }
  grammars_ = backend_->grammars != nullptr
                  ? std::move(backend_->grammars)
                  : grammar::Grammars::create(model_.config.vocab_size, bytes_of, options);
  model_.grammars = grammars_.get();
}

std::optional<ApiError> Service::unready() const {
  if (leaving_) return ApiError{Problem::kDraining, "The server is shutting down."};
  return unavailable();
}

std::optional<ApiError> Service::unavailable() const {
  if (draining_) return ApiError{Problem::kDraining, "The server is shutting down."};
  if (!loaded()) return ApiError{Problem::kLoading, "The model is being loaded."};
  if (!engine_alive_) return ApiError{Problem::kEngineDead, "The engine has stopped responding."};
  return std::nullopt;
}

std::string Service::random_hex() {
  return fmt::format("{:016x}{:016x}", random_(), random_());
}

}  // namespace api
