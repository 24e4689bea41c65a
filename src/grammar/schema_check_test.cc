// What of JSON Schema is refused and how it is named: one schema a line, and what its error says.
#include "grammar/schema_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace grammar {
namespace {

using base::Code;
using nlohmann::ordered_json;
using testing::HasSubstr;

void good(const std::string& text) {
  const auto checked = check_schema(ordered_json::parse(text));
  EXPECT_TRUE(checked.ok()) << text << ": " << (checked.ok() ? "" : checked.error().message);
}

void bad(const std::string& text, Code code, const std::string& what) {
  const auto checked = check_schema(ordered_json::parse(text));
  ASSERT_FALSE(checked.ok()) << text;
  EXPECT_EQ(checked.error().code, code) << text;
  EXPECT_THAT(checked.error().message, HasSubstr(what)) << text;
}

TEST(CheckSchema, TakesWhatIsEnforced) {
  good("true");
  good("{}");
  good(R"({"type":"object","properties":{"a":{"type":"string","pattern":"^a+$"}},"required":["a"],
           "additionalProperties":false,"title":"T","$schema":"x","x-unknown":{"not":1}})");
  good(R"({"type":["string","null"],"minLength":2,"default":null})");
  good(R"({"enum":[1,"a",null]})");
  good(R"({"type":"string","enum":["a","b"]})");
  good(R"({"type":["integer","null"],"enum":[1,2.0,null]})");
  good(R"({"properties":{"a":{"items":{"type":"number","minimum":2}}}})");
  good(R"({"allOf":[{"$ref":"#/$defs/a"}],"description":"d","$defs":{"a":{"type":"string"}}})");
  good(R"({"type":"object","properties":{"next":{"$ref":"#"}}})");
  good(R"({"type":"array","prefixItems":[{"type":"string"}],"items":false,"uniqueItems":false})");
  good(
      R"({"type":"object","patternProperties":{"^x":{"type":"integer"}},"additionalProperties":false})");
  good(R"({"type":"string","format":"who-knows"})");
  // Not reached, so it asserts nothing.
  good(R"({"type":"string","$defs":{"a":{"not":{}}}})");
}

TEST(CheckSchema, NamesWhatIsNotEnforced) {
  for (const char* name : {"not", "if", "then", "else", "dependencies", "contains", "minContains",
                           "maxContains", "$dynamicRef", "$recursiveRef", "additionalItems",
                           "dependentRequired", "dependentSchemas"}) {
    bad(R"({"type":"object","properties":{"a":{"type":"array",")" + std::string(name) +
            R"(":{}}}})",
        Code::kUnsupported, std::string("`") + name + "` at #/properties/a");
  }
  bad(R"({"type":"array","uniqueItems":true})", Code::kUnsupported, "`uniqueItems` at #");
  bad(R"({"type":"array","prefixItems":[{},{"not":{}}]})", Code::kUnsupported,
      "`not` at #/prefixItems/1");
  bad(R"({"type":"object","properties":{"a/b~":{"not":{}}}})", Code::kUnsupported,
      "`not` at #/properties/a~1b~0");
  bad(R"({"anyOf":[{"type":"null"}],"type":"object"})", Code::kUnsupported,
      "`type` beside `anyOf`");
  bad(R"({"$ref":"#","minLength":3})", Code::kUnsupported, "`minLength` beside `$ref`");
  bad(R"({"enum":["abc"],"maxLength":2})", Code::kUnsupported, "`maxLength` beside `enum`");
  bad(R"({"const":1,"anyOf":[{}]})", Code::kUnsupported, "`anyOf` beside `const`");
  bad(R"({"type":"string","enum":["a",1]})", Code::kUnsupported, "not of its `type`");
  bad(R"({"type":"integer","const":1.5})", Code::kUnsupported, "not of its `type`");
  bad(R"({"allOf":[{},{}]})", Code::kUnsupported, "`allOf` of several");
  bad(R"({"minimum":1})", Code::kUnsupported, "`minimum` without `type`");
  bad(R"({"required":["a"]})", Code::kUnsupported, "`required` without `type`");
  bad(R"({"properties":{},"minItems":1})", Code::kUnsupported, "`minItems` without `type`");
  bad(R"({"type":"string","pattern":"a","format":"date"})", Code::kUnsupported, "beside `format`");
  bad(R"({"type":"object","required":["a"]})", Code::kUnsupported, "`required` at #");
  bad(R"({"type":"object","patternProperties":{"a":{}}})", Code::kUnsupported,
      "`patternProperties`");
  bad(R"({"type":"object","properties":{"a":{}},"propertyNames":{"maxLength":3}})",
      Code::kUnsupported, "`propertyNames` beside `properties`");
  bad(R"({"$ref":"http://x/y"})", Code::kUnsupported, "`$ref` at #");
  bad(R"({"items":{"$ref":"#/$defs/a~1b"}})", Code::kUnsupported, "without escapes");
  bad(R"({"type":"array","items":{"$ref":"#/$defs/a"},"$defs":{"a":{"not":{}}}})",
      Code::kUnsupported, "`not` at #/items/$ref");
}

TEST(CheckSchema, RefusesWhatIsNoSchema) {
  bad("3", Code::kInvalidArgument, "# must be");
  bad(R"({"properties":[]})", Code::kInvalidArgument, "`properties` at #");
  bad(R"({"type":"object","properties":{"a":3}})", Code::kInvalidArgument,
      "#/properties/a must be");
  bad(R"({"anyOf":[]})", Code::kInvalidArgument, "`anyOf`");
  bad(R"({"$ref":"#/nowhere"})", Code::kInvalidArgument, "leads nowhere");
  bad(R"({"$ref":7})", Code::kInvalidArgument, "must be a string");
  bad(R"({"type":"string","minLength":-1})", Code::kInvalidArgument, "`minLength`");
  bad(R"({"type":"string","minLength":1.5})", Code::kInvalidArgument, "`minLength`");
  bad(R"({"type":"object","required":"a"})", Code::kInvalidArgument, "`required`");
}

std::string nested(int depth) {
  std::string text = "{}";
  for (int i = 1; i < depth; ++i) text = R"({"type":"array","items":)" + text + "}";
  return text;
}

TEST(CheckSchema, LimitsHaveTwoSides) {
  good(nested(kSchemaDepthMax));
  bad(nested(kSchemaDepthMax + 1), Code::kTooLarge, "nests more than");
  good(R"({"type":"string","maxLength":)" + std::to_string(kCountMax) + "}");
  bad(R"({"type":"string","maxLength":)" + std::to_string(kCountMax + 1) + "}", Code::kTooLarge,
      "`maxLength`");
  std::string many = R"({"anyOf":[{})";
  for (int i = 2; i < kSchemaNodesMax; ++i) many += ",{}";
  good(many + "]}");
  bad(many + ",{}]}", Code::kTooLarge, "subschemas");
}

TEST(CheckEscapes, NameCharacters) {
  for (const char* text : {R"(\x41)", R"([\x41-\x5a]g)", R"(\\x888888888)", R"(\u0041b)", "\\",
                           R"(\U0010ffff)", R"(\x)", R"(\d\w\.)"}) {
    EXPECT_TRUE(check_escapes(text).ok()) << text;
  }
  // The library makes one number of these, and overflows.
  for (const char* text : {R"(\x888888888)", R"(a\x41b)", R"(\U88888888)", R"(\U00110000)"}) {
    ASSERT_FALSE(check_escapes(text).ok()) << text;
    EXPECT_EQ(check_escapes(text).error().code, Code::kUnsupported);
  }
  bad(R"({"type":"string","pattern":"a\\x888888888"})", Code::kUnsupported, "`pattern` at #");
  bad(R"({"type":"object","patternProperties":{"\\x888888888":{}},"additionalProperties":false})",
      Code::kUnsupported, "two digits");
}

TEST(JsonDepth, CountsBracketsOutsideStrings) {
  EXPECT_EQ(json_depth("3"), 0);
  EXPECT_EQ(json_depth(R"({"a":[1,{"b":"}}]]["}]})"), 3);
  EXPECT_EQ(json_depth(R"(["\"[[["])"), 1);
  EXPECT_EQ(json_depth(std::string(1000, '[')), 1000);
}

}  // namespace
}  // namespace grammar
