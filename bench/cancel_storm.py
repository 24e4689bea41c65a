#!/usr/bin/env python3
"""Thousands of requests whose clients leave at a random moment, by an orderly close (FIN) or a reset (RST): afterwards every
block of KV memory is free or cached, nothing runs or waits, no thread is left over, every request is in the metrics, and the
next request is answered as before.

    bench/cancel_storm.py [--requests 5000] [--at-once 32] [--seed 1] [--json FILE]

Starts its own server with a tiny random model. The moments go from before the last byte of the request to after the first tokens;
one in ten stays to the end. Ends with status 1 when something is lost, or when it takes two minutes or more.
"""

import argparse
import asyncio
import json
import pathlib
import random
import re
import socket
import struct
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/e2e"), str(TOP / "bench")]
import bounds  # noqa: E402
import serving  # noqa: E402
from many_connections import open_connection, request_bytes  # noqa: E402

SECONDS = 120
QUESTION = {"prompt": "In the beginning", "max_tokens": 8, "temperature": 0}


def leave(writer, hard):
    connection = writer.get_extra_info("socket")
    if hard:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort() if hard else writer.close()


async def one_request(port, dice):
    """Sends one request and leaves. Returns how: "cut", "left" or "stayed"."""
    fields = {"prompt": [dice.randrange(10, 2000) for _ in range(dice.randrange(1, 200))], "max_tokens": dice.randrange(1, 200),
              "stream": dice.random() < 0.7, "n": dice.choice((1, 1, 1, 2, 4)), "ignore_eos": True}
    sent = request_bytes(fields)
    reader, writer = await open_connection(port)
    fate = dice.random()
    try:
        if fate < 0.1:  # half a request
            writer.write(sent[:dice.randrange(len(sent))])
            await asyncio.sleep(dice.random() * 0.01)
            return "cut"
        if fate < 0.2:
            writer.write(sent.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            data = await reader.read(-1)
            if not data.startswith((b"HTTP/1.1 200", b"HTTP/1.1 429")):
                raise ValueError(data[:300])
            return "stayed"
        writer.write(sent)
        try:
            await asyncio.wait_for(reader.readexactly(dice.randrange(1, 4000)), dice.random() ** 3 * 0.3)
        except (TimeoutError, asyncio.TimeoutError, asyncio.IncompleteReadError):
            pass
        return "left"
    finally:
        leave(writer, hard=dice.random() < 0.5)


def threads_of(pid):
    return int(re.search(r"^Threads:\s*(\d+)$", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M).group(1))


def blocks(server):
    """{state: number} of the KV blocks."""
    text = server.request("GET", "/metrics")[2]
    return {state: int(float(value)) for state, value in
            re.findall(r'^spillway:kv_blocks\{[^}]*state="(\w+)"[^}]*\} (\S+)$', text, re.M)}


def wait_until_quiet(server, seconds=60):
    deadline = time.monotonic() + seconds
    while server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") > 0:
        if time.monotonic() > deadline:
            raise AssertionError("requests still run or wait a minute after their clients left")
        time.sleep(0.05)


async def storm(port, requests, at_once, seed):
    dice = random.Random(seed)
    seeds = iter([dice.random() for _ in range(requests)])
    ends = []

    async def client():
        for one in seeds:
            ends.append(await one_request(port, random.Random(one)))

    await asyncio.gather(*(client() for _ in range(at_once)))
    return {end: ends.count(end) for end in ("cut", "left", "stayed")}


def run(server, requests, at_once, seed):
    """The figures; raises where something is lost."""
    first = json.loads(server.request("POST", "/v1/completions", QUESTION)[2])["choices"][0]["text"]
    before, threads = blocks(server), threads_of(server.process.pid)
    began = time.monotonic()
    ends = asyncio.run(storm(server.port, requests, at_once, seed))
    wait_until_quiet(server)
    seconds = time.monotonic() - began
    assert sum(ends.values()) == requests, ends
    after = blocks(server)
    assert after and sum(after.values()) == sum(before.values()), (before, after)
    held = {state: number for state, number in after.items() if state not in ("free", "cached")}
    assert not any(held.values()), after
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    assert threads_of(server.process.pid) == threads
    assert server.request("GET", "/health")[0] == 200
    status, _, text = server.request("POST", "/v1/completions", QUESTION)
    assert status == 200 and json.loads(text)["choices"][0]["text"] == first, text
    return {"requests": requests, **ends, "seconds": round(seconds, 1), "blocks": after,
            "sequences_told": int(server.metric("vllm:request_success_total"))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--at-once", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", help="also write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, serving.Server(*serving.tiny_model(folder)) as server:
        figures = run(server, arguments.requests, arguments.at_once, arguments.seed)
    print(json.dumps(figures))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
    # run() has raised where a page, thread or request was lost.
    return bounds.judge([
        ("requests that ended", figures["requests"], "all, every page back, no thread left", True),
        ("seconds", figures["seconds"], f"under {SECONDS}", figures["seconds"] < SECONDS)])


if __name__ == "__main__":
    sys.exit(main())
