// Goal: what people type for vLLM and what they write into a config file means what it says, and
// what cannot be meant is refused by name. Method: a small app with options of serve's kinds; the
// arguments that come out are compared as they would be parsed.
#include "apps/typed_options.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>

#include "apps/options.h"

namespace apps {
namespace {

class Typed : public ::testing::Test {
 protected:
  Typed() {
    add_log_options(app_, &logs_);
    CLI::App* serve = app_.add_subcommand("serve");
    add_model_options(*serve, &serving_);
    add_listen_options(*serve, &listen_);
    add_engine_options(*serve, &serving_);
    add_vllm_options(*serve, &serving_);
    add_log_options(*serve, &logs_);
    CLI::App* inspect = app_.add_subcommand("inspect");
    add_model_options(*inspect, &inspected_);
  }
  ~Typed() override { std::remove(path_.c_str()); }

  std::string config(const std::string& text) {
    std::ofstream(path_) << text;
    return path_;
  }

  // Reads and parses; "" or the message.
  std::string parse(std::vector<std::string> typed) {
    auto line = read_command_line(app_, typed);
    if (!line.ok()) return line.error().message;
    note_ = line->note;
    std::vector<std::string> arguments(line->arguments.rbegin(), line->arguments.rend());
    try {
      app_.parse(std::move(arguments));
    } catch (const CLI::ParseError& e) {
      return e.what();
    }
    return "";
  }

  CLI::App app_;
  ServingOptions serving_, inspected_;
  ListenOptions listen_;
  LogOptions logs_;
  std::string note_;
  const std::string path_ = ::testing::TempDir() + "typed_options_test.toml";
};

TEST_F(Typed, UnderscoresAreHyphensInNamesAlone) {
  EXPECT_EQ(parse({"serve", "a_b.gguf", "--max_num_seqs", "3", "--served_model_name=x_y"}), "");
  EXPECT_EQ(serving_.model, "a_b.gguf");
  EXPECT_EQ(serving_.max_num_seqs, 3);
  EXPECT_EQ(listen_.served_model_names, std::vector<std::string>{"x_y"});
  EXPECT_EQ(note_, "");
}

TEST_F(Typed, VllmsSpellingsBecomeOurs) {
  EXPECT_EQ(parse({"serve",
                   "--model",
                   "m.gguf",
                   "--block_size",
                   "16",
                   "--max-model-len",
                   "32k",
                   "--gpu-memory-utilization=0.92",
                   "--kv-offloading-size",
                   "64",
                   "-tp",
                   "1",
                   "--kv-cache-dtype",
                   "auto",
                   "-q",
                   "fp8",
                   "--disable-log-requests",
                   "--enable-auto-tool-choice",
                   "--dtype",
                   "bfloat16",
                   "--seed",
                   "7"}),
            "");
  EXPECT_EQ(serving_.model, "m.gguf");
  EXPECT_EQ(serving_.kv.page_size, 16);
  EXPECT_EQ(serving_.max_model_len, 32000);
  EXPECT_EQ(serving_.device_memory, "92%");
  EXPECT_EQ(serving_.kv.host_memory, "64GiB");
  EXPECT_EQ(serving_.kv_cache_dtype, "bf16");
  EXPECT_EQ(serving_.weights, "fp8");
  EXPECT_FALSE(listen_.log_requests);
  EXPECT_EQ(listen_.seed, 7u);
  EXPECT_NE(note_.find("--block-size 16 is --page-size 16; --max-model-len 32k is "
                       "--max-model-len 32000; --gpu-memory-utilization 0.92 is --device-memory "
                       "92%"),
            std::string::npos)
      << note_;
  EXPECT_NE(note_.find("-tp 1 needs no saying: one device"), std::string::npos) << note_;
  EXPECT_EQ(note_.find("--seed"), std::string::npos) << "that one is ours";
}

TEST_F(Typed, KAreThousandsOr1024s) {
  EXPECT_EQ(parse({"serve", "m", "--max-num-batched-tokens", "2k"}), "");
  EXPECT_EQ(serving_.max_num_batched_tokens, 2000);
  EXPECT_EQ(parse({"serve", "m", "--max-model-len", "32K"}), "");
  EXPECT_EQ(serving_.max_model_len, 32768);
}

// Preset and model say what it is (presets_test.cc).
TEST_F(Typed, AThresholdForLongPromptsIsKeptForLater) {
  EXPECT_EQ(parse({"serve", "m", "--long_prefill_token_threshold", "0"}), "");
  EXPECT_EQ(note_, "--long-prefill-token-threshold 0 needs no saying");
  EXPECT_EQ(serving_.kv.long_prefill_tokens, std::nullopt);
  EXPECT_EQ(parse({"serve", "m", "--long-prefill-token-threshold=512"}), "");
  EXPECT_EQ(note_, "");
  EXPECT_EQ(serving_.kv.long_prefill_tokens, 512);
  for (const char* value : {"-1", "2k", "", "16777217", "1.5"}) {
    EXPECT_NE(parse({"serve", "m", std::string("--long-prefill-token-threshold=") + value})
                  .find("--long-prefill-token-threshold"),
              std::string::npos)
        << value;
  }
}

TEST_F(Typed, TheCommandLinesPaceWinsOverTheFiles) {
  const std::string own = config("model = \"m\"\nchunk-size = 256\nmax-inject-tokens = 4096\n");
  EXPECT_EQ(parse({"serve", "--config", own, "--long-prefill-token-threshold", "512"}), "");
  EXPECT_EQ(serving_.kv.long_prefill_tokens, 512);
  EXPECT_EQ(serving_.kv.chunk_size, std::nullopt);
  EXPECT_EQ(serving_.kv.max_inject_tokens, std::nullopt);
  serving_ = {};
  const std::string vllms = config("model = \"m\"\nlong-prefill-token-threshold = 512\n");
  EXPECT_EQ(parse({"serve", "--config", vllms, "--chunk-size", "256"}), "");
  EXPECT_EQ(serving_.kv.long_prefill_tokens, std::nullopt);
  EXPECT_EQ(serving_.kv.chunk_size, 256);
  EXPECT_EQ(parse({"serve", "--config", vllms}), "");
  EXPECT_EQ(serving_.kv.long_prefill_tokens, 512);
}

TEST_F(Typed, WhatCannotBeHadIsRefusedByName) {
  for (const auto& [typed, words] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--tensor-parallel-size", "2"}, "--tensor-parallel-size 2: one device"},
           {{"--pipeline_parallel_size=4"}, "--pipeline-parallel-size 4: one device"},
           {{"--ssl-certfile", "x.pem"}, "--ssl-certfile x.pem: TLS is left to a proxy"},
           {{"--no-enable-chunked-prefill"}, "--no-enable-chunked-prefill: prompts"},
           {{"--scheduling-policy", "priority"}, "--scheduling-policy priority: requests run"},
           {{"--dtype", "float16"}, "--dtype float16"},
           {{"--quantization", "awq"}, "--quantization awq"},
           {{"--gpu-memory-utilization", "92"}, "--gpu-memory-utilization 92: expected a share"},
           {{"--max-model-len", "32q"}, "--max-model-len 32q: expected a whole number"},
           {{"--speculative-config", "{}"}, "there is no speculation"},
           {{"--block-size"}, "--block-size: a value is missing"},
           {{"--no-such-option"}, "no-such-option"}}) {
    std::vector<std::string> all = {"serve", "m"};
    all.insert(all.end(), typed.begin(), typed.end());
    EXPECT_NE(parse(all).find(words), std::string::npos) << words << "\n" << parse(all);
  }
  EXPECT_NE(parse({"inspect", "m", "--block-size", "16"}), "") << "vLLM's are those of serve alone";
}

TEST_F(Typed, AFileHoldsWhatACommandLineCould) {
  const std::string path = config(
      "# a comment\nmodel = \"m.gguf\"\nmax-num-seqs = 8   # eight\nport = 9000\n"
      "served_model_name = \"a name, with more\"\nenable-prefix-caching = false\n"
      "log-level = \"warn\"\nblock-size = 64\nlog-requests = false\ntrust-remote-code = true\n");
  EXPECT_EQ(parse({"serve", "--config", path, "--port", "9001"}), "");
  EXPECT_EQ(serving_.model, "m.gguf");
  EXPECT_EQ(serving_.max_num_seqs, 8);
  EXPECT_EQ(listen_.port, 9001) << "the command line wins";
  EXPECT_EQ(listen_.served_model_names, std::vector<std::string>{"a name, with more"});
  EXPECT_FALSE(serving_.prefix_caching);
  EXPECT_FALSE(listen_.log_requests);
  EXPECT_EQ(logs_.level, "warn");
  EXPECT_EQ(serving_.kv.page_size, 64);
  EXPECT_NE(note_.find("--block-size 64 is --page-size 64"), std::string::npos);
}

TEST_F(Typed, AFileMayComeFromWindows) {
  for (const std::string first : {"# a comment\r\n", "port = 9000\r\n", ""}) {
    const std::string path = config("\xEF\xBB\xBF" + first + "max-num-seqs = 8 # eight\r\n");
    EXPECT_EQ(parse({"serve", "m", "--config", path}), "") << first;
    EXPECT_EQ(serving_.max_num_seqs, 8);
  }
}

TEST_F(Typed, TheCommandLineWinsUnderEveryName) {
  const std::string path = config(
      "model = \"m.gguf\"\npage-size = 64\nthreads = 4\nenable-prefix-caching = true\n"
      "log-level = \"warn\"\n");
  EXPECT_EQ(parse({"--log-level", "debug", "serve", "other.gguf", "--config=" + path,
                   "--block-size", "16", "-t2", "--no-enable-prefix-caching"}),
            "");
  EXPECT_EQ(serving_.model, "other.gguf");
  EXPECT_EQ(serving_.kv.page_size, 16);
  EXPECT_EQ(serving_.threads, 2);
  EXPECT_FALSE(serving_.prefix_caching);
  EXPECT_EQ(logs_.level, "debug");
}

// An option that may be repeated takes one value a time: what follows is the model.
TEST_F(Typed, RepeatedOptionsLeaveTheModelAlone) {
  const std::string path = config("model = \"m.gguf\"\napi-key = [\"c\", \"d\"]\n");
  EXPECT_EQ(parse({"serve", "--api-key", "a", "--api-key", "b", "other.gguf", "--config", path}),
            "");
  EXPECT_EQ(serving_.model, "other.gguf");
  EXPECT_EQ(listen_.api_keys, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(parse({"serve", "--config", path}), "");
  EXPECT_EQ(listen_.api_keys, (std::vector<std::string>{"c", "d"}));
}

TEST_F(Typed, AFileHoldsAJsonObject) {
  const std::string path = config("api-key = '{\"a\":true, \"b\":\"tcp://*:1\"}'\n");
  EXPECT_EQ(parse({"serve", "m", "--config", path}), "");
  EXPECT_EQ(listen_.api_keys, (std::vector<std::string>{R"({"a":true, "b":"tcp://*:1"})"}));
}

TEST_F(Typed, AFilesMistakesAreNamed) {
  for (const auto& [text, words] : std::vector<std::pair<std::string, std::string>>{
           {"max-nums-seqs = 8\n", ".toml: 'max-nums-seqs' is no option of spillway serve"},
           {"[server]\nport = 1\n", "without sections"},
           {"config = \"x\"\n", "'config' is no option"},
           {"tensor-parallel-size = 2\n", ".toml: --tensor-parallel-size 2: one device"},
           {"api-key = \"a#b\"\n", "has no # or quotes inside"},
           {"api-key = 'a#b'\n", "has no # or quotes inside"},
           {"api-key = \"a\"b\"\n", "has no # or quotes inside"},
           {"api-key = 'ab\n", "has no # or quotes inside"},
           {"api-key = []\n", "api-key: a value is missing"},
           {"api-key = [ ]\n", "api-key: a value is missing"},
           {"served-model-name = []\n", "served-model-name: a value is missing"},
           {"trust-remote-code = []\n", "trust-remote-code: a value is missing"},
           {"port = 99999\n", "--port"}}) {
    const std::string message = parse({"serve", "m", "--config", config(text)});
    EXPECT_NE(message.find(words), std::string::npos) << text << message;
  }
  EXPECT_NE(parse({"serve", "m", "--config", "no-such-file"}).find("no-such-file"),
            std::string::npos);
}

}  // namespace
}  // namespace apps
