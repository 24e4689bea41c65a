#!/usr/bin/env python3
"""kill -9 at random moments, with a disk tier: every restart serves, and no answer is ever wrong.

    bench/kill_restart.py [--kills 50] [--seed 1] [-o FILE]

Asks questions about documents that are more than host memory holds, so that blocks leave for the disk and come back all the
time; kills the server at a random moment, restarts it over the same folder, asks on. Each answer is compared with that of a
server without a disk tier. Prints one JSON object; the status is 1 when an answer was wrong or a restart did not serve.
"""

import argparse
import http.client
import json
import pathlib
import random
import sys
import tempfile
import threading
import time

import bounds
import machine

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/e2e"))
import disk_load  # noqa: E402
import serving  # noqa: E402


class Run:
    """What all lives of the server did together."""

    def __init__(self, folder, expected, seed):
        self.folder, self.expected = folder, expected
        self.draw = random.Random(seed)
        self.answers = self.wrong = self.cut_off = self.restarts = 0
        self.disk = {}  # metrics of the last life

    def ask_until(self, server, deadline):
        """Two clients, until the deadline or the server's end."""
        def client(order):
            try:
                for question in order:
                    if time.monotonic() > deadline:
                        return
                    text = disk_load.ask(server, question)
                    self.answers += 1
                    self.wrong += text != self.expected[question]
            except (OSError, http.client.HTTPException):
                self.cut_off += 1

        orders = [self.draw.choices(list(self.expected), k=1000) for _ in range(2)]
        clients = [threading.Thread(target=client, args=(order,)) for order in orders]
        for thread in clients:
            thread.start()
        return clients

    def one_life(self, life_s, kill):
        server = serving.Server(serving.LONGNEEDLE, *disk_load.disk_options(self.folder))
        server.__enter__()
        self.restarts += 1
        first = self.draw.choice(list(self.expected))  # it serves, and what it finds on disk is right
        self.wrong += disk_load.ask(server, first) != self.expected[first]
        self.answers += 1
        clients = self.ask_until(server, time.monotonic() + life_s)
        if kill:
            time.sleep(life_s * self.draw.random())
            server.process.kill()
        for thread in clients:
            thread.join()
        if kill:
            server.process.wait()
            server.log.close()
        else:
            self.disk = {name: int(server.metric(f"spillway:{name}_total")) for name in ("disk_pages", "disk_failures")}
            server.__exit__(None, None, None)


def measure(kills, seed=1, documents=4, each=3, life_s=8.0):
    expected = disk_load.right_answers(disk_load.questions(documents, each))
    with tempfile.TemporaryDirectory() as parent:
        folder = pathlib.Path(parent) / "disk"
        run = Run(folder, expected, seed)
        for _ in range(kills):
            run.one_life(life_s, kill=True)
        run.one_life(life_s, kill=False)
        size = (folder / "pages.spillway").stat().st_size
    return {"kills": kills, "restarts_that_served": run.restarts, "answers": run.answers, "wrong": run.wrong,
            "clients_cut_off": run.cut_off, "last_life": run.disk, "disk_file_mib": size >> 20}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--life-s", type=float, default=8.0, help="seconds that a life lasts at most")
    parser.add_argument("-o", "--output", help="also write the figures there")
    arguments = parser.parse_args()
    figures = measure(arguments.kills, arguments.seed, life_s=arguments.life_s)
    result = {"machine": machine.describe(), "commit": machine.commit(), **figures}
    print(json.dumps(result, indent=1))
    if arguments.output:
        pathlib.Path(arguments.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    starts = arguments.kills + 1
    sys.exit(bounds.judge([
        ("starts that served", figures["restarts_that_served"], f"all {starts}", figures["restarts_that_served"] == starts),
        ("wrong answers", figures["wrong"], "none", figures["wrong"] == 0)]))


if __name__ == "__main__":
    main()
