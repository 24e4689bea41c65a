// Tools for models whose chat template knows nothing of them: everything as plain text.
#pragma once

#include <nlohmann/json.hpp>

#include "text/chat_template.h"

namespace api {

// What a template does with what chats with tools hold; found by rendering a small one. One that
// shows no tools counts as showing nothing else either: calls must look as the text on tools says.
struct TemplateTraits {
  bool shows_tools = false;         // the tools' names are in the text
  bool shows_calls = false;         // as are those of past calls,
  bool shows_results = false;       // and results with the role "tool";
  bool calls_need_content = false;  // but only where the content of the call's message is a string
};
TemplateTraits probe_template(const text::ChatTemplate& chat_template);

// Puts what the template would not show into texts that it does show, in the format hermes: tools
// into a system message at the front (docs/api.md has its words), past calls behind the content of
// their message, results into messages of the user, neighbours in one. `tools` becomes null when it
// is written into the messages. Contents are strings afterwards wherever the template needs that.
void write_tools_as_text(const TemplateTraits& traits, nlohmann::ordered_json& messages,
                         nlohmann::ordered_json& tools);

}  // namespace api
