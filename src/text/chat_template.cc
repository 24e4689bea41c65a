#include "text/chat_template.h"

#include "text/jinja_eval.h"
#include "text/jinja_parser.h"

namespace text {

struct ChatTemplate::Node {
  std::unique_ptr<jinja::Program> program;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

base::Result<ChatTemplate> ChatTemplate::parse(std::string_view source, TemplateLimits limits) {
  ChatTemplate result;
  result.root_ = std::make_unique<Node>();
  ASSIGN_OR_RETURN(result.root_->program, jinja::parse(source, limits.depth));
  result.source_ = source;
  result.limits_ = limits;
  return result;
}

base::Result<std::string> ChatTemplate::render(const nlohmann::ordered_json& context,
                                               int64_t now_unix_s) const {
  return jinja::evaluate(*root_->program, context, now_unix_s, limits_);
}

const std::string& ChatTemplate::source() const {
  return source_;
}

const std::string_view kDefaultChatTemplate =
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}";

}  // namespace text
