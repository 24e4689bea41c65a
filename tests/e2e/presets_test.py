#!/usr/bin/env python3
"""Every preset does what it is for, from outside: counters show that its mechanisms ran, and moving pages changes no token.

One document of the 2k needle set is asked under each preset; selection is made to matter by a budget of 512 tokens, and the
device tier is made smaller than the document. Without the mechanism a test names, it fails: a mode that is on and did nothing
is a defect.
"""

import json
import pathlib
import subprocess
import tempfile
import unittest

import serving

NEEDLES = serving.TOP / "tests/data/needles/needles-2k.jsonl"
SMALL = ["--max-model-len", "2304", "--device-memory", "60MiB"]


class Presets(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.needles = pathlib.Path(cls.folder.name) / "needles.jsonl"
        with open(NEEDLES, encoding="utf-8") as lines:
            cls.needles.write_text(next(lines), encoding="utf-8")
        cls.heads = pathlib.Path(cls.folder.name) / "heads.json"
        cls.heads.write_text(json.dumps({"version": 1, "model": "longneedle", "sink": 64, "local": 256,
                                         "streaming": [[0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 0], [0, 1], [1, 0]]}))
        cls.resident = cls.ask("--preset", "sparse", "--budget", "512")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def ask(cls, *options):
        done = subprocess.run([serving.BINARY, "eval", "needles", serving.LONGNEEDLE, str(cls.needles), "-o", "json", *options],
                              capture_output=True, text=True)
        if done.returncode != 0:
            raise AssertionError(done.stderr[-4000:])
        return json.loads(done.stdout)

    def tokens(self, result):
        return [answer["tokens"] for answer in result["answers"]]

    def test_dense_selects_nothing(self):
        result = self.ask("--preset", "dense")
        self.assertEqual(result["kv"]["selections"], 0)
        self.assertGreaterEqual(result["right"], 10)

    def test_sparse_selects(self):
        self.assertGreater(self.resident["kv"]["selections"], 0)
        self.assertGreater(self.resident["kv"]["pages_sealed"], 0)
        self.assertGreaterEqual(self.resident["right"], 10)

    def test_above_every_context_a_budget_changes_nothing(self):
        self.assertEqual(self.tokens(self.ask("--preset", "sparse", "--budget", "4096")), self.tokens(self.ask("--preset", "dense")))

    def test_full_moves_pages_and_changes_no_token(self):
        result = self.ask("--preset", "full", "--budget", "512", *SMALL)
        for counter in ("pages_missed", "pages_loaded", "pages_evicted", "pages_saved", "layers_segmented", "bytes_loaded"):
            self.assertGreater(result["kv"][counter], 0, counter)
        self.assertLessEqual(result["kv"]["device_bytes_peak"], 60 * 2**20)
        self.assertEqual(self.tokens(result), self.tokens(self.resident))

    def test_sparse_offload_moves_pages_and_changes_no_token(self):
        # Sequences that share the document's pages would fit: each has its own.
        result = self.ask("--preset", "sparse-offload", "--budget", "512", "--no-enable-prefix-caching", *SMALL)
        for counter in ("pages_missed", "pages_loaded", "pages_saved"):
            self.assertGreater(result["kv"][counter], 0, counter)
        self.assertEqual(result["kv"]["layers_segmented"], 0)
        self.assertEqual(self.tokens(result), self.tokens(self.resident))

    def test_every_method_of_transfer_brings_the_same_bytes(self):
        for load, save in (("memcpy", "gpu-direct"), ("batched", "staged"), ("uva", "extents"), ("bulk", "memcpy")):
            result = self.ask("--preset", "full", "--budget", "512", "--load-method", load, "--save-method", save, *SMALL)
            self.assertEqual(self.tokens(result), self.tokens(self.resident), (load, save))

    def test_lserve_reuses_selections_and_streams(self):
        result = self.ask("--preset", "lserve", "--budget", "512", "--heads", str(self.heads))
        self.assertGreater(result["kv"]["selections_reused"], 0)
        self.assertEqual(result["sizes"]["page_tokens"], 64)

    def test_duo_keeps_rings_instead_of_pages(self):
        dense = self.ask("--preset", "dense", "--no-enable-prefix-caching")
        duo = self.ask("--preset", "duo", "--heads", str(self.heads), "--no-enable-prefix-caching")
        self.assertEqual(duo["sizes"]["block_bytes"], dense["sizes"]["block_bytes"] * 14 // 16)
        self.assertGreater(duo["sizes"]["ring_bytes"], 0)
        self.assertNotEqual(self.tokens(duo), self.tokens(dense), "two heads that see less must show somewhere")


if __name__ == "__main__":
    unittest.main()
