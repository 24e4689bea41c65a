#!/usr/bin/env python3
"""A long run at a share of what the server can do: memory stays flat, and the pace of running answers too.

    bench/soak.py [--minutes 30] [--load 0.8] [--model FILE] [-o FILE]

First measures what eight clients in a closed loop get (requests/s), then sends streamed requests at --load of that rate, Poisson,
for --minutes: prompts of 10 to 1,500 words with shared beginnings, answers of 8 to 128 tokens, one in five hung up on in the
middle. Every second a sample of resident memory. Prints one JSON object: memory's slope over the last two thirds in MB/min, and
the 99th percentile of the gaps between tokens in each sixth of the time. The status is 1 when something failed or was left, the
slope is 1 MB/min or more, or the gaps of a sixth are above twice the median of all but the first (the machine must be quiet).
"""

import argparse
import http.client
import json
import pathlib
import random
import sys
import threading
import time

import bounds
import machine

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TOP / "tests/e2e"))
import open_ended  # noqa: E402
import serving  # noqa: E402

CLOSED_CLIENTS = 8
SHARED_BEGINNINGS = 5
GAP_SPREAD = 2


def draw_request(draw, model):
    beginning = random.Random(draw.randrange(SHARED_BEGINNINGS))
    words = [beginning.choice(open_ended.WORDS) for _ in range(draw.choice((5, 50, 400)))]
    words += [draw.choice(open_ended.WORDS) for _ in range(draw.choice((5, 20, 100, 1100)))]
    return {"model": model, "prompt": " ".join(words), "max_tokens": draw.choice((8, 32, 64, 128)), "temperature": 1,
            "seed": draw.randrange(1 << 30), "ignore_eos": True, "stream": True}


class Totals:
    def __init__(self):
        self.lock = threading.Lock()
        self.done = self.hung_up = 0
        self.failures = []
        self.gaps = []  # (time, seconds)


def send(port, body, leave_after, totals):
    """One request; leaves after so many tokens, where that is not None."""
    gaps, tokens = [], 0
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            raise ValueError(f"status {response.status}: {response.read(300)!r}")
        last_s = None
        ended = False
        for line in response:
            if line.startswith(b"data: [DONE]"):
                ended = True
            if not line.startswith(b"data: {"):
                continue
            if b'"error"' in line[:40]:
                raise ValueError(repr(line[:300]))
            now_s = time.monotonic()
            if last_s is not None:
                gaps.append((now_s, now_s - last_s))
            last_s = now_s
            tokens += 1
            if tokens == leave_after:
                break
        connection.close()
        if not ended and tokens != leave_after:
            raise ValueError(f"the stream ended after {tokens} tokens")
    except (OSError, ValueError, http.client.HTTPException) as error:
        with totals.lock:
            totals.failures.append(repr(error))
        return
    with totals.lock:
        totals.gaps += gaps
        totals.done += 1
        totals.hung_up += tokens == leave_after


def closed_rate(port, model, seconds):
    """Requests a second of CLOSED_CLIENTS clients."""
    totals, deadline = Totals(), time.monotonic() + seconds

    def client(seed):
        draw = random.Random(seed)
        while time.monotonic() < deadline:
            send(port, draw_request(draw, model), None, totals)

    threads = [threading.Thread(target=client, args=(seed,)) for seed in range(CLOSED_CLIENTS)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return totals.done / (time.monotonic() - started)


def slope_mb_per_minute(samples):
    """Of (seconds, bytes), by least squares."""
    mean_t = sum(t for t, _ in samples) / len(samples)
    mean_b = sum(b for _, b in samples) / len(samples)
    spread = sum((t - mean_t) ** 2 for t, _ in samples)
    return sum((t - mean_t) * (b - mean_b) for t, b in samples) / spread * 60 / 1e6


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))] if values else None


def is_stable(gaps):
    """Whether none is above GAP_SPREAD times their median; a part without any token is not."""
    return all(gaps) and max(gaps) <= GAP_SPREAD * percentile(gaps, 0.5)


def open_load(server, model, rate, seconds, seed):
    """Poisson at `rate`; (totals, [(seconds since the start, resident bytes)], start)."""
    totals, samples, threads = Totals(), [], []
    draw = random.Random(seed)
    start = time.monotonic()
    next_s = next_sample = start
    while (now := time.monotonic()) < start + seconds:
        if now >= next_sample:
            samples.append((now - start, open_ended.resident_bytes(server.process.pid)))
            next_sample += 1
            threads = [thread for thread in threads if thread.is_alive()]
        if now >= next_s:
            body = draw_request(draw, model)
            leave = draw.randrange(1, body["max_tokens"]) if draw.random() < 0.2 else None
            threads.append(threading.Thread(target=send, args=(server.port, body, leave, totals)))
            threads[-1].start()
            next_s += draw.expovariate(rate)
        time.sleep(max(0.0, min(next_s, next_sample) - time.monotonic()))
    for thread in threads:
        thread.join()
    return totals, samples, start


def measure(model, options, minutes, load, closed_seconds=60.0, seed=1):
    with serving.Server(model, *options) as server:
        name = json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"]
        capacity = closed_rate(server.port, name, closed_seconds)
        totals, samples, start = open_load(server, name, load * capacity, minutes * 60, seed)
        sixth = minutes * 10
        p99 = [percentile([gap for at, gap in totals.gaps if k * sixth <= at - start < (k + 1) * sixth], 0.99) for k in range(6)]
        later = samples[len(samples) // 3:]
        left = {metric: int(server.metric(metric)) for metric in ("vllm:num_requests_running", "vllm:num_requests_waiting")}
        return {
            "minutes": minutes, "load": load, "closed_requests_per_s": round(capacity, 2),
            "requests": totals.done, "hung_up_on": totals.hung_up, "failures": totals.failures[:5],
            "rss_mb_first_and_last": [round(samples[0][1] / 1e6, 1), round(samples[-1][1] / 1e6, 1)],
            "slope_mb_per_min": round(slope_mb_per_minute(later), 3),
            "p99_gap_ms_by_sixth": [gap and round(gap * 1000, 1) for gap in p99],
            "left": left,
        }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--load", type=float, default=0.8)
    parser.add_argument("--closed-seconds", type=float, default=60)
    parser.add_argument("--model", default=serving.LONGNEEDLE)
    parser.add_argument("-o", "--output", help="also write the figures there")
    arguments = parser.parse_args()
    options = ["--preset", "full", "--max-model-len", "8192", "--device-memory", "128MiB", "--host-memory", "160MiB"]
    figures = measure(arguments.model, options, arguments.minutes, arguments.load, arguments.closed_seconds)
    result = {"machine": machine.describe(), "commit": machine.commit(), "options": options, **figures}
    print(json.dumps(result, indent=1))
    if arguments.output:
        pathlib.Path(arguments.output).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    sys.exit(bounds.judge([
        ("failures", len(figures["failures"]), "none", not figures["failures"]),
        ("left running or waiting", sum(figures["left"].values()), "none", not any(figures["left"].values())),
        ("memory's slope, MB/min", figures["slope_mb_per_min"], "under 1", figures["slope_mb_per_min"] < 1),
        ("p99 gaps, ms", figures["p99_gap_ms_by_sixth"], f"each within {GAP_SPREAD} times their median, without the first",
         is_stable(figures["p99_gap_ms_by_sixth"][1:]))]))


if __name__ == "__main__":
    main()
