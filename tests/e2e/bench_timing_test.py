#!/usr/bin/env python3
"""spillway bench serve against a scripted server that notes when it got each request and when it sent each chunk.

No client can see a chunk before it was sent, nor count from before it sent the request: its times are those of the server or longer, by
what the machine took to carry bytes. The largest difference is printed; on a quiet machine it is below 2 ms, and nothing is asserted about it
but that it is not seconds.
"""

import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))
import serving  # noqa: E402
from scripted_server import Scripted  # noqa: E402

FIRST_S, GAP_S, TOKENS = 0.05, 0.01, 20
SECONDS_MAX = 5  # far above what a loaded machine adds


class Timing(unittest.TestCase):
    def run_load(self, server, *arguments):
        """The figures; requests of one rank are those of the server's notes, in order of sending."""
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([serving.BINARY, "bench", "serve", "--base-url", server.url, "--save-detailed", "--result-dir", folder,
                                   "--result-filename", "r.json", "--random-input-len", "5", *arguments], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return json.loads((pathlib.Path(folder) / "r.json").read_text())

    def differences(self, figures, noted):
        """(TTFTs, gaps, E2ELs): the client's minus the server's, in order of sending."""
        order = sorted(range(len(noted)), key=lambda i: figures["start_times"][i])
        ttfts, gaps, e2els = [], [], []
        for i, (got, sent) in zip(order, noted):
            ttfts.append(figures["ttfts"][i] - (sent[0] - got))
            e2els.append(figures["latencies"][i] - (sent[-1] - got))
            self.assertEqual(len(figures["itls"][i]), TOKENS - 1)
            gaps += [seen - (b - a) for seen, a, b in zip(figures["itls"][i], sent, sent[1:])]
        return ttfts, gaps, e2els

    def test_times_are_the_servers(self):
        with Scripted(FIRST_S, GAP_S, TOKENS) as server:
            figures = self.run_load(server, "--num-prompts", "30", "--request-rate", "20", "--max-concurrency", "1")
            ttfts, gaps, e2els = self.differences(figures, server.noted)
        print(f"client's minus server's, ms: TTFT {min(ttfts) * 1e3:.2f} to {max(ttfts) * 1e3:.2f} (median {statistics.median(ttfts) * 1e3:.2f}); "
              f"gaps {min(gaps) * 1e3:.2f} to {max(gaps) * 1e3:.2f}; E2EL {min(e2els) * 1e3:.2f} to {max(e2els) * 1e3:.2f}")
        self.assertEqual((figures["completed"], figures["total_output_tokens"]), (30, 30 * TOKENS))
        for difference in ttfts + e2els:
            self.assertTrue(0 <= difference < SECONDS_MAX, difference)
        self.assertLess(max(map(abs, gaps)), SECONDS_MAX)
        # One at a time takes longer than the arrivals: what waiting adds is in the figures from the schedule alone.
        waits = [sent - planned for sent, planned in zip(figures["start_times"], figures["scheduled_times"])]
        self.assertAlmostEqual(figures["mean_ttft_from_schedule_ms"], figures["mean_ttft_ms"] + statistics.mean(waits) * 1e3, places=3)
        self.assertAlmostEqual(figures["mean_e2el_from_schedule_ms"], statistics.mean(figures["latencies"]) * 1e3 + statistics.mean(waits) * 1e3,
                               places=3)
        self.assertGreater(max(waits), 29 * (FIRST_S + (TOKENS - 1) * GAP_S) - 30 / 20)
        lags = [wait - queue for wait, queue in zip(waits, figures["queue_times"])]
        self.assertAlmostEqual(figures["max_send_lag_ms"], max(lags) * 1e3, places=3)
        self.assertGreaterEqual(min(lags), 0)

    def test_no_rate_holds_where_requests_wait(self):
        with Scripted(FIRST_S, GAP_S, TOKENS, wait_s=1000) as server:
            done = subprocess.run([serving.BINARY, "bench", "serve", "--base-url", server.url, "--find-goodput", "--num-prompts", "2",
                                   "--random-input-len", "5"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 1)
        self.assertEqual(done.stderr.count("too much"), 5, done.stderr)
        self.assertIn("no rate holds", done.stderr)

    def test_a_step_is_the_gap_of_one_request_alone(self):
        with Scripted(FIRST_S, GAP_S, TOKENS, wait_s=0.5) as server:
            figures = self.run_load(server, "--find-goodput", "--num-prompts", "4")
        self.assertTrue(0 < figures["goodput_decode_step_ms"] < SECONDS_MAX * 1000)
        self.assertTrue(all(run["mean_scheduling_delay_ms"] >= 500 for run in figures["goodput_runs"]))


if __name__ == "__main__":
    unittest.main()
