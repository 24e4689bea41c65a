// Goal: batches become the messages that vLLM's subscribers read. Method: small batches are
// encoded, read back and compared as JSON, in both formats; blocks of one chain share an event, and
// no event comes before the one whose block it stands on.
#include "events/kv_event_codec.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace events {
namespace {

using core::KvEvent;
using core::KvMedium;
using nlohmann::json;

struct Batch {
  std::vector<KvEvent> events;
  std::vector<core::TokenId> tokens;
  std::string salts;

  Batch& stored(KvMedium medium, uint64_t key, uint64_t parent, const std::string& salt = "") {
    events.push_back({.kind = KvEvent::Kind::kStored,
                      .medium = medium,
                      .key = key,
                      .parent_key = parent,
                      .has_parent = parent != 0,
                      .salt_bytes = static_cast<uint32_t>(salt.size())});
    tokens.push_back(static_cast<core::TokenId>(10 * key));
    tokens.push_back(static_cast<core::TokenId>(10 * key + 1));
    salts += salt;
    return *this;
  }
  Batch& removed(KvMedium medium, uint64_t key) {
    events.push_back({.kind = KvEvent::Kind::kRemoved, .medium = medium, .key = key});
    return *this;
  }
  Batch& cleared() {
    events.push_back({.kind = KvEvent::Kind::kCleared});
    return *this;
  }
  json read(bool positional = false) const {
    const auto bytes = encode({12.5, 2, events, tokens, salts}, positional);
    const json payload = json::from_msgpack(bytes);
    EXPECT_EQ(payload.size(), 3u);
    EXPECT_EQ(payload[0], 12.5);
    EXPECT_EQ(payload[2], 0);
    return payload[1];
  }
};

TEST(KvEventCodec, WritesMaps) {
  const json events = Batch().cleared().stored(KvMedium::kHost, ~0ull, 0).read();
  EXPECT_EQ(events[0], json::parse(R"({"type":"AllBlocksCleared"})"));
  EXPECT_EQ(events[1], json({{"type", "BlockStored"},
                             {"block_hashes", {~0ull}},
                             {"parent_block_hash", nullptr},
                             {"token_ids", {-10, -9}},
                             {"block_size", 2},
                             {"lora_id", nullptr},
                             {"medium", "CPU"},
                             {"lora_name", nullptr}}));
  EXPECT_EQ(Batch().removed(KvMedium::kDisk, 7).read(),
            json::parse(R"([{"type":"BlockRemoved","block_hashes":[7],"medium":"DISK"}])"));
}

TEST(KvEventCodec, WritesArrays) {
  const json events = Batch()
                          .cleared()
                          .removed(KvMedium::kDevice, 7)
                          .stored(KvMedium::kDevice, 2, 1)
                          .read(/*positional=*/true);
  EXPECT_EQ(events, json::parse(R"([["AllBlocksCleared"], ["BlockRemoved", [7], "GPU"],
                                    ["BlockStored", [2], 1, [20, 21], 2, null, "GPU", null]])"));
}

TEST(KvEventCodec, TellsTheSaltOfAFirstBlock) {
  const Batch batch = Batch()
                          .stored(KvMedium::kHost, 1, 0, "s")
                          .stored(KvMedium::kHost, 2, 1)
                          .stored(KvMedium::kHost, 3, 0, "tt");
  const json events = batch.read();
  EXPECT_EQ(events[0]["extra_keys"], json::parse(R"([["s"], null])"));
  EXPECT_EQ(events[1]["extra_keys"], json::parse(R"([["tt"]])"));
  EXPECT_EQ(batch.read(true)[0][8], json::parse(R"([["s"], null])"));
}

TEST(KvEventCodec, JoinsChainsInEachMedium) {
  const json events = Batch()
                          .removed(KvMedium::kHost, 8)
                          .removed(KvMedium::kHost, 9)
                          .removed(KvMedium::kDevice, 9)
                          .stored(KvMedium::kDevice, 1, 0)
                          .stored(KvMedium::kHost, 1, 0)
                          .stored(KvMedium::kDevice, 2, 1)
                          .stored(KvMedium::kHost, 2, 1)
                          .stored(KvMedium::kHost, 5, 1)
                          .read();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0]["block_hashes"], json({8, 9}));
  EXPECT_EQ(events[1]["medium"], "GPU");
  EXPECT_EQ(events[2]["block_hashes"], json({1, 2}));
  EXPECT_EQ(events[2]["medium"], "GPU");
  EXPECT_EQ(events[2]["token_ids"], json({10, 11, 20, 21}));
  EXPECT_EQ(events[3]["block_hashes"], json({1, 2}));
  EXPECT_EQ(events[3]["medium"], "CPU");
  EXPECT_EQ(events[4]["parent_block_hash"], 1);
}

// 3 stands on 2, which is known to be at home only; the run of homes began before it.
TEST(KvEventCodec, NoBlockComesBeforeItsParent) {
  const json events = Batch()
                          .stored(KvMedium::kDevice, 1, 0)
                          .stored(KvMedium::kHost, 2, 1)
                          .stored(KvMedium::kDevice, 3, 2)
                          .stored(KvMedium::kDevice, 4, 1)
                          .read();
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0]["block_hashes"], json({1}));
  EXPECT_EQ(events[1]["block_hashes"], json({2}));
  EXPECT_EQ(events[2]["block_hashes"], json({3}));
  EXPECT_EQ(events[3]["block_hashes"], json({4}));
}

}  // namespace
}  // namespace events
