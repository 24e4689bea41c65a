#!/usr/bin/env python3
"""The binary as a person uses it: help that helps, one line for an error, the same answer from every instruction set."""

import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import unittest

import serving


def run(*arguments, **environment):
    return subprocess.run([serving.BINARY, *arguments], capture_output=True, text=True, env=os.environ | environment)


def short_needle():
    """(prompt, answer): a planted fact with some text around it and its question, a few hundred tokens."""
    with open(serving.TOP / "tests/data/needles/needles-2k.jsonl", encoding="utf-8") as lines:
        document = json.loads(next(lines))
    item = next(item for item in document["items"] if item["kind"] == "secret")
    answer = item["answer"].strip().rstrip(".")
    place = document["context"].index(answer)
    lines = document["context"][max(0, place - 600):place + 600].splitlines()[1:-1]
    return "\n".join(lines) + "\n" + item["question"], answer


class CommandLine(unittest.TestCase):
    def test_help_has_an_example(self):
        for subcommand in (["serve"], ["generate"], ["bench"], ["bench", "serve"], ["inspect"], ["eval", "needles"], ["trace"], ["calibrate"]):
            done = run(*subcommand, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("Example", done.stdout)
            self.assertIn("spillway " + " ".join(subcommand), done.stdout)

    def test_an_error_is_one_line_that_names_the_cause(self):
        with tempfile.TemporaryDirectory() as folder:
            damaged = pathlib.Path(folder) / "damaged.gguf"
            damaged.write_bytes(pathlib.Path(serving.LONGNEEDLE).read_bytes()[:100_000])
            needles = pathlib.Path(folder) / "needles.jsonl"
            needles.write_text('{"id": 1, "context": "", "items": [{"kind": "secret"}]}')
            foreign = pathlib.Path(folder) / "foreign.gguf"
            foreign.write_bytes(pathlib.Path(serving.LONGNEEDLE).read_bytes().replace(b"\0smollm", b"\0smo\nlm", 1))
            for status, arguments, words in ((1, ["inspect", "no-such-model"], "no-such-model"),
                                             (2, ["inspect", str(damaged)], "damaged.gguf"),
                                             (2, ["generate", str(foreign), "-p", "hi"], "foreign.gguf: pre-tokenizer"),
                                             (2, ["bench", serving.LONGNEEDLE, "-p", "0", "-n", "0"], "nothing to measure"),
                                             (2, ["bench", serving.LONGNEEDLE, "--device-memory", "lots"], "lots"),
                                             (1, ["generate", serving.LONGNEEDLE, "-f", "no-such-file"], "no-such-file"),
                                             (1, ["generate", serving.LONGNEEDLE, "-f", folder], folder),
                                             (2, ["eval", "needles", serving.LONGNEEDLE, str(needles)], "needles.jsonl:1")):
                done = run(*arguments)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(len(done.stderr.strip().splitlines()), 1, done.stderr)

    def test_an_empty_key_starts_no_server(self):
        for status, arguments, variable, words in ((2, (), "", "SPILLWAY_API_KEY is set but empty"),
                                                   (2, ("--api-key-file", __file__), "", "SPILLWAY_API_KEY is set but empty"),
                                                   (2, ("--api-key", ""), "k", "an API key of 0 bytes"),
                                                   (1, ("--api-key", "k"), "", "no-such-model"),  # the command line wins
                                                   (1, (), "k", "no-such-model")):
            done = run("serve", "no-such-model", *arguments, SPILLWAY_API_KEY=variable)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(words, done.stderr)

    def test_names_that_clients_could_not_tell_apart_are_refused(self):
        for status, names, words in ((2, ("",), "--served-model-name ''"), (2, ("a", ""), "--served-model-name ''"),
                                     (2, ("a", "b", "a"), "'a' is given twice"), (1, ("a", "A"), "no-such-model")):
            done = run("serve", "no-such-model", "--served-model-name", *names)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(words, done.stderr)

    def test_an_ipv6_address_is_printed_as_a_url_has_it(self):
        try:
            socket.create_server(("::1", 0), family=socket.AF_INET6).close()
        except OSError as error:
            self.skipTest(f"no IPv6 here: {error}")
        with subprocess.Popen([serving.BINARY, "serve", serving.LONGNEEDLE, "--host", "::1", "--port", "0", "--max-model-len", "1024",
                               "--device-memory", "100MiB"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            line = next((line for line in process.stdout if "serving" in line), "")
            process.terminate()
        self.assertRegex(line, r"at http://\[::1\]:\d+\n")

    def test_what_is_not_built_is_refused_by_name(self):
        done = run("bench", serving.LONGNEEDLE, "--device", "cuda")
        self.assertEqual(done.returncode, 2)
        self.assertIn("--device cuda: this program was built without", done.stderr + done.stdout)

    def test_what_the_cpu_never_does_is_wrong_input(self):
        for options, words in ((["--weights", "quantised"], "--weights quantised is for a GPU"), (["--weights", "fp8"], "--weights fp8 is for"),
                               (["--save-granularity", "step"], "--save-granularity step packs rows on a GPU"),
                               (["--fill", "random"], "--fill random fills pages on a GPU alone")):
            done = run("bench", serving.LONGNEEDLE, "--device", "cpu", *options)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_flag_that_would_change_nothing_is_refused(self):
        for status, options, words in ((2, ["--preset", "dense", "--budget", "1024"], "--budget belongs to selection"),
                                       (2, ["--preset", "lserve"], "spillway calibrate"),
                                       (1, ["--preset", "duo", "--heads", "no-such-file"], "no-such-file"),
                                       (2, ["--preset", "sparse", "--budget", "100"], "give 96 or 128"),
                                       (2, ["--preset", "sparse", "--sink", "64"], "--heads FILE"),
                                       (2, ["--preset", "sparse", "--load-method", "uva"], "needs a host tier"),
                                       (2, ["--preset", "full", "--chunk-size", "512"], "--chunk-size belongs"),
                                       (2, ["--preset", "sparse", "--disk-path", "kv", "--disk-memory", "1GiB"], "needs a host tier"),
                                       (2, ["--preset", "full", "--disk-path", "kv"], "go together"),
                                       (1, ["--preset", "full", "--disk-path", "no/such/folder", "--disk-memory", "1GiB"],
                                        "no/such/folder")):
            done = run("bench", serving.LONGNEEDLE, *options)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_share_of_memory_that_is_too_small_is_explained(self):
        done = run("bench", serving.LONGNEEDLE, "--device-memory", "0.000001%")
        self.assertEqual(done.returncode, 1, done.stderr)
        said = re.search(r"of the ([\d.]+) GiB that are free, and the weights take 27.7 MiB: raise it above \d+%", done.stderr)
        self.assertTrue(said, done.stderr)
        share = f"{100 * 34 / 1024 / float(said[1]):.6f}%"  # some 6 MiB beside the weights
        done = run("bench", serving.LONGNEEDLE, "--device-memory", share)
        self.assertEqual(done.returncode, 1, done.stderr)
        self.assertRegex(done.stderr, rf"\(--device-memory {share} is [\d.]+ MiB beside the weights here\)")

    def test_vllms_threshold_bounds_prompts_however_they_are_computed(self):
        for preset, own in (("sparse", "--chunk-size 64"), ("full", "--max-inject-tokens 128 (2 layers)")):
            with tempfile.TemporaryDirectory() as folder, serving.Server(
                    *serving.tiny_model(folder), "--device-memory", "50MiB", "--preset", preset,
                    "--long-prefill-token-threshold", "64") as server:
                self.assertIn(f"vLLM's options: --long-prefill-token-threshold 64 is {own}\n", server.output())
                steps = server.metric("vllm:iteration_tokens_total_count")
                status, _, text = server.request("POST", "/v1/completions", {"prompt": [7] * 640, "max_tokens": 1})
                self.assertEqual((status, json.loads(text)["usage"]["prompt_tokens"]), (200, 640), text)
                self.assertGreaterEqual(server.metric("vllm:iteration_tokens_total_count") - steps, 10, preset)
        for options, words in ((["--preset", "sparse", "--chunk-size", "64"], "is --chunk-size here"),
                               (["--max-inject-tokens", "64"], "is --max-inject-tokens here"),
                               (["--preset", "sparse"], "--chunk-size is 8: it must be")):
            done = run("serve", serving.LONGNEEDLE, "--port", "0", "--long-prefill-token-threshold", "8", *options)
            self.assertEqual(done.returncode, 2, done.stderr)
            self.assertIn(words, done.stderr)

    def test_a_calibration_that_nobody_could_use_is_refused_at_once(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "heads.json"
            for status, options, words in ((2, ("--share", "1", "-o", str(out)), "--share 1 makes all 16 KV heads"),
                                           (2, ("--context", "1152", "-o", str(out)), "raise --context"),
                                           (1, ("-o", folder + "/no/such/file"), "cannot be written")):
                done = run("calibrate", serving.LONGNEEDLE, *options)
                self.assertEqual(done.returncode, status, done.stderr)
                self.assertIn(words, done.stderr)
                self.assertEqual(done.stdout, "")

    def test_a_model_without_a_chat_template_gets_chatml(self):
        messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Name three colours."}]
        with serving.Server(serving.LONGNEEDLE, "--max-model-len", "1024", "--device-memory", "100MiB") as server:
            status, _, text = server.request("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 4})
            self.assertEqual(status, 200, text)
            chat = server.request("POST", "/tokenize", {"messages": messages})[2]
            plain = server.request("POST", "/tokenize", {"add_special_tokens": False, "prompt": "".join(
                f"<|im_start|>{m['role'].replace('developer', 'system')}\n{m['content']}<|im_end|>\n" for m in messages)
                + "<|im_start|>assistant\n"})[2]
            self.assertEqual(json.loads(chat)["tokens"], json.loads(plain)["tokens"])

    def test_a_prompt_that_does_not_fit_is_told_what_would_help(self):
        long = "word " * 3000
        done = run("generate", serving.LONGNEEDLE, "-p", long, "--max-model-len", "1024", "--preset", "dense")
        self.assertIn("--preset full", done.stderr)
        done = run("generate", serving.LONGNEEDLE, "-p", long, "--max-model-len", "1024", "--preset", "full")
        self.assertIn("--host-memory", done.stderr)
        self.assertNotIn("--preset full", done.stderr)

    def test_a_trace_is_written_and_replayed(self):
        with tempfile.TemporaryDirectory() as folder:
            needles, trace = pathlib.Path(folder) / "needles.jsonl", pathlib.Path(folder) / "trace.jsonl"
            with open(serving.TOP / "tests/data/needles/needles-2k.jsonl", encoding="utf-8") as lines:
                needles.write_text(next(lines))
            done = run("trace", serving.LONGNEEDLE, str(needles), "--budget", "512", "-o", str(trace))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("share of a selection seen", done.stdout)
            header = json.loads(trace.read_text().splitlines()[0])
            self.assertEqual((header["layers"], header["kv_heads"], header["budget_tokens"]), (8, 2, 512))
            done = run("bench", serving.LONGNEEDLE, "--preset", "sparse", "--budget", "512", "--replay-selections", str(trace),
                       "-p", "0", "-n", "32", "-d", "1900", "-r", "1", "-o", "json")
            self.assertEqual(done.returncode, 0, done.stderr)
            row = json.loads(done.stdout)[0]
            self.assertGreater(row["kv"]["pages_selected"], 0)
            self.assertGreater(row["locality"]["judged"], 0)
            done = run("bench", serving.LONGNEEDLE, "--preset", "sparse", "--budget", "1024", "--replay-selections", str(trace))
            self.assertIn("give --budget 512", done.stderr)
            self.assertEqual(done.returncode, 2)
            done = run("trace", serving.LONGNEEDLE, str(needles), "--preset", "dense", "-o", str(trace))
            self.assertIn("--preset dense makes none", done.stderr)
            done = run("trace", serving.LONGNEEDLE, str(needles), "--budget", "4096", "-o", str(trace))
            self.assertIn("nothing was selected", done.stderr)
            self.assertEqual(done.returncode, 2)

    def test_a_temperature_is_a_number(self):
        for value in ("nan", "-nan", "inf", "warm"):
            done = run("generate", serving.LONGNEEDLE, "-p", "hi", "--temperature=" + value)
            self.assertNotEqual(done.returncode, 0, value)
            self.assertIn("--temperature", done.stderr + done.stdout)

    def test_a_seed_is_a_whole_number(self):
        for value in ("-1", "18446744073709551616", "1.5", "x"):
            done = run("generate", serving.LONGNEEDLE, "-p", "hi", "--seed=" + value)
            self.assertEqual(done.returncode, 2, value)
            self.assertIn("--seed", done.stderr + done.stdout)

    def test_every_instruction_set_and_thread_count_finds_the_needle(self):
        prompt, answer = short_needle()
        with tempfile.NamedTemporaryFile("w", encoding="utf-8") as file:
            file.write(prompt)
            file.flush()
            for options in (["--isa", "reference"], ["--isa", "avx2"], ["--isa", "avx512"], ["-t", "1"], ["--kv-cache-dtype", "f32"]):
                done = run("generate", serving.LONGNEEDLE, "-f", file.name, "-n", "16", *options)
                if "avx" in " ".join(options) and "this processor offers" in done.stderr:
                    continue  # this processor lacks it
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(answer, done.stdout, options)

    def test_needles_are_deterministic_unless_told_otherwise(self):
        text = " ".join(f"word {i}" for i in range(40))
        item = {"kind": "same", "depth": 0.5, "question": text, "answer": "x"}
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(json.dumps({"id": "1", "context": text, "items": [item, item]}) + "\n")
            file.flush()
            cached = {}
            for options in ((), ("--deterministic",), ("--no-deterministic",)):
                done = run("eval", "needles", serving.LONGNEEDLE, file.name, "-o", "json", *options)
                self.assertEqual(done.returncode, 0, done.stderr)
                cached[options] = json.loads(done.stdout)["cached_tokens"]
        # The question's rows are no prompt's: its pages serve the second asking only as those of `serve` do.
        self.assertEqual(cached[()], cached["--deterministic",])
        self.assertGreater(cached["--no-deterministic",], cached[()])

    def test_bench_prints_the_peers_keys(self):
        done = run("bench", serving.LONGNEEDLE, "-p", "64", "-n", "4", "-d", "0,64", "-r", "2", "-o", "json")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = json.loads(done.stdout)
        self.assertEqual([(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows], [(64, 0, 0), (0, 4, 0), (64, 0, 64), (0, 4, 64)])
        for row in rows:
            self.assertEqual(len(row["samples_ts"]), 2)
            self.assertGreater(row["avg_ts"], 0)
            windows = row["decode_windows"]
            self.assertEqual(list(windows), ["count", "ts", "step_ms"])
            for spread in (windows["ts"], windows["step_ms"]):
                self.assertEqual(list(spread), ["p10", "p50", "p90"])
                self.assertEqual(sorted(spread.values()), list(spread.values()))
                self.assertEqual(spread["p50"] > 0, windows["count"] > 0)


if __name__ == "__main__":
    unittest.main()
