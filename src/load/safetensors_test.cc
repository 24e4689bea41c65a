// The container alone: tensors come back as written; every damage is refused with a message that
// names file and key; a valid file cut anywhere is an error.
#include "load/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "load/safetensors_test_writer.h"

namespace load {
namespace {

using base::Code;
using testing::HasSubstr;

base::Result<SafetensorsFile> parse(const std::string& file) {
  return SafetensorsFile::parse("m.safetensors",
                                {reinterpret_cast<const std::byte*>(file.data()), file.size()});
}

void expect_refused(const std::string& file, const std::vector<std::string>& parts,
                    Code code = Code::kInvalidArgument) {
  auto parsed = parse(file);
  ASSERT_FALSE(parsed.ok()) << parts[0];
  EXPECT_EQ(parsed.error().code, code) << parsed.error().message;
  EXPECT_THAT(parsed.error().message, HasSubstr("m.safetensors: "));
  for (const std::string& part : parts) EXPECT_THAT(parsed.error().message, HasSubstr(part));
  EXPECT_EQ(parsed.error().message.find('\n'), std::string::npos);
}

// One F16 tensor "t" of shape (2, 3) with its fields as given, over 12 bytes of data.
std::string with(const std::string& fields, size_t data_bytes = 12) {
  return safetensors_bytes("{\"t\":{" + fields + "}}", std::string(data_bytes, 'x'));
}

TEST(Safetensors, ReadsBack) {
  SafetensorsTestFile f;
  f.add("a", {2, 3}, "F32");
  f.add("b", {4});
  f.add("scalar", {});
  const std::string bytes = f.build();
  auto parsed = parse(bytes);
  ASSERT_TRUE(parsed.ok()) << parsed.error().message;
  ASSERT_EQ(parsed->tensors().size(), 3u);
  const SafetensorsTensor& a = parsed->tensors().at("a");
  EXPECT_EQ(a.type, "F32");
  EXPECT_THAT(a.shape, testing::ElementsAre(2, 3));
  EXPECT_EQ(a.bytes.size(), 24u);
  EXPECT_EQ(static_cast<int>(a.bytes.back()), 1);
  EXPECT_EQ(static_cast<int>(parsed->tensors().at("b").bytes.front()), 2);
  EXPECT_EQ(parsed->tensors().at("scalar").bytes.size(), 2u);
}

TEST(Safetensors, HeaderLength) {
  expect_refused("1234567", {"8 bytes or more, found 7"});
  std::string huge = with("");
  const uint64_t length = uint64_t{1} << 40;
  std::memcpy(huge.data(), &length, sizeof(length));
  expect_refused(huge, {"found a length of 1099511627776"});
  expect_refused(safetensors_bytes("not json", ""), {"expected JSON"});
  expect_refused(safetensors_bytes("[1]", ""), {"expected a JSON object, found an array"});
  expect_refused(safetensors_bytes(std::string(5000, '['), ""), {"expected JSON"});
}

TEST(Safetensors, Fields) {
  const std::string good = R"("dtype":"F16","shape":[2,3],"data_offsets":[0,12])";
  EXPECT_TRUE(parse(with(good)).ok());
  expect_refused(with(R"("shape":[2,3],"data_offsets":[0,12])"),
                 {"key 't.dtype': expected a string, found none"});
  expect_refused(with(R"("dtype":"F16","data_offsets":[0,12])"),
                 {"key 't.shape': expected an array of sizes, found none"});
  expect_refused(with(R"("dtype":"F16","shape":[2,3])"),
                 {"key 't.data_offsets': expected [begin, end], found none"});
  expect_refused(with(R"("dtype":"F4","shape":[2,3],"data_offsets":[0,12])"),
                 {"'t.dtype'", "found 'F4'"}, Code::kUnsupported);
  expect_refused(with(R"("dtype":"F16","shape":[-2,3],"data_offsets":[0,12])"),
                 {"'t.shape'", "found -2 in it"});
  expect_refused(with(R"("dtype":"F16","shape":[2.5],"data_offsets":[0,12])"),
                 {"'t.shape'", "found 2.5 in it"});
  expect_refused(with(R"("dtype":"F16","shape":[4294967296,4294967296],"data_offsets":[0,12])"),
                 {"'t.shape': expected dimensions"});
  expect_refused(with(R"("dtype":"F16","shape":[18446744073709551615],"data_offsets":[0,12])"),
                 {"'t.shape'"});
  expect_refused(with(R"("dtype":"F16","shape":[2,3],"data_offsets":[0,13])"),
                 {"within 12 bytes of data", "found [0, 13]"});
  expect_refused(with(R"("dtype":"F16","shape":[2,3],"data_offsets":[12,0])"), {"found [12, 0]"});
  expect_refused(with(R"("dtype":"F16","shape":[2,3],"data_offsets":[0])"), {"found [1 numbers]"});
  expect_refused(with(R"("dtype":"F16","shape":[2,2],"data_offsets":[0,12])"),
                 {"expected 8 bytes for its type and shape, found 12"});
  expect_refused(with(good + R"(,"extra":1)"),
                 {"key 't.extra': expected only dtype, shape and data_offsets"});
  expect_refused(with(good + R"(,"dtype":"F16")"), {"key 't.dtype': given twice"});
  expect_refused(with(good, 13), {"expected 12 bytes of data as its header says, found 13"});
}

TEST(Safetensors, NoOverlapAndNoHole) {
  auto two = [](int begin, size_t data) {
    return safetensors_bytes(
        fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},)"
                    R"("b":{{"dtype":"U8","shape":[4],"data_offsets":[{},{}]}}}})",
                    begin, begin + 4),
        std::string(data, 'x'));
  };
  EXPECT_TRUE(parse(two(4, 8)).ok());
  expect_refused(two(3, 7),
                 {"tensor 'b': expected data from byte 4 on (no overlap, no hole), found 3"});
  expect_refused(two(5, 9), {"tensor 'b': expected data from byte 4", "found 5"});
}

TEST(Safetensors, CutFilesAreErrors) {
  const std::string whole = tiny_safetensors().build();
  for (size_t size = 0; size < whole.size(); size += size < 4096 ? 7 : 64) {
    const std::string cut = whole.substr(0, size);
    EXPECT_FALSE(parse(cut).ok()) << size;
  }
}

TEST(Safetensors, ChangedBytesNeverDoWorseThanAnError) {
  const std::string whole = tiny_safetensors().build();
  int read_anyway = 0;
  for (size_t at = 0; at < 2048; ++at) {
    for (uint8_t mask : {0x01, 0x80, 0xFF}) {
      std::string changed = whole;
      changed[at] = static_cast<char>(changed[at] ^ mask);
      read_anyway += parse(changed).ok();
    }
  }
  EXPECT_GT(read_anyway, 0);  // names
}

}  // namespace
}  // namespace load
