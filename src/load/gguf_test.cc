// The container alone: every value type reads back, and each way of damaging a file is refused with
// a message that names the place. Files are written here, byte by byte.
#include "load/gguf.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "load/gguf_test_writer.h"

namespace load {
namespace {

using base::Code;
using testing::AllOf;
using testing::HasSubstr;

base::Result<GgufFile> parse(const std::string& bytes) {
  return GgufFile::parse("f.gguf", bytes_of(bytes));
}

void expect_refused(const std::string& bytes, Code code, const std::vector<std::string>& parts) {
  auto gguf = parse(bytes);
  ASSERT_FALSE(gguf.ok());
  EXPECT_EQ(gguf.error().code, code) << gguf.error().message;
  for (const std::string& part : parts) EXPECT_THAT(gguf.error().message, HasSubstr(part));
  EXPECT_EQ(gguf.error().message.find('\n'), std::string::npos);
}

TEST(Gguf, EveryValueTypeReadsBack) {
  GgufTestFile f;
  f.set_scalar("u8", GgufType::kUint8, uint8_t{200});
  f.set_scalar("i8", GgufType::kInt8, int8_t{-3});
  f.set_scalar("u16", GgufType::kUint16, uint16_t{60000});
  f.set_scalar("i16", GgufType::kInt16, int16_t{-30000});
  f.set_scalar("i32", GgufType::kInt32, int32_t{-7});
  f.set_scalar("u64", GgufType::kUint64, uint64_t{1} << 40);
  f.set_scalar("i64", GgufType::kInt64, int64_t{-5});
  f.set_scalar("huge", GgufType::kUint64, UINT64_MAX);
  f.set_scalar("f64", GgufType::kFloat64, 0.25);
  f.set("u32", 4000000000u);
  f.set("f32", 1.5f);
  f.set("yes", true);
  f.set("text", "words");
  f.set("texts", {"", "b c", std::string("\0", 1)});
  f.set_array<float>("floats", GgufType::kFloat32, {1.0f, -2.0f});
  f.set_array<int32_t>("ints", GgufType::kInt32, {4, -4});
  f.set_array<int16_t>("none", GgufType::kInt16, {});
  for (uint32_t version : {2u, 3u}) {
    f.version = version;
    const std::string bytes = f.build();
    auto gguf = parse(bytes);
    ASSERT_TRUE(gguf.ok()) << gguf.error().message;
    EXPECT_EQ(gguf->version(), version);
    EXPECT_EQ(gguf->integer("u8").value(), 200);
    EXPECT_EQ(gguf->integer("i8").value(), -3);
    EXPECT_EQ(gguf->integer("u16").value(), 60000);
    EXPECT_EQ(gguf->integer("i16").value(), -30000);
    EXPECT_EQ(gguf->integer("u32").value(), 4000000000);
    EXPECT_EQ(gguf->integer("i32").value(), -7);
    EXPECT_EQ(gguf->integer("u64").value(), int64_t{1} << 40);
    EXPECT_EQ(gguf->integer("i64").value(), -5);
    EXPECT_EQ(gguf->integer("absent").value(), std::nullopt);
    EXPECT_EQ(gguf->number("f32").value(), 1.5);
    EXPECT_EQ(gguf->number("f64").value(), 0.25);
    EXPECT_EQ(gguf->number("i8").value(), -3.0);
    EXPECT_EQ(gguf->boolean("yes").value(), true);
    EXPECT_EQ(gguf->string("text").value(), "words");
    EXPECT_THAT(gguf->strings("texts").value(),
                testing::ElementsAre("", "b c", std::string_view("\0", 1)));
    EXPECT_THAT(gguf->floats("floats").value(), testing::ElementsAre(1.0f, -2.0f));
    EXPECT_THAT(gguf->int32s("ints").value(), testing::ElementsAre(4, -4));
    EXPECT_EQ(gguf->find("none")->count, 0u);

    EXPECT_THAT(gguf->integer("huge").error().message,
                HasSubstr("'huge': expected an integer below 2^63"));
    EXPECT_THAT(gguf->integer("text").error().message, HasSubstr("found string"));
    EXPECT_THAT(gguf->boolean("u8").error().message,
                HasSubstr("f.gguf: key 'u8': expected a bool, found uint8"));
    EXPECT_THAT(gguf->floats("ints").error().message,
                HasSubstr("expected an array of float32, found array of 2 int32"));
  }
}

TEST(Gguf, TensorsAreWhereTheFileSays) {
  GgufTestFile f;
  f.alignment = 64;
  f.set("general.alignment", 64u);
  f.tensors.push_back({"odd", 0, {3}, std::string(12, 'o')});
  f.tensors.push_back({"q", 8, {32, 2}, std::string(68, 'q')});  // Q8_0
  const std::string bytes = f.build();
  auto gguf = parse(bytes);
  ASSERT_TRUE(gguf.ok()) << gguf.error().message;
  const GgufTensor* q = gguf->find_tensor("q");
  ASSERT_NE(q, nullptr);
  EXPECT_EQ(q->type, core::DType::kQ8_0);
  EXPECT_THAT(q->shape, testing::ElementsAre(2, 32));
  ASSERT_EQ(q->bytes.size(), 68u);
  EXPECT_EQ(static_cast<char>(q->bytes.front()), 'q');
  EXPECT_EQ(static_cast<char>(q->bytes.back()), 'q');
  EXPECT_EQ((reinterpret_cast<const char*>(q->bytes.data()) - bytes.data()) % 64, 0);
}

TEST(Gguf, RefusesOtherFiles) {
  expect_refused("PK\3\4 and so on, long enough", Code::kInvalidArgument,
                 {"f.gguf: expected a GGUF file", "'PK\\x03\\x04'"});
  expect_refused("GG", Code::kInvalidArgument, {"magic: expected 4 bytes at offset 0"});
  GgufTestFile f;
  f.version = 1;
  expect_refused(f.build(), Code::kUnsupported, {"expected GGUF version 2 or 3, found 1"});
  f.version = 3 << 24;
  expect_refused(f.build(), Code::kUnsupported, {"big-endian"});
}

TEST(Gguf, RefusesHugeClaimsWithoutBelievingThem) {
  const uint64_t huge = uint64_t{1} << 40;
  auto header = [](uint64_t tensors, uint64_t keys) {
    return ByteWriter().raw("GGUF").raw(uint32_t{3}).raw(tensors).raw(keys);
  };
  expect_refused(header(0, huge).bytes(), Code::kInvalidArgument, {"key: expected 8 bytes"});
  expect_refused(header(huge, 0).bytes(), Code::kInvalidArgument,
                 {"tensor name: expected 8 bytes"});
  expect_refused(header(0, 1).raw(huge).raw("k").bytes(), Code::kInvalidArgument,
                 {"key: expected a string of 1099511627776 bytes"});
  for (uint32_t element : {0u, 8u, 12u}) {  // uint8, string, float64
    auto file = header(0, 1).string("k").raw(uint32_t{9}).raw(element).raw(huge).raw("1234567");
    expect_refused(file.bytes(), Code::kInvalidArgument, {"key 'k': ", "1099511627776"});
    auto wraps = header(0, 1).string("k").raw(uint32_t{9}).raw(element).raw(UINT64_MAX / 8 + 2);
    expect_refused(wraps.bytes(), Code::kInvalidArgument, {"key 'k': "});
  }
}

TEST(Gguf, RefusesDamagedMetadata) {
  GgufTestFile f;
  f.set_encoded("bad\n", ByteWriter().raw(uint32_t{13}).raw(uint64_t{0}).bytes());
  expect_refused(f.build(), Code::kInvalidArgument,
                 {"key 'bad\\x0a': expected a value type of 0 to 12, found 13"});
  f.keys.clear();
  f.set_encoded("nest", ByteWriter().raw(uint32_t{9}).raw(uint32_t{9}).raw(uint64_t{0}).bytes());
  expect_refused(f.build(), Code::kInvalidArgument, {"key 'nest'", "found element type 9"});
  f.keys.clear();
  f.keys.emplace_back("twice", ByteWriter().raw(uint32_t{0}).raw(uint8_t{0}).bytes());
  f.keys.push_back(f.keys.back());
  expect_refused(f.build(), Code::kInvalidArgument, {"key 'twice': given twice"});
  for (uint32_t alignment : {0u, 3u, 1u << 30}) {
    f.keys.clear();
    f.set("general.alignment", alignment);
    expect_refused(
        f.build(), Code::kInvalidArgument,
        {"'general.alignment': expected a uint32 power of two", std::to_string(alignment)});
  }
}

TEST(Gguf, RefusesDamagedTensors) {
  const GgufTestTensor good{"t", 0, {4}, std::string(16, '\0')};
  struct Case {
    GgufTestTensor tensor;
    Code code;
    std::vector<std::string> parts;
  };
  const std::vector<Case> cases = {
      {{"t", 0, {}, ""},
       Code::kInvalidArgument,
       {"tensor 't': expected 1 to 4 dimensions, found 0"}},
      {{"t", 0, {1, 1, 1, 1, 1}, ""}, Code::kInvalidArgument, {"found 5"}},
      {{"t", 0, {4, 0}, ""},
       Code::kInvalidArgument,
       {"dimensions above 0", "found 0 at dimension 1"}},
      {{"t", 0, {1ull << 40, 1ull << 40}, ""}, Code::kInvalidArgument, {"below 2^63"}},
      {{"t", 0, {1ull << 62}, ""}, Code::kInvalidArgument, {"less than 2^63 bytes"}},
      {{"t", 0, {UINT64_MAX}, ""}, Code::kInvalidArgument, {"below 2^63"}},
      {{"t", 0, {1ull << 40}, ""},
       Code::kInvalidArgument,
       {"expected 4398046511104 bytes", "complete?"}},
      {{"t", 11, {256}, ""}, Code::kUnsupported, {"tensor 't': tensor type Q3_K is not supported"}},
      {{"t", 39, {256}, ""}, Code::kUnsupported, {"MXFP4"}},
      {{"t", 4, {256}, ""}, Code::kUnsupported, {"tensor type 4 "}},
      {{"t", 12, {128}, ""}, Code::kInvalidArgument, {"multiple of 256 (Q4_K), found 128"}},
      {{"t", 0, {5}, std::string(16, '\0')}, Code::kInvalidArgument, {"expected 20 bytes"}},
  };
  for (const Case& c : cases) {
    GgufTestFile f;
    f.alignment = 1;
    f.set("general.alignment", 1u);
    f.tensors.push_back(c.tensor);
    expect_refused(f.build(), c.code, c.parts);
  }
  GgufTestFile f;
  f.tensors = {good, good};
  expect_refused(f.build(), Code::kInvalidArgument, {"tensor 't': named twice"});
}

TEST(Gguf, RefusesOverlapAndMisalignment) {
  auto file = [](uint64_t second_offset) {
    ByteWriter w;
    w.raw("GGUF").raw(uint32_t{3}).raw(uint64_t{2}).raw(uint64_t{0});
    w.string("a").raw(uint32_t{1}).raw(uint64_t{16}).raw(uint32_t{0}).raw(uint64_t{0});
    w.string("b").raw(uint32_t{1}).raw(uint64_t{8}).raw(uint32_t{0}).raw(second_offset);
    std::string bytes = w.bytes();
    bytes.resize((bytes.size() + 31) / 32 * 32 + 96);
    return bytes;
  };
  EXPECT_TRUE(parse(file(64)).ok());
  expect_refused(file(32), Code::kInvalidArgument,
                 {"tensor 'b': expected bytes of its own at offset 32, found those of tensor 'a', "
                  "which end at 64"});
  expect_refused(file(65), Code::kInvalidArgument,
                 {"tensor 'b': expected an offset that is a multiple of 32"});
  expect_refused(file(96), Code::kInvalidArgument,
                 {"tensor 'b': expected 32 bytes at offset 96", "found 96 bytes"});
  expect_refused(file(UINT64_MAX - 31), Code::kInvalidArgument, {"tensor 'b'"});
}

}  // namespace
}  // namespace load
