"""Short forms of the load scripts of bench/: many connections beside streams, and clients that leave at any moment."""

import argparse
import asyncio
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent.parent / "bench"))
import cancel_storm  # noqa: E402
import many_connections  # noqa: E402
import serving  # noqa: E402


class Load(unittest.TestCase):
    def test_cancel_storm(self):
        with tempfile.TemporaryDirectory() as folder, serving.Server(*serving.tiny_model(folder)) as server:
            figures = cancel_storm.run(server, requests=300, at_once=16, seed=2)
        self.assertGreater(figures["left"], 100)

    def test_many_connections(self):
        arguments = argparse.Namespace(idle=300, streams=60, running=8, tokens=16)
        with tempfile.TemporaryDirectory() as folder, serving.Server(*serving.tiny_model(folder), "--max-num-seqs", "8") as server:
            figures = asyncio.run(many_connections.measure(server, arguments))
        self.assertEqual((figures["streams"], figures["incomplete"], figures["idle_connections"]), (60, 0, 300))


if __name__ == "__main__":
    unittest.main()
