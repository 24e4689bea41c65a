// Evicted blocks go to disk and come back as what they were. The bytes are played by strings: each
// block and each record remembers the whole token sequence that it stands for, so that every prefix
// that the ledger finds can be compared with the prompt it was found for.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "kv/block_ledger.h"

namespace kv {
namespace {

constexpr int32_t kP = 4;

using Tokens = std::vector<TokenId>;

// The ledger with an executor that only remembers.
class World {
 public:
  explicit World(LedgerOptions options) : ledger_(with_pages(options)) {}

  struct Run {
    SequenceBlocks kv;
    Tokens tokens;
    std::string salt;
  };

  // Computes the whole prompt at once; returns how many tokens the cache had.
  int32_t start(Run* run, const std::string& salt, const Tokens& tokens) {
    run->tokens = tokens;
    run->salt = salt;
    run->kv.blocks.reserve(64);
    const auto match = ledger_.find_prefix(salt, tokens, std::ssize(tokens) - 1);
    const PrefixMatch whole = match.whole_blocks(kP);
    check(salt, tokens, whole.blocks);
    const int32_t found = whole.num_tokens;
    (void)ledger_.admit(&run->kv, salt, whole);
    ledger_.grow(&run->kv, ledger_.blocks_for(std::ssize(tokens)));
    run_step();
    for (size_t i = static_cast<size_t>(found / kP); i < run->kv.blocks.size(); ++i) {
      homes_[run->kv.blocks[i]] = written(salt, tokens, i);
    }
    ledger_.end_step(&run->kv, tokens, static_cast<int32_t>(tokens.size()),
                     static_cast<int32_t>(tokens.size()));
    return found;
  }
  void finish(Run* run) { ledger_.release(&run->kv); }
  void pass(const Tokens& tokens) {
    Run run;
    start(&run, "", tokens);
    finish(&run);
  }

  // What a waiting prompt does before it is admitted. Returns the blocks that came.
  int fetch(const std::string& salt, const Tokens& tokens) {
    const auto match = ledger_.find_prefix(salt, tokens, std::ssize(tokens) - 1);
    const auto records = ledger_.find_on_disk(salt, tokens, std::ssize(tokens) - 1, match);
    const auto n = std::min<int64_t>(std::ssize(records), ledger_.num_available() - match.num_idle);
    if (n <= 0) return 0;
    DiskFetch fetch;
    std::vector<core::DiskMove> moves;
    ledger_.begin_fetch(&fetch, salt, match, records.first(static_cast<size_t>(n)), &moves);
    run_step();
    std::vector<const SequenceBlocks*> held = running;
    held.push_back(&fetch.held);
    check_integrity(held);
    std::ranges::shuffle(moves, random_);
    int ended = 0;
    for (const core::DiskMove& move : moves) {
      const auto it = disk_.find(move.entry.record);
      const bool ok = it != disk_.end() && random_() % 1000 >= fetch_failures_per_mille;
      homes_[move.block] = ok ? it->second : "damaged";
      EXPECT_TRUE(!ok || it->second == record_name(move.entry)) << "another block's record";
      EXPECT_EQ(ledger_.end_fetch(&fetch, move.block, ok), ++ended == std::ssize(moves));
    }
    EXPECT_TRUE(fetch.empty());
    return ended;
  }

  // Spills before anything is written to the blocks that were taken.
  void run_step() {
    std::vector<core::DiskMove> spills;
    ledger_.take_spills(&spills);
    std::vector<uint64_t> unwritten;
    for (const core::DiskMove& spill : spills) {
      if (random_() % 1000 < write_failures_per_mille) {
        disk_.erase(spill.entry.record);
        unwritten.push_back(spill.entry.record);
        continue;
      }
      disk_[spill.entry.record] = homes_.at(spill.block);
      names_[key_of(spill.entry)] = homes_.at(spill.block);
      ++spilled_;
    }
    ledger_.end_spills(unwritten);
  }
  void check_integrity(std::vector<const SequenceBlocks*> held) { ledger_.check_integrity(held); }
  BlockLedger& ledger() { return ledger_; }
  size_t spilled() const { return spilled_; }

  std::vector<const SequenceBlocks*> running;  // while something is fetched
  uint32_t fetch_failures_per_mille = 0, write_failures_per_mille = 0;

 private:
  static LedgerOptions with_pages(LedgerOptions options) {
    options.page_tokens = kP;
    return options;
  }
  // What block i of a prompt holds.
  static std::string written(const std::string& salt, const Tokens& tokens, size_t i) {
    std::string text = salt + ":";
    for (size_t t = 0; t < std::min(tokens.size(), (i + 1) * kP); ++t)
      text += std::to_string(tokens[t]) + " ";
    return text;
  }
  void check(const std::string& salt, const Tokens& tokens, std::span<const BlockId> blocks) {
    for (size_t i = 0; i < blocks.size(); ++i)
      ASSERT_EQ(homes_[blocks[i]], written(salt, tokens, i)) << "wrong block found";
  }
  static std::pair<uint64_t, uint64_t> key_of(const core::DiskEntry& e) { return {e.key, e.check}; }
  std::string record_name(const core::DiskEntry& entry) { return names_[key_of(entry)]; }

  BlockLedger ledger_;
  std::map<BlockId, std::string> homes_;
  std::map<uint64_t, std::string> disk_;
  std::map<std::pair<uint64_t, uint64_t>, std::string> names_;
  std::mt19937 random_{1};
  size_t spilled_ = 0;
};

Tokens prompt(TokenId first, int32_t blocks) {
  Tokens tokens;
  for (int32_t i = 0; i < blocks * kP + 1; ++i) tokens.push_back(first + i);
  return tokens;
}

TEST(BlockLedgerDisk, APrefixComesBackFromDisk) {
  World world({.num_blocks = 6, .disk_records = 16});
  World::Run a, b;
  EXPECT_EQ(world.start(&a, "", prompt(0, 4)), 0);
  world.finish(&a);
  EXPECT_EQ(world.start(&b, "", prompt(1000, 4)), 0);  // needs 5 of 6: evicts
  world.finish(&b);
  EXPECT_GE(world.spilled(), 3u);
  EXPECT_GE(world.fetch("", prompt(0, 4)), 3);
  World::Run again;
  EXPECT_EQ(world.start(&again, "", prompt(0, 4)), 4 * kP);
  world.check_integrity({&again.kv});
  EXPECT_EQ(world.fetch("other salt", prompt(0, 4)), 0);
}

TEST(BlockLedgerDisk, AHeldBeginningGoesOnOnDisk) {
  World world({.num_blocks = 8, .disk_records = 16});
  World::Run a, b, c;
  world.start(&a, "", prompt(0, 4));
  Tokens shorter = prompt(0, 4);
  shorter.resize(2 * kP + 1);
  world.start(&b, "", shorter);  // holds the first two blocks
  world.finish(&a);
  world.start(&c, "", prompt(1000, 4));  // the last two are evicted
  world.finish(&c);
  world.running = {&b.kv};
  EXPECT_EQ(world.fetch("", prompt(0, 4)), 2);
  World::Run again;
  EXPECT_EQ(world.start(&again, "", prompt(0, 4)), 4 * kP);
  world.check_integrity({&again.kv, &b.kv});
}

TEST(BlockLedgerDisk, AFailedReadEndsThePrefixAndIsForgotten) {
  World world({.num_blocks = 6, .disk_records = 16});
  World::Run a, b;
  world.start(&a, "", prompt(0, 4));
  world.finish(&a);
  world.start(&b, "", prompt(1000, 5));
  world.finish(&b);
  world.fetch_failures_per_mille = 1000;
  EXPECT_GT(world.fetch("", prompt(0, 4)), 0);
  EXPECT_EQ(world.fetch("", prompt(0, 4)), 0) << "tried again";
  World::Run again;
  EXPECT_EQ(world.start(&again, "", prompt(0, 4)), 0);
  world.check_integrity({&again.kv});
}

TEST(BlockLedgerDisk, AFetchedBlockIsNotWrittenAgain) {
  World world({.num_blocks = 6, .disk_records = 64});
  World::Run run;
  for (int round = 0; round < 5; ++round) {
    for (const TokenId first : {0, 1000, 2000}) {
      world.fetch("", prompt(first, 4));
      world.start(&run, "", prompt(first, 4));
      world.finish(&run);
    }
  }
  EXPECT_EQ(world.spilled(), 3u * 4);
}

TEST(BlockLedgerDisk, DeterministicLeavesGeneratedBlocksOnDisk) {
  BlockLedger ledger(
      {.num_blocks = 4, .page_tokens = kP, .deterministic = true, .disk_records = 4});
  PrefixIndex keys({.num_blocks = 4, .page_tokens = kP});
  const Tokens tokens = prompt(0, 1);
  const auto block = std::span(tokens).first(kP);
  const PrefixKey root = keys.root_key(""), key = keys.next_key(root, block);
  ledger.disk()->restore({.record = 2,
                          .key = key.key,
                          .check = key.check,
                          .parent_key = root.key,
                          .generated = true,
                          .tokens = block});
  EXPECT_TRUE(ledger.find_on_disk("", tokens, kP, {}).empty());
  BlockLedger free({.num_blocks = 4, .page_tokens = kP, .disk_records = 4});
  free.disk()->restore({.record = 2,
                        .key = key.key,
                        .check = key.check,
                        .parent_key = root.key,
                        .generated = true,
                        .tokens = block});
  EXPECT_EQ(free.find_on_disk("", tokens, kP, {}).size(), 1u);
}

// Saves as an engine that ends does, `writes_max` a time and `rounds` at most; returns how many
// blocks have records.
int save_all(World& world, int32_t writes_max, int rounds = 100) {
  DiskSave save;
  world.ledger().begin_save(&save);
  bool more = true;
  while (more && rounds-- > 0) {
    more = world.ledger().plan_save(&save, writes_max);
    world.run_step();
  }
  const std::vector<uint64_t> records = world.ledger().end_save(&save);
  EXPECT_EQ(world.ledger().disk()->num_pinned(), 0);
  EXPECT_TRUE(save.blocks.empty());
  world.check_integrity({});
  return static_cast<int>(records.size());
}

// The blocks of the prompt that are on disk, from its first on: what a later process finds.
int on_disk(World& world, const Tokens& tokens) {
  return static_cast<int>(world.ledger().find_on_disk("", tokens, std::ssize(tokens), {}).size());
}

TEST(BlockLedgerDisk, ASaveWritesWhatOnlyMemoryHas) {
  World world({.num_blocks = 12, .disk_records = 32});
  world.pass(prompt(0, 4));
  world.pass(prompt(1000, 4));
  EXPECT_EQ(save_all(world, 3), 8);
  EXPECT_EQ(world.spilled(), 8u);
  EXPECT_EQ(save_all(world, 3), 8);
  EXPECT_EQ(world.spilled(), 8u) << "written again";
  EXPECT_EQ(on_disk(world, prompt(0, 4)), 4);
  EXPECT_EQ(on_disk(world, prompt(1000, 4)), 4);
}

TEST(BlockLedgerDisk, ASaveThatIsCutOffKeepsTheBeginningsLastUsed) {
  World world({.num_blocks = 12, .disk_records = 32});
  world.pass(prompt(0, 4));
  world.pass(prompt(1000, 4));
  EXPECT_EQ(save_all(world, 3, 1), 3);
  EXPECT_EQ(on_disk(world, prompt(0, 4)), 0);
  EXPECT_EQ(on_disk(world, prompt(1000, 4)), 3);
}

TEST(BlockLedgerDisk, ASaveGivesUpNoRecordThatWasUsedSince) {
  World world({.num_blocks = 12, .disk_records = 6});
  world.pass(prompt(0, 4));
  EXPECT_EQ(save_all(world, 3), 4);
  world.pass(prompt(1000, 4));
  EXPECT_EQ(save_all(world, 3), 6) << "all records, two of them the older prompt's";
  EXPECT_EQ(on_disk(world, prompt(1000, 4)), 4);
  EXPECT_EQ(on_disk(world, prompt(0, 4)), 2);
  // The next to go are the ends of what was used longest ago.
  world.pass(prompt(2000, 1));
  EXPECT_EQ(save_all(world, 3), 6);
  EXPECT_EQ(on_disk(world, prompt(2000, 1)), 1);
  EXPECT_EQ(on_disk(world, prompt(1000, 4)), 4);
  EXPECT_EQ(on_disk(world, prompt(0, 4)), 1);
}

TEST(BlockLedgerDisk, AStormNeverFindsAWrongBlock) {
  for (uint32_t seed = 0; seed < 30; ++seed) {
    World world({.num_blocks = 16,
                 .key_mask = seed % 2 == 0 ? 0x7u : ~0ull,  // keys that collide
                 .disk_records = 12});
    world.fetch_failures_per_mille = world.write_failures_per_mille = seed % 3 * 100;
    std::mt19937 random(seed);
    std::vector<World::Run> runs(3);
    for (const World::Run& run : runs) world.running.push_back(&run.kv);
    for (int i = 0; i < 400; ++i) {
      World::Run& run = runs[random() % runs.size()];
      if (!run.kv.blocks.empty()) {
        world.finish(&run);
      } else {
        // A few trees of prompts: the same beginnings, other ends.
        Tokens tokens;
        const auto blocks = 1 + random() % 4;
        for (size_t b = 0; b < blocks; ++b) {
          for (int32_t t = 0; t < kP; ++t)
            tokens.push_back(static_cast<TokenId>(random() % 2) * (t == 0));
        }
        tokens.push_back(5);
        const std::string salt = random() % 4 == 0 ? "salt" : "";
        world.fetch(salt, tokens);
        world.start(&run, salt, tokens);
      }
      if (HasFatalFailure()) FAIL() << "seed " << seed;
      world.check_integrity({&runs[0].kv, &runs[1].kv, &runs[2].kv});
    }
  }
}

}  // namespace
}  // namespace kv
