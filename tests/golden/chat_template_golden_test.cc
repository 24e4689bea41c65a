// Goal: chat templates render byte for byte as Python's Jinja renders them in Hugging Face's
// environment. Method: every template with every conversation of data/chat_conversations.json
// against make_chat_template_golden.py's results: our own templates in full, published ones
// (fetched by `tools/fixtures templates`) by the hash of the rendering. Where Python refuses we
// must refuse too.
#include <gtest/gtest.h>
#include <openssl/sha.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "text/chat_template.h"

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr int64_t kNow = 1'733'000'000;

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

Json read_data(const std::string& name) {
  return Json::parse(read_file(fs::path(SPILLWAY_SOURCE_DIR) / "tests/golden/data" / name));
}

std::string sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string hex;
  for (const unsigned char byte : digest) hex += fmt::format("{:02x}", byte);
  return hex;
}

base::Result<std::string> render(const std::string& source, const Json& context) {
  ASSIGN_OR_RETURN(const text::ChatTemplate chat, text::ChatTemplate::parse(source));
  return chat.render(context, kNow);
}

// A feature each: make_jinja_golden.py.
TEST(ChatTemplateGolden, Features) {
  const Json golden = read_data("jinja_golden.json");
  for (const auto& row : golden["rows"]) {
    const auto got = render(row[0].get<std::string>(), golden["context"]);
    const Json text = got.ok() ? Json(*got) : Json();
    EXPECT_EQ(text, row[1]) << row[0] << ": " << (got.ok() ? "rendered" : got.error().message);
  }
}

TEST(ChatTemplateGolden, OwnTemplates) {
  const Json cases = read_data("chat_conversations.json");
  const Json golden = read_data("chat_template_own_golden.json");
  const fs::path folder = fs::path(SPILLWAY_SOURCE_DIR) / "tests/data/templates";
  ASSERT_GE(golden.size(), 12u);
  for (const auto& [name, row] : golden.items()) {
    const std::string source = read_file(folder / name);
    ASSERT_FALSE(source.empty()) << name;
    for (const auto& [conversation, expected] : row.items()) {
      const auto got = render(source, cases.at(conversation));
      ASSERT_EQ(got.ok(), expected.is_string())
          << name << " " << conversation << ": " << (got.ok() ? *got : got.error().message);
      if (got.ok()) {
        EXPECT_EQ(*got, expected.get<std::string>()) << name << " " << conversation;
      }
    }
  }
}

TEST(ChatTemplateGolden, PublishedTemplates) {
  const char* const home = std::getenv("HOME");
  const fs::path folder =
      fs::path(home == nullptr ? "/" : home) / ".cache/spillway/fixtures/templates";
  if (!fs::is_directory(folder))
    GTEST_SKIP() << folder << " is not there: run tools/fixtures templates";
  const Json cases = read_data("chat_conversations.json");
  const Json golden = read_data("chat_template_golden.json");
  int equal = 0, refused = 0;
  for (const auto& [name, row] : golden.items()) {
    const std::string source = read_file(folder / name);
    ASSERT_FALSE(source.empty()) << folder / name;
    for (const auto& [conversation, expected] : row.items()) {
      const auto got = render(source, cases.at(conversation));
      const std::string digest = got.ok() ? sha256(*got) : "error";
      EXPECT_EQ(digest, expected.get<std::string>())
          << name << " " << conversation << ": " << (got.ok() ? "rendered" : got.error().message);
      (got.ok() ? equal : refused) += digest == expected.get<std::string>() ? 1 : 0;
    }
  }
  RecordProperty("equal", equal);
  RecordProperty("refused", refused);
}

}  // namespace
