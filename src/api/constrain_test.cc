// From a request's body to the constraints of its sequences, over a vocabulary of bytes: how many
// there are, which tokens end them, and how what cannot be enforced is named. Then a server whose
// grammars are not compiled until the test says so: who waits for them, and who does not.
#include "api/constrain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <condition_variable>
#include <list>
#include <mutex>

#include "api/testing.h"

namespace api {
namespace {

using core::TokenConstraint;
using ::testing::HasSubstr;

class ConstrainTest : public ::testing::Test {
 protected:
  ConstrainTest() {
    model_.served_name = "bytes";
    model_.context_max = 4000;  // with tools written out in the prompt
    model_.config.vocab_size = testing::kVocab;
    model_.tokenizer = tokenizer_.get();
    model_.chat_template = &chat_template_;
    model_.grammars = grammars_.get();
    model_.end_tokens = {testing::kEnd};
  }

  std::variant<Prepared, ApiError> prepare(const std::string& fields) {
    return prepare(Endpoint::kCompletions, R"({"prompt":"x",)" + fields + "}");
  }
  // With its grammar, as a handler has it.
  std::variant<Prepared, ApiError> prepare(Endpoint endpoint, const std::string& body) {
    auto outcome = prepare_generation(endpoint, body, model_, 0);
    auto* prepared = std::get_if<Prepared>(&outcome);
    if (prepared == nullptr || !prepared->uncompiled) return outcome;
    EXPECT_TRUE(prepared->constraints.empty());
    if (Failure failure = compile_constraints(model_, *prepared, {})) return *std::move(failure);
    return outcome;
  }
  // A chat with a function f of one whole number.
  std::string chat(const std::string& fields) {
    return R"({"messages":[{"role":"user","content":"c"}],"tools":[{"type":"function","function":{"name":"f",
        "parameters":{"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]}}}],)" +
           fields + "}";
  }
  std::shared_ptr<TokenConstraint> chat_constraint(const std::string& fields) {
    auto prepared = prepare(Endpoint::kChat, chat(fields));
    if (const auto* error = std::get_if<ApiError>(&prepared)) {
      ADD_FAILURE() << error->message;
      return nullptr;
    }
    return std::get<Prepared>(prepared).constraints.at(0);
  }
  static TokenConstraint::Next feed(TokenConstraint& constraint, std::string_view text) {
    auto next = TokenConstraint::Next::kGoesOn;
    for (const char c : text) {
      EXPECT_EQ(next, TokenConstraint::Next::kGoesOn) << "before " << c;
      next = constraint.accept(static_cast<unsigned char>(c));
    }
    return next;
  }

  Prepared good(const std::string& fields) {
    auto prepared = prepare(fields);
    if (const auto* error = std::get_if<ApiError>(&prepared)) {
      ADD_FAILURE() << error->message;
      return {};
    }
    return std::move(std::get<Prepared>(prepared));
  }
  ApiError bad(const std::string& fields) {
    auto prepared = prepare(fields);
    const auto* error = std::get_if<ApiError>(&prepared);
    EXPECT_NE(error, nullptr) << fields;
    return error == nullptr ? ApiError{} : *error;
  }

  std::unique_ptr<text::Tokenizer> tokenizer_ =
      text::Tokenizer::create(testing::byte_tokenizer_data()).value();
  text::ChatTemplate chat_template_ = text::ChatTemplate::parse(text::kDefaultChatTemplate).value();
  std::unique_ptr<grammar::Grammars> grammars_ =
      grammar::Grammars::create(testing::kVocab, [this](core::TokenId id) {
        return tokenizer_->is_special(id) ? std::string_view() : tokenizer_->token_bytes(id);
      });
  ServedModel model_;
};

TEST_F(ConstrainTest, EverySequenceHasItsOwn) {
  Prepared prepared = good(R"("n":3,"structured_outputs":{"regex":"ab|c"})");
  ASSERT_EQ(prepared.constraints.size(), 3u);
  EXPECT_EQ(prepared.constraints[0]->accept('c'), TokenConstraint::Next::kMustEnd);
  EXPECT_EQ(prepared.constraints[1]->accept('a'), TokenConstraint::Next::kGoesOn);
  EXPECT_EQ(prepared.constraints[1]->accept('b'), TokenConstraint::Next::kMustEnd);
  EXPECT_TRUE(core::allows(prepared.constraints[2]->mask(), 259)) << "the token ab";
  EXPECT_TRUE(good(R"("n":3)").constraints.empty());
}

TEST_F(ConstrainTest, EndAndStopTokensComeWhereTheOutputIsComplete) {
  const std::string constraint = R"("structured_outputs":{"regex":"a*"})";
  EXPECT_TRUE(core::allows(good(constraint).constraints[0]->mask(), testing::kEnd));
  EXPECT_FALSE(core::allows(good(constraint + R"(,"ignore_eos":true)").constraints[0]->mask(),
                            testing::kEnd));
  const Prepared stops = good(R"("structured_outputs":{"regex":"a*b"},"stop_token_ids":[97])");
  EXPECT_FALSE(core::allows(stops.constraints[0]->mask(), 'a'));
}

// Each format's own way to write a call of f, and nothing else.
TEST_F(ConstrainTest, ACallThatMustBeMadeFollowsItsTool) {
  using text::CallFormat;
  const std::pair<CallFormat, std::string> calls[] = {
      {CallFormat::kHermes,
       "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 17}}\n</tool_call>"},
      {CallFormat::kLlama3Json, "{\"name\": \"f\", \"parameters\": {\"a\": 17}}"},
      {CallFormat::kMistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 17}}]"},
      {CallFormat::kQwen3Coder,
       "<tool_call>\n<function=f>\n<parameter=a>\n17\n</parameter>\n</function>\n</tool_call>"}};
  for (const auto& [format, text] : calls) {
    SCOPED_TRACE(text::name_of(format));
    model_.call_format = format;
    for (const char* choice : {R"("tool_choice":"required","parallel_tool_calls":false)",
                               R"("tool_choice":{"type":"function","function":{"name":"f"}})"}) {
      auto one = chat_constraint(choice);
      ASSERT_NE(one, nullptr);
      EXPECT_FALSE(core::allows(one->mask(), testing::kEnd));
      EXPECT_FALSE(core::allows(one->mask(), 'x'));
      EXPECT_EQ(feed(*one, text), TokenConstraint::Next::kMustEnd);
    }
    auto several = chat_constraint(R"("tool_choice":"required")");
    ASSERT_NE(several, nullptr);
    if (format == CallFormat::kMistral) continue;  // the bracket ends the list
    EXPECT_EQ(feed(*several, text), TokenConstraint::Next::kGoesOn);
    EXPECT_TRUE(core::allows(several->mask(), testing::kEnd));
  }
}

// Where the model decides: text is free, and calls of g; those of f, which is strict, follow it.
TEST_F(ConstrainTest, CallsOfStrictToolsFollowThemUnderAuto) {
  using text::CallFormat;
  struct Way {
    CallFormat format;
    std::string begin, number, text, end;  // of a call of f: in front of a number, or of another
    std::string other;                     // a call of g
  };
  const Way ways[] = {
      {CallFormat::kHermes, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": ", "17", "\"",
       "}}\n</tool_call>",
       "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"b\": \"x\"}}\n</tool_call>"},
      {CallFormat::kMistral, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": ", "17", "\"",
       "}}, {\"name\": \"f\", \"arguments\": {\"a\": 1}}]", "[TOOL_CALLS]g{\"b\": [\"x\"]}"},
      {CallFormat::kMistral, "[TOOL_CALLS]f[ARGS]{\"a\": ", "17", "\"", "}",
       "[TOOL_CALLS]g[ARGS]{\"b\": [\"x\"]}"},
      {CallFormat::kQwen3Coder, "<tool_call>\n<function=f>\n<parameter=a>\n", "17", "x",
       "\n</parameter>\n</function>\n</tool_call>",
       "<tool_call>\n<function=g>\n<parameter=b>\nx\ty\n</parameter>\n</function>\n</tool_call>"}};
  const auto tool = [](const char* name, const char* type, const char* strict) {
    return fmt::format(
        R"({{"type":"function","function":{{"name":"{}",{}"parameters":{{"type":"object",
        "properties":{{"a":{{"type":"{}"}}}},"required":["a"]}}}}}})",
        name, strict, type);
  };
  const auto ask = [&](const std::string& f_strict, const std::string& fields) {
    const std::string body =
        fmt::format(R"({{"messages":[{{"role":"user","content":"c"}}],"tools":[{},{}]{}}})",
                    tool("f", "integer", f_strict.c_str()), tool("g", "string", ""), fields);
    return std::get<Prepared>(prepare(Endpoint::kChat, body));
  };
  constexpr auto kOn = TokenConstraint::Next::kGoesOn;
  const std::string strict = R"("strict":true,)";
  for (const Way& way : ways) {
    SCOPED_TRACE(way.begin);
    model_.call_format = way.format;
    const auto constraint = ask(strict, "").constraints.at(0);
    EXPECT_TRUE(core::allows(constraint->mask(), testing::kEnd));
    EXPECT_EQ(feed(*constraint, "Let me\tsee: " + way.begin), kOn);
    EXPECT_FALSE(core::allows(constraint->mask(), static_cast<core::TokenId>(way.text[0])));
    EXPECT_FALSE(core::allows(constraint->mask(), testing::kEnd));
    EXPECT_EQ(feed(*constraint, way.number + way.end), kOn);
    EXPECT_TRUE(core::allows(constraint->mask(), testing::kEnd));
    EXPECT_EQ(feed(*constraint, "\n" + way.other + " so."), kOn);
    EXPECT_EQ(constraint->accept(testing::kEnd), TokenConstraint::Next::kMustEnd);
    EXPECT_TRUE(ask("", "").constraints.empty());
    EXPECT_TRUE(ask(R"("strict":false,)", "").constraints.empty());
    EXPECT_TRUE(ask(strict, R"(,"tool_choice":"none")").constraints.empty());
  }
  model_.call_format = CallFormat::kLlama3Json;
  EXPECT_TRUE(ask(strict, "").constraints.empty()) << "nothing marks a call of this format";
}

// As OpenAI's servers have it: the model calls, or what it says has the format.
TEST_F(ConstrainTest, AFormatBesideToolsLeavesCallsOpen) {
  using text::CallFormat;
  constexpr auto kEnds = TokenConstraint::Next::kMustEnd;
  constexpr auto kOn = TokenConstraint::Next::kGoesOn;
  const std::string format =
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"object",
      "properties":{"city":{"type":"string"}},"required":["city"]}}})";
  for (const CallFormat calls : {CallFormat::kHermes, CallFormat::kLlama3Json, CallFormat::kMistral,
                                 CallFormat::kQwen3Coder}) {
    SCOPED_TRACE(text::name_of(calls));
    model_.call_format = calls;
    EXPECT_EQ(feed(*chat_constraint(format), R"({"city": "x"})"), kEnds);
    EXPECT_FALSE(core::allows(chat_constraint(format)->mask(), testing::kEnd));
    EXPECT_FALSE(core::allows(chat_constraint(format)->mask(), 'x'));
    EXPECT_EQ(feed(*chat_constraint(format + R"(,"tool_choice":"none")"), R"({"city": "x"})"),
              kEnds);
  }
  model_.call_format = CallFormat::kHermes;
  const std::string call =
      "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  const auto called = chat_constraint(format);
  EXPECT_EQ(feed(*called, call), kOn) << "another may follow";
  EXPECT_TRUE(core::allows(called->mask(), testing::kEnd));
  EXPECT_EQ(feed(*chat_constraint(R"("response_format":{"type":"json_object"})"), call), kOn);
  EXPECT_FALSE(
      core::allows(chat_constraint(R"("structured_outputs":{"json_object":true})")->mask(), '<'))
      << "governs the whole output";
  auto refused =
      prepare(Endpoint::kChat,
              chat(R"("response_format":{"type":"json_schema","json_schema":{"schema":"[["}})"));
  ASSERT_TRUE(std::holds_alternative<ApiError>(refused));
  EXPECT_EQ(std::get<ApiError>(refused).param, "response_format");
}

TEST_F(ConstrainTest, ReasoningComesFirstInChats) {
  model_.call_format = text::CallFormat::kHermes;
  model_.reasoning_format = text::ReasoningFormat::kDeepseekR1;
  auto constraint = chat_constraint(R"("structured_outputs":{"regex":"ab"})");
  ASSERT_NE(constraint, nullptr);
  feed(*constraint, "hm.</think>");
  EXPECT_FALSE(core::allows(constraint->mask(), 'h'));
  EXPECT_EQ(feed(*constraint, "ab"), TokenConstraint::Next::kMustEnd);
  EXPECT_FALSE(
      core::allows(good(R"("structured_outputs":{"regex":"ab"})").constraints[0]->mask(), 'h'))
      << "a completion has none";
}

TEST_F(ConstrainTest, ErrorsNameTheField) {
  ApiError error = bad(
      R"("response_format":{"type":"json_schema","json_schema":{"schema":{"type":"array","uniqueItems":true}}})");
  EXPECT_EQ(error.problem, Problem::kUnsupportedParameter);
  EXPECT_EQ(error.param, "response_format");
  EXPECT_THAT(error.message, HasSubstr("`uniqueItems`"));
  error = bad(R"("structured_outputs":{"regex":"(a"})");
  EXPECT_EQ(error.problem, Problem::kInvalidValue);
  EXPECT_EQ(error.param, "structured_outputs");
  EXPECT_THAT(error.message, ::testing::Not(HasSubstr("/")));
  error = bad(R"("structured_outputs":{"regex":""})");
  EXPECT_EQ(error.problem, Problem::kInvalidValue);
  model_.grammars = nullptr;
  EXPECT_EQ(bad(R"("response_format":{"type":"json_object"})").problem,
            Problem::kUnsupportedParameter);
}

// Compiles nothing, and says so once it is released.
class HeldGrammars final : public grammar::Grammars {
 public:
  struct Hold {
    std::mutex mutex;
    std::condition_variable_any changed;
    int begun = 0, cancelled = 0;
    bool released = false;

    void wait_for(const int& count, int wanted) {
      std::unique_lock lock(mutex);
      EXPECT_TRUE(
          changed.wait_for(lock, std::chrono::seconds(60), [&] { return count >= wanted; }));
    }
    void release() {
      const std::lock_guard lock(mutex);
      released = true;
      changed.notify_all();
    }
  };
  explicit HeldGrammars(std::shared_ptr<Hold> hold) : hold_(std::move(hold)) {}

  using Grammars::compile;
  base::Result<std::shared_ptr<const grammar::Grammar>> compile(
      const grammar::Spec&, const std::stop_token& stop) override {
    std::unique_lock lock(hold_->mutex);
    ++hold_->begun;
    hold_->changed.notify_all();
    if (!hold_->changed.wait(lock, stop, [&] { return hold_->released; })) {
      ++hold_->cancelled;
      hold_->changed.notify_all();
      return base::error(base::Code::kCancelled, "nobody waits for it");
    }
    return base::error(base::Code::kOverloaded, "the machine is busy");
  }
  std::shared_ptr<const grammar::Grammar> find(const grammar::Spec&) override { return nullptr; }
  Counters counters() const override { return {}; }

 private:
  std::shared_ptr<Hold> hold_;
};

class HeldGrammarsTest : public ::testing::Test {
 protected:
  static std::string constrained() {
    return testing::TestServer::post_bytes("/v1/completions",
                                           R"({"prompt":"x","structured_outputs":{"regex":"a"}})");
  }
  std::shared_ptr<HeldGrammars::Hold> hold_ = std::make_shared<HeldGrammars::Hold>();
  testing::TestServer server_{testing::test_options(), testing::kContext,
                              std::string(text::kDefaultChatTemplate),
                              std::make_unique<HeldGrammars>(hold_)};
};

TEST_F(HeldGrammarsTest, NobodyElseWaitsForAGrammar) {
  std::list<http::testing::RawClient> waiting;
  for (int i = 0; i < grammar::kCompilationsMax + 1; ++i) {
    waiting.emplace_back(server_.port()).send(constrained());
  }
  hold_->wait_for(hold_->begun, grammar::kCompilationsMax);
  EXPECT_THAT(server_.post("/v1/completions", R"({"prompt":"x"})"), HasSubstr(" 200 "));
  hold_->release();
  for (auto& client : waiting) {
    const std::string answer = client.read_all();
    EXPECT_THAT(answer, HasSubstr(" 429 "));
    EXPECT_THAT(answer, HasSubstr("Retry-After: "));
    EXPECT_THAT(answer, HasSubstr("`structured_outputs` cannot be compiled now"));
  }
}

TEST_F(HeldGrammarsTest, AClientThatLeavesTakesItsGrammarWithIt) {
  {
    std::list<http::testing::RawClient> leaving;
    for (int i = 0; i < grammar::kCompilationsMax; ++i) {
      leaving.emplace_back(server_.port()).send(constrained());
    }
    hold_->wait_for(hold_->begun, grammar::kCompilationsMax);
  }
  hold_->wait_for(hold_->cancelled, grammar::kCompilationsMax);
}

TEST_F(HeldGrammarsTest, AShutdownWaitsForGrammarsAndAnswers) {
  auto options = testing::test_options();
  options.shutdown_timeout = std::chrono::milliseconds{50};
  testing::TestServer server(options, testing::kContext, std::string(text::kDefaultChatTemplate),
                             std::make_unique<HeldGrammars>(hold_));
  http::testing::RawClient client(server.port());
  client.send(constrained());
  hold_->wait_for(hold_->begun, 1);
  server.server().interrupt();
  EXPECT_THAT(client.read_all(), HasSubstr(" 503 "));
  hold_->wait_for(hold_->cancelled, 1);
}

}  // namespace
}  // namespace api
