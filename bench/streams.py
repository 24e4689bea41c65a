"""Several greedy completions at once against a running server, timed; for comparisons, not for load tests."""

import http.client
import json
import pathlib
import random
import re
import socket
import sys
import threading
import time
import urllib.parse

PROMPT_TOKENS, ANSWER_TOKENS = 128, 64


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url, path):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=10)
    connection.request("GET", path)
    response = connection.getresponse()
    return response.status, response.read()


def wait_until_ready(url, process, seconds=60):
    for _ in range(seconds * 20):
        if process.poll() is not None:
            sys.exit(f"streams: the server ended with {process.returncode} before it was ready")
        try:
            if get(url, "/ready")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.05)
    sys.exit(f"streams: the server was not ready after {seconds} s")


def resident_bytes(pid):
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"^VmRSS:\s*(\d+) kB$", status, re.M).group(1)) * 1024


class Stream(threading.Thread):
    """One completion of a random prompt of token ids, so that no two share a prefix; keeps the time of every token."""

    def __init__(self, url, model, seed):
        super().__init__()
        self.url = urllib.parse.urlsplit(url)
        ids = random.Random(seed)
        prompt = [ids.randrange(1000, 8000) for _ in range(PROMPT_TOKENS)]
        self.body = json.dumps({"model": model, "prompt": prompt, "max_tokens": ANSWER_TOKENS, "temperature": 0,
                                "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}})
        self.first_s = self.last_s = None
        self.usage = {}
        self.failure = None

    def run(self):
        try:
            connection = http.client.HTTPConnection(self.url.hostname, self.url.port, timeout=600)
            connection.request("POST", "/v1/completions", self.body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise ValueError(f"status {response.status}: {response.read(500)!r}")
            for line in response:
                if line.startswith(b"data:") and line.strip() != b"data: [DONE]":
                    event = json.loads(line[5:])
                    self.usage = event.get("usage") or self.usage
                    if event["choices"]:
                        self.last_s = time.monotonic()
                        self.first_s = self.first_s or self.last_s
        except (OSError, ValueError, KeyError) as error:
            self.failure = error


def run_streams(url, count, seed):
    """Runs `count` streams at once. Returns tokens/s over the whole run, prompts included, and while decoding: the sum of
    each stream's own rate between its first and its last token."""
    model = json.loads(get(url, "/v1/models")[1])["data"][0]["id"]
    runs = [Stream(url, model, seed + i) for i in range(count)]
    started = time.monotonic()
    for run in runs:
        run.start()
    for run in runs:
        run.join()
    for run in runs:
        if run.failure or run.usage.get("completion_tokens") != ANSWER_TOKENS:
            sys.exit(f"streams: a stream failed: {run.failure or run.usage}")
    total_s = max(run.last_s for run in runs) - started
    decode = sum((ANSWER_TOKENS - 1) / (run.last_s - run.first_s) for run in runs)
    return {"tokens_per_s": count * ANSWER_TOKENS / total_s, "decode_tokens_per_s": decode}
