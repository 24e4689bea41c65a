#!/usr/bin/env python3
"""Many idle connections and many streams on one server: nothing may fail, /health must answer fast throughout, and a stream
must cost little memory.

    bench/many_connections.py [--idle 1000] [--streams 200] [--cores 2] [--json FILE]

Starts its own server with a tiny random model. Keep-alive connections ask /health once and stay; streams run at once, most of
them waiting their turn for the `--running` places of the engine, which have run once before, so that what grows is what a stream
costs and not the first use of KV memory. Meanwhile a process of its own asks /health every 10 ms. Ends with status 1 when a bound
is missed. Server and clients share the cores.
"""

import argparse
import asyncio
import json
import multiprocessing
import os
import pathlib
import resource
import socket
import sys
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/e2e"), str(TOP / "bench")]
import bounds  # noqa: E402
import serving  # noqa: E402
import streams  # noqa: E402

HEALTH_P99_MS, STREAM_BYTES = 50, 20_000


async def open_connection(port):
    return await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)


async def answer(reader):
    """(status, body) of one answer with Content-Length."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    length = int(head.lower().split("content-length:")[1].split("\r\n")[0])
    return int(head.split(" ")[1]), await reader.readexactly(length)


async def hold_idle(port, count):
    """Connections that have been used once and wait."""
    held = []
    for _ in range(count):
        reader, writer = await open_connection(port)
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status, _ = await answer(reader)
        assert status == 200, status
        held.append((reader, writer))
    return held


def request_bytes(fields):
    body = json.dumps(fields).encode()
    return (b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: "
            + str(len(body)).encode() + b"\r\n\r\n" + body)


async def run_stream(port, number, tokens):
    """Returns the number of chunks with text; raises when the stream does not end as it should."""
    reader, writer = await open_connection(port)
    try:
        writer.write(request_bytes({"prompt": [10 + number % 1000, 11, 12], "max_tokens": tokens, "ignore_eos": True, "stream": True,
                                    "temperature": 0}))
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n")[0]:
            raise ValueError(head)
        chunks, last = 0, b""
        while last != b"data: [DONE]":
            line = (await reader.readuntil(b"\n")).rstrip()
            if line.startswith(b"data: "):
                chunks, last = chunks + 1, line
        return chunks - 1
    finally:
        writer.close()


def watch_health(port, stop, told):
    """In a process of its own, so that it waits for no stream's reader. Tells that it has begun, then, after `stop`, the
    milliseconds of each answer of /health, asked every 10 ms."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while not stop.is_set():
            began = time.perf_counter()
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer_bytes = b""
            while not answer_bytes.endswith(b"}"):
                received = connection.recv(4096)
                assert received, "the server closed the connection"
                answer_bytes += received
            times.append((time.perf_counter() - began) * 1000)
            assert answer_bytes.startswith(b"HTTP/1.1 200"), answer_bytes
            if len(times) == 1:
                told.send("begun")
            time.sleep(0.01)
    told.send(times)


async def measure(server, arguments):
    port, pid = server.port, server.process.pid
    await asyncio.gather(*(run_stream(port, i, arguments.tokens) for i in range(2 * arguments.running)))
    held = await hold_idle(port, arguments.idle)
    before = streams.resident_bytes(pid)
    processes = multiprocessing.get_context("spawn")
    stop, (heard, told), peak = processes.Event(), processes.Pipe(duplex=False), before
    watcher = processes.Process(target=watch_health, args=(port, stop, told), daemon=True)
    watcher.start()
    heard.recv()
    began = time.perf_counter()
    runs = [asyncio.create_task(run_stream(port, i, arguments.tokens)) for i in range(arguments.streams)]
    while not all(run.done() for run in runs):
        peak = max(peak, streams.resident_bytes(pid))
        await asyncio.sleep(0.05)
    chunks = [run.result() for run in runs]
    seconds = time.perf_counter() - began
    stop.set()
    times = sorted(heard.recv())
    watcher.join()
    for reader, writer in held:  # still there, still answering
        writer.write(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert (await answer(reader))[0] == 200
        writer.close()
    return {"streams": len(chunks), "incomplete": sum(count < arguments.tokens for count in chunks), "seconds": round(seconds, 2),
            "idle_connections": len(held), "health_asked": len(times), "health_p50_ms": round(times[len(times) // 2], 2),
            "health_p99_ms": round(times[len(times) * 99 // 100], 2), "health_max_ms": round(times[-1], 2),
            "rss_before_bytes": before, "bytes_a_stream": (peak - before) // arguments.streams}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--idle", type=int, default=1000)
    parser.add_argument("--streams", type=int, default=200)
    parser.add_argument("--running", type=int, default=16, help="sequences that the engine runs at once")
    parser.add_argument("--tokens", type=int, default=400, help="that each stream generates")
    parser.add_argument("--cores", type=int, default=2, help="that server and clients share")
    parser.add_argument("--json", help="also write the figures here")
    arguments = parser.parse_args()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:arguments.cores])
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 65536), hard))
    with tempfile.TemporaryDirectory() as folder, serving.Server(
            *serving.tiny_model(folder), "--max-num-seqs", str(arguments.running), "--threads", str(arguments.cores)) as server:
        figures = asyncio.run(measure(server, arguments))
    print(json.dumps(figures, indent=1))
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(figures, indent=1) + "\n")
    return bounds.judge([
        ("streams cut off", figures["incomplete"], "none", figures["incomplete"] == 0),
        ("/health p99, ms", figures["health_p99_ms"], f"under {HEALTH_P99_MS}", figures["health_p99_ms"] < HEALTH_P99_MS),
        ("memory a stream, bytes", figures["bytes_a_stream"], f"under {STREAM_BYTES}", figures["bytes_a_stream"] < STREAM_BYTES)])


if __name__ == "__main__":
    sys.exit(main())
