#!/usr/bin/env python3
"""Chats without max_tokens at a long context, all at once, in memory for a fraction of what each might take.

    bench/open_ended.py [--streams 32] [--tokens 300] [--prompt-words 1500] [--host-memory 1300MiB] [--disk]
                        [--together] [-o FILE]

Starts a server with the context of 131072 tokens, asks every chat at once (no max_tokens, end tokens ignored), lets each take
--tokens tokens and hangs up. Prints one JSON object: how many ran together, what grew, who waited, what went to disk and came
back, memory, and failures (which must be 0). Prompts and growth together should exceed the homes, or nobody has to wait.
"""

import argparse
import http.client
import json
import pathlib
import random
import re
import sys
import tempfile
import threading
import time

import bounds
import machine

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/e2e"))
import serving  # noqa: E402

WORDS = ("stone river garden window letter yellow morning paper engine silver harbour winter ladder copper island market "
         "pencil bridge candle forest hammer valley mirror button castle thunder pocket saddle ribbon lantern").split()


class Chat(threading.Thread):
    """One streamed chat; counts its tokens, and leaves after `tokens` of them, when `may_leave` says so, too."""

    def __init__(self, port, model, words, seed, tokens, may_leave):
        super().__init__()
        self.may_leave = may_leave
        draw = random.Random(seed)
        text = f"Document {seed}: " + " ".join(draw.choice(WORDS) for _ in range(words))
        self.port, self.wanted = port, tokens
        self.body = json.dumps({"model": model, "messages": [{"role": "user", "content": text}], "temperature": 0,
                                "ignore_eos": True, "stream": True, "skip_special_tokens": False,
                                "stream_options": {"include_usage": True, "continuous_usage_stats": True}})
        self.tokens = self.prompt_tokens = 0
        self.first_s = None
        self.gap_s_max = 0.0
        self.failure = None
        self.text = ""

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1200)
        try:
            self.read(connection)
        except (OSError, ValueError, KeyError, http.client.HTTPException) as error:
            self.failure = repr(error)
        finally:
            connection.close()

    def read(self, connection):
        connection.request("POST", "/v1/chat/completions", self.body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read(300)!r}")
        last_s = None
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(str(event["error"])[:300])
            usage = event.get("usage") or {}
            self.prompt_tokens = usage.get("prompt_tokens", self.prompt_tokens)
            self.tokens = usage.get("completion_tokens", self.tokens)
            for choice in event["choices"]:
                self.text += choice["delta"].get("content") or ""
            now_s = time.monotonic()
            self.first_s = self.first_s or now_s
            self.gap_s_max = max(self.gap_s_max, now_s - (last_s or now_s))
            last_s = now_s
            if self.tokens >= self.wanted and self.may_leave():
                return
        raise ValueError(f"the stream ended after {self.tokens} tokens")


def resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return int(re.search(r"^VmRSS:\s*(\d+) kB$", status, re.M).group(1)) * 1024


def measure(model, options, streams, tokens, words, all_begin=False):
    """The figures of one run, as a dict. all_begin: nobody leaves before each has a token; then all must fit together."""
    with serving.Server(model, *options) as server:
        name = json.loads(server.request("GET", "/v1/models")[2])["data"][0]
        before = resident_bytes(server.process.pid)
        chats = []

        def may_leave():
            return not all_begin or all(chat.tokens > 0 or chat.failure for chat in chats)

        chats += [Chat(server.port, name["id"], words, seed, tokens, may_leave) for seed in range(streams)]
        started = time.monotonic()
        for chat in chats:
            chat.start()
        together = waiting = producing = 0
        peak = before
        while any(chat.is_alive() for chat in chats):
            together = max(together, server.metric("vllm:num_requests_running"))
            waiting = max(waiting, server.metric("spillway:requests_preempted"))
            producing = max(producing, sum(chat.tokens > 0 and chat.is_alive() for chat in chats))
            peak = max(peak, resident_bytes(server.process.pid))
            time.sleep(0.1)
        seconds = time.monotonic() - started
        for chat in chats:
            chat.join()
        return {
            "context": name["max_model_len"],
            "streams": streams,
            "failures": [chat.failure for chat in chats if chat.failure],
            "running_together": int(together),
            "producing_together": producing,
            "prompt_tokens": sum(chat.prompt_tokens for chat in chats),
            "generated_tokens": sum(chat.tokens for chat in chats),
            "seconds": round(seconds, 1),
            "longest_gap_s": round(max(chat.gap_s_max for chat in chats), 1),
            "blocks": int(server.metric("spillway:kv_blocks")),
            "blocks_grown": int(server.metric("spillway:kv_blocks_grown_total")),
            "preemptions": int(server.metric("vllm:num_preemptions_total")),
            "waiting_together": int(waiting),
            "tokens_recomputed": int(server.metric("spillway:tokens_recomputed_total")),
            "disk_pages": int(server.metric("spillway:disk_pages_total")),
            "rss_start_mib": before >> 20,
            "rss_growth_mib": (peak - before) >> 20,
            "texts": [chat.text for chat in chats],
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=serving.LONGNEEDLE)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--prompt-words", type=int, default=1500)
    parser.add_argument("--preset", default="full")
    parser.add_argument("--host-memory", default="1300MiB", help="homes of a preset with a host tier; '' for one without")
    parser.add_argument("--device-memory", default="")
    parser.add_argument("--disk", action="store_true", help="with a disk tier of 4 GiB in a temporary folder")
    parser.add_argument("--together", action="store_true", help="all must fit: nobody leaves before each has a token")
    parser.add_argument("-o", "--output", help="also write the figures there")
    arguments = parser.parse_args()
    options = ["--preset", arguments.preset, "--max-model-len", "131072", "--max-num-seqs", str(arguments.streams)]
    for flag, value in (("--host-memory", arguments.host_memory), ("--device-memory", arguments.device_memory)):
        if value:
            options += [flag, value]
    asked = list(options) + ["--disk-path"] * arguments.disk
    with tempfile.TemporaryDirectory() as folder:
        if arguments.disk:
            options += ["--disk-path", folder + "/disk", "--disk-memory", "4GiB"]
        figures = measure(arguments.model, options, arguments.streams, arguments.tokens, arguments.prompt_words,
                          all_begin=arguments.together)
    del figures["texts"]
    result = {"machine": machine.describe(), "commit": machine.commit(), "options": asked, **figures}
    print(json.dumps(result, indent=1))
    if arguments.output:
        pathlib.Path(arguments.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    rows = [("failures", len(figures["failures"]), "none", not figures["failures"])]
    if arguments.together:
        rows.append(("ran together", figures["running_together"], f"all {arguments.streams}",
                     figures["running_together"] == arguments.streams))
    sys.exit(bounds.judge(rows))


if __name__ == "__main__":
    main()
