#!/usr/bin/env python3
"""spillway bench serve against a running server: every request completes, the figures have the names that people's scripts read,
and what the client counted is what the server counted.
"""

import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import serving

KEYS = """date backend model_id num_prompts request_rate burstiness max_concurrency duration completed failed total_input_tokens
total_output_tokens request_throughput request_goodput output_throughput total_token_throughput max_output_tokens_per_s
max_concurrent_requests mean_ttft_ms median_ttft_ms std_ttft_ms p50_ttft_ms p99_ttft_ms mean_tpot_ms p99_tpot_ms mean_itl_ms
p99_itl_ms mean_e2el_ms p99_e2el_ms mean_ttft_from_schedule_ms p99_e2el_from_schedule_ms mean_send_lag_ms
max_send_lag_ms""".split()
LISTS = "input_lens output_lens ttfts itls latencies start_times queue_times scheduled_times generated_texts errors".split()
LABELS = ["Successful requests:", "Failed requests:", "Benchmark duration (s):", "Total input tokens:", "Total generated tokens:",
          "Request throughput (req/s):", "Output token throughput (tok/s):", "Peak output token throughput (tok/s):",
          "Peak concurrent requests:", "Total token throughput (tok/s):", "Mean send lag (ms):", "Max send lag (ms):", "Mean TTFT (ms):", "Median TTFT (ms):", "P99 TTFT (ms):",
          "Mean TPOT (ms):", "Mean ITL (ms):"]
COUNTERS = ["vllm:prompt_tokens_total", "vllm:generation_tokens_total", "vllm:request_success_total"]
TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"


def bench_serve(*arguments, **environment):
    return subprocess.run([serving.BINARY, "bench", "serve", *arguments], capture_output=True, text=True, env=os.environ | environment)


class BenchServe(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        template = cls.folder / "template.jinja"
        template.write_text(TEMPLATE)
        cls.server = cls.enterClassContext(serving.Server(serving.LONGNEEDLE, "--chat-template", str(template)))

    def run_load(self, *arguments):
        """(the figures, the console's text, the server's counters of this run)."""
        before = [self.server.metric(name) for name in COUNTERS]
        done = bench_serve("--base-url", self.server.url, "--save-detailed", "--result-dir", str(self.folder / "new"),
                           "--result-filename", "result.json", "--metric-percentiles", "50,99",
                           "--percentile-metrics", "ttft,tpot,itl,e2el", *arguments)
        self.assertEqual(done.returncode, 0, done.stderr + done.stdout)
        counted = [self.server.metric(name) - value for name, value in zip(COUNTERS, before)]
        return json.loads((self.folder / "new" / "result.json").read_text()), done.stdout, counted

    def test_counts_are_the_servers(self):
        figures, text, counted = self.run_load(
            "--num-prompts", "24", "--random-input-len", "60", "--random-output-len", "12", "--random-range-ratio", "0.5",
            "--max-concurrency", "4", "--request-rate", "200", "--goodput", "ttft:60000", "tpot:60000", "--metadata", "chip=none")
        self.assertEqual((figures["completed"], figures["failed"]), (24, 0))
        self.assertEqual([figures["total_input_tokens"], figures["total_output_tokens"], figures["completed"]], counted)
        self.assertEqual(sum(figures["input_lens"]), figures["total_input_tokens"])
        self.assertEqual(sum(figures["output_lens"]), figures["total_output_tokens"])
        self.assertTrue(all(30 <= length <= 90 for length in figures["input_lens"]))
        self.assertGreater(len(set(figures["input_lens"])), 4)
        self.assertEqual([len(figures[name]) for name in LISTS], [24] * len(LISTS))
        self.assertLessEqual(figures["max_concurrent_requests"], 4)
        self.assertEqual(figures["request_goodput"], figures["request_throughput"])
        self.assertEqual(figures["chip"], "none")
        for ttft, itls, latency, tokens in zip(*(figures[name] for name in ("ttfts", "itls", "latencies", "output_lens"))):
            self.assertAlmostEqual(ttft + sum(itls), latency)
            self.assertLessEqual(len(itls), tokens - 1)
        for name in KEYS:
            self.assertIn(name, figures)
        places = [text.find("\n" + label) for label in LABELS]
        self.assertEqual(places, sorted(places), text)
        self.assertGreater(places[0], 0, text)

    def test_clients_see_no_token_before_the_server_does(self):
        names = ["vllm:time_to_first_token_seconds_sum", "vllm:e2e_request_latency_seconds_sum"]
        before = [self.server.metric(name) for name in names]
        figures, _, _ = self.run_load("--num-prompts", "8", "--random-input-len", "50", "--random-output-len", "8", "--seed", "1")
        for name, value, seen in zip(names, before, ("mean_ttft_ms", "mean_e2el_ms")):
            self.assertGreaterEqual(figures[seen] / 1000 * 8, self.server.metric(name) - value, name)

    def test_many_streams_at_once_after_a_warm_up(self):
        figures, _, counted = self.run_load("--num-prompts", "300", "--random-input-len", "8", "--random-output-len", "4",
                                            "--seed", "2", "--num-warmups", "5")
        self.assertEqual(figures["completed"], 300)
        self.assertEqual((figures["total_input_tokens"], figures["total_output_tokens"]), (2400, 1200))
        self.assertEqual(counted, [305 * 8, 305 * 4, 305])
        self.assertGreater(figures["max_concurrent_requests"], 50)

    def test_a_shared_prefix_is_found_in_the_cache(self):
        figures, text, _ = self.run_load("--num-prompts", "6", "--random-input-len", "10", "--random-output-len", "2",
                                         "--random-prefix-len", "128", "--seed", "3", "--max-concurrency", "1")
        self.assertEqual(figures["input_lens"], [138] * 6)
        self.assertGreaterEqual(figures["total_cached_tokens"], 5 * 96)
        self.assertIn("Total cached input tokens:", text)

    def test_a_data_set_through_chat(self):
        lines = self.folder / "prompts.jsonl"
        lines.write_text('{"prompt": "Say A.", "output_tokens": 3}\n{"prompt": "Say B, \\u00e9."}\n')
        figures, _, _ = self.run_load("--backend", "openai-chat", "--dataset-name", "custom", "--dataset-path", str(lines),
                                      "--custom-output-len", "5", "--ignore-eos", "--num-prompts", "4", "--temperature", "0")
        self.assertEqual(figures["output_lens"], [3, 5, 3, 5])
        self.assertEqual(figures["generated_texts"][:2], figures["generated_texts"][2:])

    def test_documents_are_asked_question_by_question(self):
        needles = serving.TOP / "tests/data/needles/needles-2k.jsonl"
        figures, text, _ = self.run_load("--dataset-name", "documents", "--dataset-path", str(needles), "--custom-output-len", "32",
                                         "--num-prompts", "10", "--max-concurrency", "1", "--temperature", "0")
        documents = [json.loads(line) for line in needles.read_text().splitlines()]
        asked = [documents[i % len(documents)]["items"][i // len(documents)] for i in range(10)]
        right = sum(t.startswith(item["answer"]) for t, item in zip(figures["generated_texts"], asked))
        self.assertGreaterEqual(right, 8, figures["generated_texts"])
        self.assertGreater(figures["total_cached_tokens"], 2 * 1500, "second questions of the first two documents")

    def test_shared_gpt_answers_are_as_long_as_recorded(self):
        lines = self.folder / "talks.jsonl"
        lines.write_text('{"conversations": [{"from": "human", "value": "Say A."}, {"from": "gpt", "value": "And God said A."}]}\n')
        tokens = json.loads(self.server.request("POST", "/tokenize", {"prompt": "And God said A.", "add_special_tokens": False})[2])
        figures, _, _ = self.run_load("--dataset-name", "sharegpt", "--dataset-path", str(lines), "--num-prompts", "2", "--ignore-eos")
        self.assertEqual(figures["output_lens"], [tokens["count"]] * 2)

    def test_prefixes_are_shared(self):
        figures, _, _ = self.run_load("--dataset-name", "prefix_repetition", "--prefix-repetition-prefix-len", "128", "--num-prompts", "6",
                                      "--prefix-repetition-suffix-len", "16", "--prefix-repetition-num-prefixes", "2",
                                      "--prefix-repetition-output-len", "2", "--seed", "4", "--max-concurrency", "1")
        self.assertEqual((figures["input_lens"], figures["output_lens"]), ([144] * 6, [2] * 6))
        self.assertGreaterEqual(figures["total_cached_tokens"], 4 * 96)

    def test_goodput_is_the_highest_rate_that_holds(self):
        figures, text, _ = self.run_load("--find-goodput", "--num-prompts", "6", "--random-input-len", "8", "--random-output-len", "6",
                                         "--seed", "9", "--decode-step-ms", "100")
        runs = figures["goodput_runs"]
        held = [run["request_rate"] for run in runs if run["holds"]]
        self.assertEqual(figures["goodput_rate"], max(held))
        self.assertEqual(figures["request_rate"], max(held))
        self.assertEqual(figures["goodput_decode_step_ms"], 100)
        self.assertEqual(figures["goodput_rate_is_a_lower_bound"], all(run["holds"] for run in runs))
        for run in runs:
            holds = run["failed"] == 0 and run["p99_tbt_ms"] <= 2500 and run["mean_scheduling_delay_ms"] <= 2000
            self.assertEqual(run["holds"], holds, run)
        self.assertRegex(text, r"Goodput, (highest rate|at least) \(req/s\): +\d")

    def test_failures_are_counted_and_shown(self):
        done = bench_serve("--base-url", self.server.url, "--model", "no-such-model", "--num-prompts", "3", "--random-input-len", "4")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stdout, r"Failed requests: +3\b")
        self.assertEqual(done.stderr.count("HTTP 404: The model `no-such-model` does not exist"), 3, done.stderr)

    def test_mistakes_are_one_line(self):
        port = str(serving.free_port())
        for arguments, words in ((["--port", port], port), (["--base-url", "https://127.0.0.1"], "TLS"),
                                 (["--base-url", self.server.url, "--goodput", "itl:4"], "itl:4"),
                                 (["--find-goodput", "--request-rate", "1"], "--request-rate"), (["--burstiness", "nan"], "nan"), (["--request-rate", "nan"], "nan"),
                                 (["--base-url", self.server.url, "--dataset-name", "custom"], "--dataset-path")):
            done = bench_serve(*arguments)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(words, done.stderr)
            lines = [line for line in done.stderr.splitlines() if line != "Run with --help for more information."]
            self.assertEqual(len(lines), 1, done.stderr)

    def test_nothing_that_is_given_ends_a_line_of_a_head(self):
        evil = "a\r\nX-Evil: 1"
        for arguments, words in ((["--header", "X-A=" + evil], "--header X-A: a line break"), (["--header", "X-A\nX-Evil=1"], "--header: expected"),
                                 (["--api-key", evil], "--api-key or $SPILLWAY_API_KEY: a line break"),
                                 (["--endpoint", "/v1/completions HTTP/1.1\r\nX-Evil: 1"], "--endpoint: a blank"),
                                 (["--base-url", self.server.url + "/" + evil], "--base-url: a blank"), (["--host", evil], "--host: a blank")):
            where = [] if "--base-url" in arguments or "--host" in arguments else ["--base-url", self.server.url]
            done = bench_serve(*where, "--num-prompts", "1", *arguments)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertNotIn("Evil", done.stderr)
        done = bench_serve("--base-url", self.server.url, "--num-prompts", "1", SPILLWAY_API_KEY=evil)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn("$SPILLWAY_API_KEY: a line break", done.stderr)


if __name__ == "__main__":
    unittest.main()
