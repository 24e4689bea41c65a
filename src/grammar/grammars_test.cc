// Grammars over a vocabulary of single bytes, some longer tokens and special ones: random allowed
// tokens are drawn until the output ends, and what came out is judged by other means (a JSON
// parser, std::regex, plain comparison). Then where outputs may end, what reasoning does, what is
// refused and why, the cache and its bound.
#include "grammar/grammars.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <stop_token>

#include "grammar/work_limit.h"

namespace grammar {
namespace {

using core::TokenConstraint;
using core::TokenId;
using nlohmann::ordered_json;
using testing::HasSubstr;

constexpr TokenId kEnd = 256, kThink = 257, kEndThink = 258;
const std::vector<std::string> kLonger = {"{\"", "\": ",     "\", \"", "true",        "null",
                                          "  ",  "\n\n\n\n", "abc",    "12",          "}}",
                                          "\"}", "é",        "\t\"",   "</think>\n\n"};
constexpr TokenId kFirstLonger = 259;
const int32_t kVocab = kFirstLonger + static_cast<int32_t>(kLonger.size());

std::string_view bytes_of(TokenId id) {
  static const std::string all = [] {
    std::string bytes(256, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i);
    return bytes;
  }();
  if (id < kEnd) return std::string_view(all).substr(static_cast<size_t>(id), 1);
  if (id == kThink) return "<think>";
  if (id == kEndThink) return "</think>";
  return id == kEnd ? "" : std::string_view(kLonger[static_cast<size_t>(id - kFirstLonger)]);
}

class GrammarsTest : public testing::Test {
 protected:
  std::shared_ptr<TokenConstraint> begin(const Spec& spec, ConstraintOptions options = {{kEnd}}) {
    auto grammar = grammars_->compile(spec);
    EXPECT_TRUE(grammar.ok()) << (grammar.ok() ? "" : grammar.error().message);
    if (!grammar.ok()) return nullptr;
    auto constraint = grammar.value()->begin(std::move(options));
    EXPECT_TRUE(constraint.ok()) << (constraint.ok() ? "" : constraint.error().message);
    return constraint.ok() ? std::move(constraint).value() : nullptr;
  }

  // Whether `text`, a byte at a time, is a whole output.
  bool takes(const Spec& spec, std::string_view text) {
    auto constraint = begin(spec);
    if (constraint == nullptr) return false;
    for (const char& c : text) {
      if (!core::allows(constraint->mask(), static_cast<unsigned char>(c))) return false;
      const auto next = constraint->accept(static_cast<unsigned char>(c));
      if (next == TokenConstraint::Next::kMustEnd) return &c == &text.back();
    }
    return core::allows(constraint->mask(), kEnd);
  }

  // Draws until the output ends; letters less often than the rest, so that strings end. Nothing: it
  // did not within `max` tokens.
  std::optional<std::string> draw(TokenConstraint& constraint, int max = 600) {
    std::string text;
    for (int i = 0; i < max; ++i) {
      std::vector<TokenId> allowed;
      for (TokenId id = 0; id < kVocab; ++id) {
        if (!core::allows(constraint.mask(), id)) continue;
        const bool rare = id < kEnd && (std::isalpha(id) != 0 || id >= 0x80);
        if (!rare || random_() % 16 == 0) allowed.push_back(id);
      }
      if (allowed.empty()) continue;  // another draw of the rare ones
      const TokenId token = allowed[random_() % allowed.size()];
      if (token != kEnd) text += bytes_of(token);
      const auto next = constraint.accept(token);
      EXPECT_NE(next, TokenConstraint::Next::kFault) << constraint.fault() << " after " << text;
      if (next == TokenConstraint::Next::kMustEnd) return text;
      if (next == TokenConstraint::Next::kFault) return std::nullopt;
    }
    return std::nullopt;
  }

  // Feeds text byte by byte; how it ended.
  TokenConstraint::Next feed(TokenConstraint& constraint, std::string_view text) {
    auto next = TokenConstraint::Next::kGoesOn;
    for (const char c : text) {
      EXPECT_EQ(next, TokenConstraint::Next::kGoesOn) << "before " << c;
      next = constraint.accept(static_cast<unsigned char>(c));
    }
    return next;
  }

  base::Error refused(const Spec& spec) {
    auto made = grammars_->compile(spec);
    EXPECT_FALSE(made.ok());
    if (made.ok()) return {};
    EXPECT_EQ(made.error().message.find(".cc"), std::string::npos) << made.error().message;
    return made.error();
  }

  std::unique_ptr<Grammars> grammars_ = Grammars::create(kVocab, bytes_of);
  std::mt19937 random_{7};
};

Spec schema(std::string text, bool closed = true) {
  return {.kind = Spec::Kind::kJsonSchema, .text = std::move(text), .closed = closed};
}
Spec regex(std::string text) {
  return {.kind = Spec::Kind::kRegex, .text = std::move(text)};
}

// JSON as the standard has it; the parser wants numbers that a double holds and no half of a
// surrogate pair.
ordered_json parse(const std::string& text) {
  static const std::regex exponent("([0-9][eE][+-]?)[0-9]{3,}"), surrogate("\\\\u[dD]");
  const std::string tame = std::regex_replace(text, exponent, "$010");
  return ordered_json::parse(std::regex_replace(tame, surrogate, "\\u0"), nullptr, false);
}

int longest_white_space(const std::string& text) {
  int longest = 0, run = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (in_string && text[i] == '\\') {
      ++i;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    run = !in_string && std::isspace(static_cast<unsigned char>(text[i])) ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  return longest;
}

TEST_F(GrammarsTest, ObjectsParseAndWhiteSpaceIsBounded) {
  int ended = 0;
  for (int i = 0; i < 200; ++i) {
    auto constraint = begin({});
    const auto text = draw(*constraint);
    if (!text) continue;
    ++ended;
    EXPECT_TRUE(parse(*text).is_object()) << *text;
    EXPECT_LE(longest_white_space(*text), kWhitespaceMax) << *text;
  }
  EXPECT_GT(ended, 50);
}

TEST_F(GrammarsTest, AnswersFollowTheirSchema) {
  const Spec spec = schema(R"({"type":"object","properties":{
    "name":{"type":"string","minLength":2,"maxLength":5},"age":{"type":"integer","minimum":3,"maximum":120},
    "tags":{"type":"array","items":{"enum":["a","b",7]},"minItems":1,"maxItems":3},
    "child":{"anyOf":[{"type":"null"},{"$ref":"#/$defs/pair"}]}},
    "required":["name","age","tags"],"$defs":{"pair":{"type":"array","prefixItems":[{"type":"boolean"},{"type":"number"}],"minItems":2}}})");
  int ended = 0, with_child = 0;
  for (int i = 0; i < 200; ++i) {
    auto constraint = begin(spec);
    const auto text = draw(*constraint);
    if (!text) continue;
    ++ended;
    const ordered_json value = parse(*text);
    ASSERT_TRUE(value.is_object()) << *text;
    EXPECT_TRUE(value["name"].is_string() && value["name"].get<std::string>().size() >= 2) << *text;
    EXPECT_TRUE(value["age"] >= 3 && value["age"] <= 120) << *text;
    ASSERT_TRUE(value["tags"].size() >= 1 && value["tags"].size() <= 3) << *text;
    for (const auto& tag : value["tags"]) EXPECT_TRUE(tag == "a" || tag == "b" || tag == 7) << tag;
    with_child += value.contains("child");
    for (const auto& [key, unused] : value.items())
      EXPECT_TRUE(key == "name" || key == "age" || key == "tags" || key == "child") << key;
  }
  EXPECT_GT(ended, 100);
  EXPECT_GT(with_child, 5);
}

// XGrammar's class for strings of bounded length has control characters in it, which JSON has not.
TEST_F(GrammarsTest, BoundedStringsHaveNoControlCharacters) {
  auto constraint = begin(schema(R"({"type":"string","minLength":3,"maxLength":9})"));
  feed(*constraint, "\"a");
  for (TokenId id = 0; id < 0x20; ++id) EXPECT_FALSE(core::allows(constraint->mask(), id)) << id;
  for (TokenId id = kFirstLonger; id < kVocab; ++id) {
    const bool has_tab = bytes_of(id).find('\t') != std::string_view::npos;
    EXPECT_FALSE(has_tab && core::allows(constraint->mask(), id)) << id;
  }
  EXPECT_TRUE(core::allows(constraint->mask(), 'b'));
}

TEST_F(GrammarsTest, ExpressionsChoicesAndGrammarsHold) {
  const std::string pattern = "(\\d{3}-){2}[a-f]+(x|yy)?";
  const std::regex judge(pattern);
  const Spec ebnf{.kind = Spec::Kind::kEbnf,
                  .text = "root ::= \"(\" root \")\" | \"[\" [0-9] \"]\""};
  const Spec choice{.kind = Spec::Kind::kChoice,
                    .choices = {"yes", "no", "\"no\"\\", "two\nlines", "a\tbed", "Grüße", "yes!"}};
  for (int i = 0; i < 50; ++i) {
    auto constraint = begin(regex(pattern));
    const auto matching = draw(*constraint);
    EXPECT_TRUE(!matching || std::regex_match(*matching, judge)) << matching.value_or("");
    constraint = begin(ebnf);
    const auto nested = draw(*constraint, 100);
    if (nested) {
      const size_t depth = nested->find('[');
      EXPECT_EQ(nested->size(), 2 * depth + 3) << *nested;
    }
    constraint = begin(choice);
    const auto chosen = draw(*constraint, 2000);
    ASSERT_TRUE(chosen.has_value());
    EXPECT_THAT(choice.choices, testing::Contains(*chosen));
  }
}

// The library wrote escaped characters up to U+00FF as \x and two digits, and reads \x with as
// many digits as follow (cmake/four_digit_escapes.cmake).
TEST_F(GrammarsTest, LettersBeforeHexDigitsStayWhatTheyAre) {
  EXPECT_TRUE(takes(regex("[éa]{2}"), "aé"));
  EXPECT_TRUE(takes(regex("[àéèa-f]+"), "éàbè"));
  EXPECT_TRUE(takes(regex("préface[0-9]"), "préface7"));
  EXPECT_TRUE(takes(regex("[\x02"
                          "a-b]{3}"),
                    "a\x02"
                    "b"));
  EXPECT_TRUE(takes(regex("\\u00e9[\\u00e9a-b]"), "éa"));
  EXPECT_TRUE(takes(regex("[\\u00e9ab]"), "é"));
  EXPECT_TRUE(takes(regex("[^éa]"), "b"));
  EXPECT_FALSE(takes(regex("[^éa]"), "é"));
  EXPECT_FALSE(takes(regex("[^éa]"), "a"));
  const Spec object =
      schema(R"({"type":"object","properties":{"préface":{"const":"éa"},"b":{"enum":["äb","Ü1"]},
    "c":{"type":"string","pattern":"^[éa]+$"}},"required":["préface","b","c"]})");
  EXPECT_TRUE(takes(object, R"({"préface": "éa", "b": "Ü1", "c": "aé"})"));
  EXPECT_FALSE(takes(object, R"({"préface": "éb", "b": "Ü1", "c": "aé"})"));
  const Spec tag{.kind = Spec::Kind::kStructuralTag,
                 .text = R"({"type":"structural_tag","format":{"type":"sequence",
    "elements":[{"type":"const_string","value":"éa"},{"type":"regex","pattern":"[éb]"}]}})"};
  EXPECT_TRUE(takes(tag, "éaé"));
}

// A quote, a backslash or a control character of a pattern would end or break the string it is in.
TEST_F(GrammarsTest, PatternsLeaveTheirStringsJson) {
  const auto of = [](const std::string& pattern) {
    return schema(ordered_json{{"type", "string"}, {"pattern", pattern}}.dump());
  };
  for (const char* pattern :
       {R"(^a"b$)",  R"(^["]{3}$)", R"(^C:\\Users$)", R"(^\x22x$)", R"(^\u0022x$)",
        R"(^a\nb$)", R"([\t\n])",   R"(\cA)",         R"(\0)",      "é\tb",
        "^é.$",      "^é[^a]{3}$",  R"(é\s)",         R"(é\S+)",    R"(é\W)",
        R"(é\D)",    "[ -~é]+",     "[!-é]+",         "[A-zé]",     R"([é\[-\]])"}) {
    const base::Error why = refused(of(pattern));
    EXPECT_EQ(why.code, base::Code::kUnsupported) << pattern;
    EXPECT_THAT(why.message, HasSubstr("what JSON escapes")) << pattern;
  }
  for (const char* pattern :
       {R"(^[^a]{1,6}$)", R"(^.{1,6}$)", R"(^\W{2,6}$)", R"(^\S{2,6}$)", R"(^\D{2,6}$)",
        R"(^[ -~]{3,6}$)", R"(^\s?[\s\S]{2,4}$)", R"(^[^"\\]+$)", R"(^(?:"|x)+$)", R"([\w"]{4})",
        R"(^[éa-z\-#-Z]{1,3}\.\d\w€?$)", R"(^[é-]+(a|b)\/$)"}) {
    for (int i = 0; i < 20; ++i) {
      auto constraint = begin(of(pattern));
      ASSERT_NE(constraint, nullptr) << pattern;
      const auto text = draw(*constraint);
      EXPECT_TRUE(!text || ordered_json::accept(*text)) << pattern << ": " << *text;
    }
  }
}

TEST_F(GrammarsTest, FormatsLeaveTheirStringsJson) {
  const auto of = [](const char* format) {
    return schema(ordered_json{{"type", "string"}, {"format", format}}.dump());
  };
  for (const char* format :
       {"date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uri",
        "uri-reference", "uri-template", "uuid", "json-pointer", "relative-json-pointer"}) {
    for (int i = 0; i < 50; ++i) {
      auto constraint = begin(of(format));
      ASSERT_NE(constraint, nullptr) << format;
      const auto text = draw(*constraint);
      EXPECT_TRUE(!text || ordered_json::accept(*text)) << format << ": " << *text;
    }
  }
  EXPECT_TRUE(takes(of("json-pointer"), R"("/a b/~0é/")"));
  EXPECT_FALSE(takes(of("json-pointer"), "\"/a\nb\""));
  EXPECT_TRUE(takes(of("email"), R"("a.b@c.de")"));
  EXPECT_TRUE(takes(of("email"), R"("\"a b\"@c.de")"));
  EXPECT_FALSE(takes(of("email"), R"("\"\a\"@c.de")"));
}

// As type libraries write unions with a discriminator.
TEST_F(GrammarsTest, AlternativesMayBeReferences) {
  const std::string defs = R"("$defs":{
    "A":{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k","x"]},
    "B":{"type":"object","properties":{"k":{"const":"b"}},"required":["k"]},
    "C":{"$ref":"#/$defs/B"},"D":{"$ref":"#/$defs/D"}})";
  const auto of = [&](const std::string& first, const std::string& second) {
    return schema(R"({"oneOf":[{"$ref":"#/$defs/)" + first + R"("},{"$ref":"#/$defs/)" + second +
                  "\"}]," + defs + "}");
  };
  for (const char* second : {"B", "C"}) {
    EXPECT_TRUE(takes(of("A", second), R"({"k": "a", "x": 1})"));
    EXPECT_TRUE(takes(of("A", second), R"({"k": "b"})"));
    EXPECT_FALSE(takes(of("A", second), R"({"k": "a"})"));
  }
  for (const auto& same : {of("A", "A"), of("B", "C"), of("A", "D")})
    EXPECT_EQ(refused(same).code, base::Code::kUnsupported) << same.text;
}

TEST_F(GrammarsTest, DatesAndAddressesAreThere) {
  const auto takes_as = [&](const char* format, const std::string& text) {
    return takes(schema(ordered_json{{"type", "string"}, {"format", format}}.dump()),
                 '"' + text + '"');
  };
  for (const char* date : {"2023-01-31", "2023-02-28", "2024-02-29", "2000-02-29", "1996-02-29",
                           "2023-04-30", "2023-12-31", "2023-10-20"}) {
    EXPECT_TRUE(takes_as("date", date)) << date;
    EXPECT_TRUE(takes_as("date-time", std::string(date) + "T23:59:59.5Z")) << date;
  }
  for (const char* date : {"2023-02-29", "1900-02-29", "2023-02-30", "2023-04-31", "2023-11-31",
                           "2023-00-10", "2023-13-01", "2023-01-00"}) {
    EXPECT_FALSE(takes_as("date", date)) << date;
    EXPECT_FALSE(takes_as("date-time", std::string(date) + "T00:00:00Z")) << date;
  }
  for (const char* address : {"0.0.0.0", "255.249.199.99", "10.1.20.100"})
    EXPECT_TRUE(takes_as("ipv4", address)) << address;
  for (const char* address : {"010.0.0.1", "1.2.3.00", "256.1.1.1", "1.2.3"})
    EXPECT_FALSE(takes_as("ipv4", address)) << address;
}

TEST_F(GrammarsTest, EndsAreAllowedExactlyWhereTheOutputIsComplete) {
  auto constraint = begin(regex("ab(cd)*"));
  EXPECT_FALSE(core::allows(constraint->mask(), kEnd));
  feed(*constraint, "a");
  EXPECT_FALSE(core::allows(constraint->mask(), kEnd));
  EXPECT_EQ(feed(*constraint, "b"), TokenConstraint::Next::kGoesOn);
  EXPECT_TRUE(core::allows(constraint->mask(), kEnd));
  EXPECT_TRUE(core::allows(constraint->mask(), 'c'));
  feed(*constraint, "c");
  EXPECT_FALSE(core::allows(constraint->mask(), kEnd));
  feed(*constraint, "d");
  EXPECT_EQ(constraint->accept(kEnd), TokenConstraint::Next::kMustEnd);
  // Nothing can follow: it ends without a token of its own, also where none would end it.
  for (const ConstraintOptions& options : {ConstraintOptions{{kEnd}}, ConstraintOptions{}}) {
    constraint = begin(regex("ab"), options);
    EXPECT_EQ(feed(*constraint, "ab"), TokenConstraint::Next::kMustEnd);
  }
  // A stop token that the grammar could take in the middle ends, so it waits until the end may
  // come.
  constraint = begin(regex("a*b"), {{kEnd, 'a'}});
  EXPECT_FALSE(core::allows(constraint->mask(), 'a'));
}

TEST_F(GrammarsTest, MaskStaysInItsPlaceAndWithinTheVocabulary) {
  auto constraint = begin(regex("[^a]*"));
  const uint32_t* const words = constraint->mask().data();
  ASSERT_EQ(std::ssize(constraint->mask()), core::mask_words(kVocab));
  for (int i = 0; i < 20; ++i) {
    feed(*constraint, "z");
    EXPECT_EQ(constraint->mask().data(), words);
    EXPECT_EQ(constraint->mask().back() >> (kVocab % 32), 0u);
  }
}

TEST_F(GrammarsTest, GrammarBeginsBehindReasoning) {
  const ConstraintOptions thinks{.end_tokens = {kEnd}, .starts_after = "</think>"};
  auto constraint = begin(regex("yes|no"), thinks);
  feed(*constraint, "hm, </thin k> no");
  EXPECT_FALSE(core::allows(constraint->mask(), kEnd));
  EXPECT_TRUE(core::allows(constraint->mask(), kThink));
  EXPECT_EQ(constraint->accept(kEndThink), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(constraint->mask(), 'h'));
  EXPECT_EQ(feed(*constraint, "no"), TokenConstraint::Next::kMustEnd);
  // Its end spelled across tokens, the last of which goes on with white space.
  constraint = begin(regex("yes|no"), thinks);
  feed(*constraint, "</think");
  EXPECT_EQ(constraint->accept('>'), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(constraint->mask(), '\n'));
  constraint = begin(regex("yes|no"), thinks);
  EXPECT_EQ(constraint->accept(kVocab - 1), TokenConstraint::Next::kGoesOn);
  EXPECT_TRUE(core::allows(constraint->mask(), 'n'));
  EXPECT_FALSE(core::allows(constraint->mask(), '\n'));
}

TEST_F(GrammarsTest, ASpecialTokenMayEndReasoning) {
  auto constraint = begin(regex("yes|no"),
                          {.end_tokens = {kEnd}, .starts_after = "</unseen>", .closer = kEndThink});
  feed(*constraint, "abc");
  EXPECT_EQ(constraint->accept(kEndThink), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(constraint->mask(), 'h'));
}

TEST_F(GrammarsTest, ReasoningMayBeLeftOutWhereItHasAnOpener) {
  const ConstraintOptions may{.end_tokens = {kEnd}, .starts_after = "</think>", .opener = kThink};
  auto constraint = begin(regex("yes|no"), may);
  EXPECT_TRUE(core::allows(constraint->mask(), kThink));
  EXPECT_FALSE(core::allows(constraint->mask(), 'x'));
  EXPECT_EQ(feed(*constraint, "yes"), TokenConstraint::Next::kMustEnd);
  constraint = begin(regex("yes|no"), may);
  EXPECT_EQ(constraint->accept(kThink), TokenConstraint::Next::kGoesOn);
  feed(*constraint, "xyz");
  EXPECT_EQ(constraint->accept(kEndThink), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(constraint->mask(), kThink));
}

TEST_F(GrammarsTest, AFaultIsToldAndStays) {
  auto constraint = begin(regex("ab"));
  EXPECT_EQ(constraint->accept('b'), TokenConstraint::Next::kFault);
  EXPECT_THAT(constraint->fault(), HasSubstr("does not allow"));
  EXPECT_EQ(constraint->accept('a'), TokenConstraint::Next::kFault);
}

// Running text is free, tabs and all, and may end anywhere; a tag in it is bound once its trigger
// stands there, and may be begun with a special token where the vocabulary says what that is.
TEST_F(GrammarsTest, TagsInRunningText) {
  const Spec spec{.kind = Spec::Kind::kStructuralTag,
                  .text = R"({"type":"structural_tag","format":
      {"type":"triggered_tags","triggers":["<think>"],"excludes":["abc"],"tags":[{"begin":"<think>{",
       "content":{"type":"json_schema","json_schema":{"type":"string","maxLength":3}},"end":"}"}]}})",
                  .json = Spec::Json::kInTags};
  const auto in_text = begin(spec);
  ASSERT_NE(in_text, nullptr);
  EXPECT_TRUE(core::allows(in_text->mask(), kEnd));
  EXPECT_EQ(feed(*in_text, "a\tb <thin"), TokenConstraint::Next::kGoesOn);
  EXPECT_TRUE(core::allows(in_text->mask(), kEnd));
  EXPECT_TRUE(core::allows(in_text->mask(), '\t'));
  EXPECT_EQ(feed(*in_text, "k>"), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(in_text->mask(), kEnd));
  EXPECT_FALSE(core::allows(in_text->mask(), 'x'));
  EXPECT_EQ(feed(*in_text, "{\"a"), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(in_text->mask(), '\t'));
  EXPECT_EQ(feed(*in_text, "\"}x\t ab"), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(in_text->mask(), 'c')) << "excluded";
  EXPECT_EQ(in_text->accept(kEnd), TokenConstraint::Next::kMustEnd);

  const auto special_less = [](TokenId id) {
    return id == kThink ? std::string_view() : bytes_of(id);
  };
  const auto grammars = Grammars::create(kVocab, special_less, {.tag_bytes_of = bytes_of});
  auto tagged = grammars->compile(spec).value()->begin({.end_tokens = {kEnd}}).value();
  EXPECT_EQ(tagged->accept(kThink), TokenConstraint::Next::kGoesOn);
  EXPECT_TRUE(core::allows(tagged->mask(), '{'));
  EXPECT_FALSE(core::allows(tagged->mask(), 'x'));
  const auto plain =
      grammars->compile(regex("<think>")).value()->begin({.end_tokens = {kEnd}}).value();
  EXPECT_FALSE(core::allows(plain->mask(), kThink)) << "text has none";
}

TEST_F(GrammarsTest, BeforeItsStartAnOutputEndsOnlyIfItMay) {
  ConstraintOptions options{.end_tokens = {kEnd}, .starts_after = "</think>"};
  EXPECT_FALSE(core::allows(begin(regex("a+b"), options)->mask(), kEnd));
  options.may_end_before = true;
  const auto free = begin(regex("a+b"), options);
  EXPECT_EQ(feed(*free, "hm"), TokenConstraint::Next::kGoesOn);
  EXPECT_TRUE(core::allows(free->mask(), kEnd));
  EXPECT_EQ(feed(*free, "</think>a"), TokenConstraint::Next::kGoesOn);
  EXPECT_FALSE(core::allows(free->mask(), kEnd));
}

TEST_F(GrammarsTest, RefusesWithAReason) {
  using base::Code;
  EXPECT_EQ(refused(regex("(a")).code, Code::kInvalidArgument);
  EXPECT_EQ(refused(regex("")).code, Code::kInvalidArgument);
  EXPECT_EQ(refused({.kind = Spec::Kind::kEbnf, .text = "start ::= \"a\""}).code,
            Code::kInvalidArgument);
  EXPECT_EQ(refused({.kind = Spec::Kind::kEbnf, .text = "root ::= nothing"}).code,
            Code::kInvalidArgument);
  EXPECT_EQ(refused({.kind = Spec::Kind::kChoice}).code, Code::kInvalidArgument);
  EXPECT_EQ(refused({.kind = Spec::Kind::kChoice, .choices = {"a", ""}}).code,
            Code::kInvalidArgument);
  EXPECT_EQ(refused(schema("{")).code, Code::kInvalidArgument);
  EXPECT_EQ(refused(schema("[]")).code, Code::kInvalidArgument);
  EXPECT_EQ(refused(schema(R"({"type":"integer","minimum":3,"maximum":2})")).code,
            Code::kInvalidArgument);
  EXPECT_EQ(refused({.kind = Spec::Kind::kStructuralTag, .text = "{}"}).code,
            Code::kInvalidArgument);
  // What only the library knows not to be enforced.
  EXPECT_EQ(refused(schema(R"({"type":"number","multipleOf":0.5})")).code, Code::kUnsupported);
  for (const char* expression : {"(?=a)b", "(?<!a)b", "\\bword", "(a)\\1", "\\p{L}+"}) {
    const base::Error part = refused(regex(expression));
    EXPECT_EQ(part.code, Code::kUnsupported) << expression << ": " << part.message;
  }
  const base::Error one_of = refused(schema(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"));
  EXPECT_EQ(one_of.code, Code::kUnsupported);
  EXPECT_THAT(one_of.message, HasSubstr("oneOf"));
}

TEST_F(GrammarsTest, LimitsHaveTwoSides) {
  using base::Code;
  const auto with_bytes = [](size_t bytes) {
    return Spec{.kind = Spec::Kind::kChoice, .choices = {std::string(bytes, 'a')}};
  };
  EXPECT_TRUE(grammars_->compile(with_bytes(10'000)).ok());
  EXPECT_EQ(refused(with_bytes(kTextBytesMax + 1)).code, Code::kTooLarge);
  const auto nested = [](int depth) {
    return regex(std::string(static_cast<size_t>(depth), '(') + "a" +
                 std::string(static_cast<size_t>(depth), ')'));
  };
  EXPECT_TRUE(grammars_->compile(nested(kNestingMax)).ok());
  EXPECT_EQ(refused(nested(kNestingMax + 1)).code, Code::kTooLarge);
  Spec choices{.kind = Spec::Kind::kChoice};
  for (size_t i = 0; i < kChoicesMax; ++i) choices.choices.push_back(std::to_string(i));
  EXPECT_TRUE(grammars_->compile(choices).ok());
  choices.choices.push_back("one more");
  EXPECT_EQ(refused(choices).code, Code::kTooLarge);
  EXPECT_EQ(refused(regex("a{1,2000000}")).code, Code::kTooLarge);
  const auto at_once = Grammars::create(kVocab, bytes_of, {.compile_us = 0});
  EXPECT_EQ(at_once->compile(regex("abc")).error().code, Code::kTooLarge);
}

// A vocabulary that is not there before release(): a compilation that gets no processor.
class HeldVocabulary {
 public:
  std::function<std::string_view(TokenId)> bytes() {
    return [begun = begun_, held = held_](TokenId id) {
      ++*begun;
      begun->notify_all();
      held.wait();
      return bytes_of(id);
    };
  }
  void wait_until_begun() { begun_->wait(0); }
  void release() { release_.set_value(); }

 private:
  std::promise<void> release_;
  std::shared_future<void> held_ = release_.get_future().share();
  std::shared_ptr<std::atomic<int>> begun_ = std::make_shared<std::atomic<int>>(0);
};

TEST(WaitTest, OnlyItsOwnTimeMakesAGrammarHeavy) {
  HeldVocabulary vocabulary;
  const auto grammars =
      Grammars::create(kVocab, vocabulary.bytes(), {.compile_us = 0, .wait_us = 1000});
  for (int i = 0; i < kCompilationsMax + 1; ++i) {
    EXPECT_EQ(grammars->compile(regex("a")).error().code, base::Code::kOverloaded) << i;
  }
  vocabulary.release();
}

TEST(WaitTest, WhoLeavesGivesItsTurnBack) {
  HeldVocabulary vocabulary;
  const auto grammars = Grammars::create(kVocab, vocabulary.bytes());
  std::stop_source leave;
  const auto compile = [&] { return grammars->compile(regex("a"), leave.get_token()); };
  std::vector<std::future<base::Result<std::shared_ptr<const Grammar>>>> left;
  for (int i = 0; i < kCompilationsMax + 1; ++i)
    left.push_back(std::async(std::launch::async, compile));
  vocabulary.wait_until_begun();
  leave.request_stop();
  for (auto& result : left) EXPECT_EQ(result.get().error().code, base::Code::kCancelled);
  vocabulary.release();
  EXPECT_TRUE(grammars->compile(regex("b")).ok());
  EXPECT_NE(grammars->find(regex("b")), nullptr);
  EXPECT_EQ(grammars->find(regex("c")), nullptr);
}

TEST(WaitTest, ACancelledParserEnds) {
  std::atomic<bool> cancelled{false};
  const WorkLimit limit(600'000'000, &cancelled);
  EXPECT_NO_THROW(count_library_work(1));
  cancelled = true;
  EXPECT_THROW(count_library_work(1'000'000), WorkLimitReached);
}

// A chain of rules of which each may end where the last one does: after the first token the parser
// looks at millions of states for each byte of a token that may follow, which the limit has to end
// in the middle of it: else this test takes minutes.
TEST(ConstraintTest, AMaskThatTakesTooLongIsGivenUp) {
  constexpr TokenId kLongest = 1000;
  const std::string bs(kLongest, 'b');
  const auto bytes = [&bs](TokenId id) {
    return id <= kLongest ? std::string_view(bs).substr(0, static_cast<size_t>(id)) : "a";
  };
  const auto grammars = Grammars::create(kLongest + 2, bytes, {.compile_us = 600'000'000});
  std::string rules = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i) rules += fmt::format("r{} ::= r{} | r{} \"b\"\n", i, i + 1, i + 1);
  rules += "r2000 ::= \"a\"\n";
  const auto grammar = grammars->compile({.kind = Spec::Kind::kEbnf, .text = rules});
  ASSERT_TRUE(grammar.ok()) << grammar.error().message;
  const auto constraint = grammar.value()->begin({.end_tokens = {0}});
  ASSERT_TRUE(constraint.ok()) << constraint.error().message;
  EXPECT_EQ(constraint.value()->accept(kLongest + 1), TokenConstraint::Next::kFault);
  EXPECT_THAT(constraint.value()->fault(), HasSubstr("took too long"));
}

TEST_F(GrammarsTest, CompiledGrammarsAreKeptWithinABound) {
  ASSERT_TRUE(grammars_->compile(regex("[a-z]+")).ok());
  ASSERT_TRUE(grammars_->compile(regex("[a-z]+")).ok());
  EXPECT_EQ(grammars_->counters().compiled, 1);
  EXPECT_EQ(grammars_->counters().found, 1);
  const int64_t one = grammars_->counters().cached_bytes;
  EXPECT_GT(one, 0);
  // The same text in another meaning is another grammar.
  ASSERT_TRUE(grammars_->compile({.kind = Spec::Kind::kChoice, .choices = {"[a-z]+"}}).ok());
  EXPECT_EQ(grammars_->counters().compiled, 2);

  const auto small = Grammars::create(kVocab, bytes_of, {.cache_bytes = 3 * one});
  for (int i = 0; i < 20; ++i) {
    ASSERT_TRUE(small->compile(regex("[a-z]+" + std::to_string(i))).ok());
    EXPECT_LE(small->counters().cached_bytes, 3 * one);
  }
  ASSERT_TRUE(small->compile(regex("[a-z]+19")).ok());
  EXPECT_EQ(small->counters().found, 1);
  ASSERT_TRUE(small->compile(regex("[a-z]+0")).ok());
  EXPECT_EQ(small->counters().found, 1) << "the oldest had to go";
}

}  // namespace
}  // namespace grammar
