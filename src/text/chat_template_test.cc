// Goal: what golden files cannot say about chat templates: error codes and lines, limits that stop
// hostile templates, and what we refuse although Python can do it. Method: small templates, one
// claim each.
#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace text {
namespace {

using base::Code;
using testing::HasSubstr;
using Json = nlohmann::ordered_json;

base::Result<std::string> render(std::string_view source, const Json& context = Json::object(),
                                 TemplateLimits limits = {}) {
  ASSIGN_OR_RETURN(const ChatTemplate chat, ChatTemplate::parse(source, limits));
  return chat.render(context, 0);
}

void expect_error(std::string_view source, Code code, std::string_view message,
                  const Json& context = Json::object(), TemplateLimits limits = {}) {
  const auto result = render(source, context, limits);
  ASSERT_FALSE(result.ok()) << source << " rendered " << result->substr(0, 200);
  EXPECT_EQ(result.error().code, code) << source << ": " << result.error().message;
  EXPECT_THAT(result.error().message, HasSubstr(message)) << source;
}

// Hostile templates get small limits so that the test is quick; the code paths are the same.
TemplateLimits small() {
  TemplateLimits limits;
  limits.output_bytes = 1 << 20;
  limits.memory_bytes = 8 << 20;
  limits.loop_iterations = 10'000;
  limits.work = 100'000'000;
  return limits;
}

TEST(ChatTemplate, DefaultTemplateIsChatMl) {
  const Json context = {{"messages", {{{"role", "user"}, {"content", "Hi"}}}},
                        {"add_generation_prompt", true}};
  const auto result = render(kDefaultChatTemplate, context);
  ASSERT_TRUE(result.ok()) << result.error().message;
  EXPECT_EQ(*result, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
}

TEST(ChatTemplate, IsReusableAndMovable) {
  auto first = ChatTemplate::parse("{{ x }}");
  ASSERT_TRUE(first.ok());
  ChatTemplate chat = std::move(*first);
  EXPECT_EQ(*chat.render({{"x", 1}}, 0), "1");
  EXPECT_EQ(*chat.render({{"x", 2}}, 0), "2");
  EXPECT_EQ(chat.source(), "{{ x }}");
}

TEST(ChatTemplate, TimeIsTheCallers) {
  const auto chat = ChatTemplate::parse("{{ strftime_now('%d %b %Y') }}");
  ASSERT_TRUE(chat.ok());
  EXPECT_EQ(*chat->render(Json::object(), 1'733'000'000), "30 Nov 2024");
}

TEST(ChatTemplate, SyntaxErrorsNameTheLine) {
  expect_error("a\nb\n{{ 1 + }}", Code::kInvalidArgument, "line 3");
  expect_error("\n{% if x %}\n", Code::kInvalidArgument, "endif");
  expect_error("{% nosuch %}", Code::kInvalidArgument, "nosuch");
  expect_error("\n\n{{ 'open", Code::kInvalidArgument, "line 3");
  expect_error("\xff", Code::kInvalidArgument, "UTF-8");
}

TEST(ChatTemplate, MissingThingsAreNamed) {
  expect_error("{{ x|nosuch }}", Code::kUnsupported, "filter 'nosuch'");
  expect_error("\n{{ x is nosuch }}", Code::kUnsupported, "line 2: the test 'nosuch'");
  expect_error("{% include 'x' %}", Code::kUnsupported, "tag 'include'");
  expect_error("{{ nosuch() }}", Code::kInvalidArgument, "'nosuch' is undefined");
  expect_error("\n{{ x.y.z }}", Code::kInvalidArgument, "line 2", {{"x", Json::object()}});
  expect_error("{{ [1].append(2) }}", Code::kInvalidArgument, "unsafe");
}

TEST(ChatTemplate, RaisedMessageStaysAsItIs) {
  const auto result = render("{{ raise_exception('Roles must alternate') }}");
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.error().code, Code::kInvalidArgument);
  EXPECT_EQ(result.error().message, "Roles must alternate");
}

// Python prints these; we refuse rather than print something else.
TEST(ChatTemplate, RefusesWhatItCannotPrintAlike) {
  expect_error("{{ range(3) }}", Code::kUnsupported, "printing a range");
  expect_error("{{ {}.items() }}", Code::kUnsupported, "printing a dict view");
  expect_error("{{ x.items }}", Code::kUnsupported, "printing a function", {{"x", Json::object()}});
  expect_error("{{ 9223372036854775807 + 1 }}", Code::kUnsupported, "64 bits");
  expect_error("{{ x }}", Code::kUnsupported, "64 bits", {{"x", UINT64_MAX}});
  expect_error("{{ 9007199254740993 / 1 }}", Code::kUnsupported, "64 bits");
  expect_error("{{ '{:>4}'.format(1) }}", Code::kUnsupported, "format");
  expect_error("{{ strftime_now('%Q') }}", Code::kUnsupported, "strftime_now");
}

TEST(ChatTemplate, OutputIsBounded) {
  expect_error("{% for i in range(9000) %}{{ s }}{% endfor %}", Code::kTooLarge, "output",
               {{"s", std::string(1000, 'x')}}, small());
}

TEST(ChatTemplate, LoopsAreBoundedTogether) {
  expect_error("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
               Code::kTooLarge, "iterations", Json::object(), small());
  expect_error("{% macro f(n) %}{{ f(n) ~ f(n) }}{% endmacro %}{{ f(1) }}", Code::kTooLarge,
               "levels", Json::object(), small());
  expect_error(
      "{% macro f(n) %}{% if n %}{{ f(n - 1) ~ f(n - 1) }}{% endif %}{% endmacro %}{{ f(30) }}",
      Code::kTooLarge, "iterations", Json::object(), small());
}

TEST(ChatTemplate, MemoryIsBounded) {
  expect_error("{{ ('a' * 1000000000)|length }}", Code::kTooLarge, "memory", Json::object(),
               small());
  expect_error("{{ ([1] * 1000000000)|length }}", Code::kTooLarge, "memory", Json::object(),
               small());
  expect_error("{{ ([1] * 9223372036854775807)|length }}", Code::kTooLarge, "memory",
               Json::object(), small());
  expect_error("{{ ('' * 9223372036854775807)|length }}{{ 'a'.ljust(9223372036854775807) }}",
               Code::kTooLarge, "memory", Json::object(), small());
  expect_error(
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% "
      "endfor %}",
      Code::kTooLarge, "memory", Json::object(), small());
  expect_error(
      "{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x.replace('a', "
      "'aa') ~ ns.x %}{% endfor %}",
      Code::kTooLarge, "memory", Json::object(), small());
  // Sharing makes this small in memory and huge when printed.
  expect_error(
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}{{ ns.x }}",
      Code::kTooLarge, "", Json::object(), small());
  expect_error(
      "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% "
      "endfor %}{{ ns.x|tojson }}",
      Code::kTooLarge, "", Json::object(), small());
  expect_error(
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] "
      "%}{% set ns.y = [ns.y, "
      "ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      Code::kTooLarge, "work", Json::object(), small());
}

TEST(ChatTemplate, WorkIsBounded) {
  const Json context = {{"s", std::string(100'000, 'a')}};
  expect_error("{% for i in range(9999) %}{% set x = 'b' in s %}{% endfor %}", Code::kTooLarge,
               "work", context, small());
  expect_error("{% for i in range(9999) %}{% set x = s.split('b') %}{% endfor %}", Code::kTooLarge,
               "work", context, small());
  // Walks over characters cost more than copies: charged as copies, these once took minutes at the
  // default limits.
  for (const char* walk :
       {"s|upper", "s|title", "s|wordcount", "s.isalpha()", "s.splitlines()", "s.strip('ab')"}) {
    expect_error(fmt::format("{{% for i in range(99) %}}{{% set x = {} %}}{{% endfor %}}", walk),
                 Code::kTooLarge, "work", context, small());
  }
  expect_error("{% for i in range(9999) %}{% set x = s == t %}{% endfor %}", Code::kTooLarge,
               "work", {{"s", std::string(100'000, 'a')}, {"t", std::string(100'000, 'a')}},
               small());
}

TEST(ChatTemplate, NestingIsBounded) {
  const auto repeat = [](std::string_view part, int count) {
    std::string text;
    for (int i = 0; i < count; ++i) text += part;
    return text;
  };
  const auto nested = [&](std::string_view open, std::string_view middle, std::string_view close) {
    return repeat(open, 100'000) + std::string(middle) + repeat(close, 100'000);
  };
  expect_error("{{ " + nested("(", "1", ")") + " }}", Code::kTooLarge, "nested");
  expect_error("{{ " + nested("[", "1", "]") + " }}", Code::kTooLarge, "nested");
  expect_error("{{ " + repeat("not ", 100'000) + "1 }}", Code::kTooLarge, "nested");
  expect_error("{{ " + repeat("-", 100'000) + "1 }}", Code::kTooLarge, "nested");
  expect_error("{{ 1" + repeat(" + 1", 100'000) + " }}", Code::kTooLarge, "nested");
  expect_error("{{ x" + repeat(".x", 100'000) + " }}", Code::kTooLarge, "nested");
  expect_error("{{ x" + repeat("|d", 100'000) + " }}", Code::kTooLarge, "nested");
  expect_error(nested("{% if x %}", "", "{% endif %}"), Code::kTooLarge, "nested");
  expect_error("{% if x %}" + repeat("{% elif x %}", 100'000) + "{% endif %}", Code::kTooLarge,
               "elif");
  expect_error("{% set " + nested("(", "a", ")") + " = 1 %}", Code::kTooLarge, "nested");
  expect_error(
      "{% set ns = namespace(x=1) %}{% for i in range(9999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      Code::kTooLarge, "nesting");
  Json deep = 1;
  for (int i = 0; i < 1000; ++i) deep = Json::array({deep});
  expect_error("{{ x }}", Code::kTooLarge, "nested", {{"x", deep}});
}

// Each would leak or overflow the stack if cycles were left to reference counts (the address
// sanitizer's leak check tells).
TEST(ChatTemplate, CyclesAreCutAtTheEnd) {
  EXPECT_TRUE(render("{% set ns = namespace() %}{% set ns.self = ns %}").ok());
  EXPECT_TRUE(render("{% set ns = namespace() %}{% for i in [1] %}{% macro m() %}{{ i }}{% "
                     "endmacro %}{% set ns.m = m %}{% endfor %}{{ ns.m() }}")
                  .ok());
  EXPECT_TRUE(render("{% set ns = namespace() %}{% for i in range(100000) %}{% set ns.x = "
                     "namespace(before=ns.x) %}{% endfor %}")
                  .ok());
  EXPECT_TRUE(render("{% set ns = namespace() %}{% for i in [1] %}{% set ns.loop = loop %}{% "
                     "endfor %}{{ ns.loop.index }}")
                  .ok());
}

TEST(ChatTemplate, ContextMustBeAnObjectOfValidText) {
  expect_error("x", Code::kInvalidArgument, "object", Json::array());
  expect_error("{{ x }}", Code::kInvalidArgument, "UTF-8", {{"x", "\xff"}});
}

}  // namespace
}  // namespace text
