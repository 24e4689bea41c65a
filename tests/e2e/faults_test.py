#!/usr/bin/env python3
"""What goes wrong around a running server: signals, kills, a full disk, more answers than memory. It serves on or ends as documented.

Longer forms with figures: bench/open_ended.py, bench/kill_restart.py, bench/soak.py.
"""

import http.client
import json
import pathlib
import resource
import signal
import sys
import tempfile
import threading
import time
import unittest

import disk_load
import serving

sys.path.insert(0, str(serving.TOP / "bench"))
import kill_restart  # noqa: E402
import open_ended  # noqa: E402
import soak  # noqa: E402

SMALL = ["--preset", "dense", "--max-model-len", "2048", "--device-memory", "128MiB"]


class Answer(threading.Thread):
    """A streamed completion of 100 tokens."""

    def __init__(self, port, tokens=100):
        super().__init__()
        self.port, self.tokens = port, tokens
        self.begun = threading.Event()
        self.lines = []
        self.broken = False

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        try:
            connection.request("POST", "/v1/completions", json.dumps({
                "model": "longneedle-q8_0", "prompt": "In the beginning", "max_tokens": self.tokens, "temperature": 0,
                "ignore_eos": True, "stream": True}), {"Content-Type": "application/json"})
            for line in connection.getresponse():
                self.lines.append(line)
                self.begun.set()
        except (OSError, http.client.HTTPException):
            self.broken = True
        finally:
            connection.close()
            self.begun.set()

    def whole(self):
        self.join()
        return not self.broken and any(b"[DONE]" in line for line in self.lines)


def wait_for(condition, seconds=60):
    """Whether it came true."""
    for _ in range(seconds * 50):
        if condition():
            return True
        time.sleep(0.02)
    return False


class Signals(unittest.TestCase):
    def start(self, *options):
        server = serving.Server(serving.LONGNEEDLE, *SMALL, *options)
        server.__enter__()
        self.addCleanup(lambda: server.process.poll() is None and server.process.kill())
        return server

    def test_sigterm_finishes_what_runs_and_takes_nothing_new(self):
        server = self.start("--shutdown-timeout", "250")  # 1500 tokens can take longer than the 30 s of the default
        running = Answer(server.port, tokens=1500)
        running.start()
        running.begun.wait()
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_for(lambda: server.request("GET", "/ready")[0] == 503))
        self.assertEqual(server.request("GET", "/health")[0], 200)
        status, headers, text = server.request("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1})
        self.assertEqual((status, headers["Connection"]), (503, "close"), text)
        self.assertTrue(running.whole())
        self.assertEqual(server.process.wait(60), 0)

    def test_the_drain_delay_takes_requests_though_not_ready(self):
        server = self.start("--drain-delay", "5")
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_for(lambda: server.request("GET", "/ready")[0] == 503))
        late = Answer(server.port)
        late.start()
        self.assertTrue(late.whole())
        self.assertEqual(server.process.wait(60), 0)

    def test_the_second_signal_ends_at_once(self):
        server = self.start("--drain-delay", "600")
        running = Answer(server.port, tokens=1900)
        running.start()
        running.begun.wait()
        server.process.send_signal(signal.SIGTERM)
        self.assertTrue(wait_for(lambda: server.request("GET", "/ready")[0] == 503))
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(60), 0)
        self.assertFalse(running.whole())

    def test_what_runs_longer_than_the_shutdown_timeout_is_cut_off(self):
        server = self.start("--shutdown-timeout", "1")
        running = [Answer(server.port, tokens=1900) for _ in range(8)]
        for answer in running:
            answer.start()
        for answer in running:
            answer.begun.wait()
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(60), 0)
        for answer in running:
            self.assertTrue(answer.whole(), "a stream that is cut off ends in order")


class Disk(unittest.TestCase):
    def test_a_clean_stop_keeps_the_cache(self):
        with tempfile.TemporaryDirectory() as folder:
            ask = {"model": "longneedle-q8_0", "prompt": "Once upon a time there was a needle. " * 40, "max_tokens": 4, "temperature": 0}
            answers = []
            for _ in range(2):  # the document fits host memory: nothing leaves for the disk before the end
                with serving.Server(serving.LONGNEEDLE, *disk_load.disk_options(folder)) as server:
                    answers.append(json.loads(server.request("POST", "/v1/completions", ask)[2]))
                    self.assertEqual(server.metric("spillway:disk_failures_total"), 0)
            usage = [answer["usage"] for answer in answers]
            self.assertEqual(usage[0]["prompt_tokens_details"]["cached_tokens"], 0)
            self.assertGreater(usage[1]["prompt_tokens_details"]["cached_tokens"], usage[1]["prompt_tokens"] - 33)
            self.assertEqual(answers[0]["choices"][0]["text"], answers[1]["choices"][0]["text"])

    def test_killed_three_times_it_serves_and_says_nothing_wrong(self):
        figures = kill_restart.measure(kills=3, documents=3, each=2, life_s=4.0)
        print(json.dumps(figures))
        self.assertEqual(figures["wrong"], 0)
        self.assertEqual(figures["restarts_that_served"], 4)
        self.assertGreater(figures["last_life"]["disk_pages"], 0)

    def test_a_full_disk_changes_no_answer(self):
        asked = disk_load.questions(3, 2)
        expected = disk_load.right_answers(asked)
        with tempfile.TemporaryDirectory() as folder:
            with serving.Server(serving.LONGNEEDLE, *disk_load.disk_options(pathlib.Path(folder) / "disk")) as server:
                # As on a disk of 8 MiB: what is longer cannot be written.
                resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (8 << 20, 8 << 20))
                for question in asked * 2:
                    self.assertEqual(disk_load.ask(server, question), expected[question])
                self.assertGreater(server.metric("spillway:disk_failures_total"), 0)
                self.assertEqual(server.request("GET", "/health")[0], 200)


class Growth(unittest.TestCase):
    def run_chats(self, options, words):
        figures = open_ended.measure(serving.LONGNEEDLE, options, streams=8, tokens=200, words=words)
        texts = figures.pop("texts")
        print(json.dumps(figures))
        self.assertEqual(figures["failures"], [])
        self.assertGreater(figures["blocks_grown"], 0)
        return figures, texts

    def test_chats_without_max_tokens_outgrow_memory_and_all_go_on(self):
        """Eight chats of some 350 tokens and 200 more, in homes for 3,200; each may take all of them."""
        options = ["--preset", "full", "--budget", "512", "--deterministic", "--max-model-len", "3072", "--device-memory",
                   "80MiB", "--host-memory", "25MiB", "--max-num-seqs", "8"]
        waiting, texts = self.run_chats(options, words=170)
        self.assertGreater(waiting["preemptions"], 0)
        with tempfile.TemporaryDirectory() as folder:
            _, on_disk = self.run_chats([*options, "--disk-path", folder + "/disk", "--disk-memory", "256MiB"], words=170)
        self.assertEqual(texts, on_disk)

    def test_32_chats_run_together_at_a_context_of_128k(self):
        """In homes for one of that length; nobody leaves before all have a token, so that all ran at once."""
        options = ["--preset", "full", "--max-model-len", "131072", "--host-memory", "1100MiB", "--max-num-seqs", "32"]
        figures = open_ended.measure(serving.LONGNEEDLE, options, streams=32, tokens=8, words=40, all_begin=True)
        del figures["texts"]
        print(json.dumps(figures))
        self.assertEqual(figures["failures"], [])
        self.assertEqual(figures["context"], 131072)
        self.assertGreaterEqual(figures["generated_tokens"], 32 * 8)
        self.assertEqual(figures["preemptions"], 0)

    def test_so_it_is_without_a_host_tier(self):
        options = ["--preset", "dense", "--max-model-len", "3072", "--device-memory", "60MiB", "--max-num-seqs", "8"]
        figures, _ = self.run_chats(options, words=230)
        self.assertGreater(figures["preemptions"], 0)


class Soak(unittest.TestCase):
    def test_a_short_one_leaves_nothing(self):
        figures = soak.measure(serving.LONGNEEDLE, ["--max-model-len", "8192", "--device-memory", "128MiB", "--host-memory", "160MiB"],
                               minutes=0.5, load=0.8, closed_seconds=10)
        print(json.dumps(figures))
        self.assertEqual(figures["failures"], [])
        self.assertGreater(figures["hung_up_on"], 0)
        self.assertEqual(set(figures["left"].values()), {0})


if __name__ == "__main__":
    unittest.main()
