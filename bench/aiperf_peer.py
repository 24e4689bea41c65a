#!/usr/bin/env python3
"""`spillway bench serve` beside AIPerf, NVIDIA's load generator: the same prompts, as many at once, each program's own clock and counting.

    pip install aiperf==0.13.0
    bench/aiperf_peer.py [--aiperf PROGRAM] [--url URL] [--requests 48] [--concurrency 8] [--rounds 2] [--json FILE]

Without a URL the server is the scripted one, whose times do not depend on who asks, so that what differs is the clients. The programs take
turns; compared are the medians over rounds of each one's means. AIPerf's inter-token latency is what vLLM's benchmark calls TPOT. Exit status 1
where a figure differs by more than 5 %.
"""

import argparse
import contextlib
import json
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP / "tests/e2e"), str(TOP / "bench")]
import serving  # noqa: E402
import streams  # noqa: E402
from scripted_server import Scripted  # noqa: E402

FIRST_S, GAP_S, TOKENS = 0.4, 0.04, 32
WORDS = "time year people way day man thing woman life child world school state family student group".split()
# Ours and AIPerf's, both in ms or per second.
FIGURES = (("mean_ttft_ms", "time_to_first_token"), ("mean_tpot_ms", "inter_token_latency"), ("mean_e2el_ms", "request_latency"),
           ("request_throughput", "request_throughput"), ("output_throughput", "output_token_throughput"))


def run(command, **more):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
    if done.returncode != 0:
        sys.exit(f"aiperf_peer: {command[0]} ended with {done.returncode}:\n{done.stdout[-4000:]}")


def ours(url, prompts, options, folder):
    lines = folder / "ours.jsonl"
    lines.write_text("".join(json.dumps({"prompt": prompt, "output_tokens": TOKENS}) + "\n" for prompt in prompts))
    run([serving.BINARY, "bench", "serve", "--base-url", url, "--dataset-name", "custom", "--dataset-path", str(lines), "--ignore-eos",
         "--num-prompts", str(len(prompts)), "--max-concurrency", str(options.concurrency), "--percentile-metrics", "ttft,tpot,itl,e2el",
         "--save-result", "--result-dir", str(folder), "--result-filename", "ours.json"])
    figures = json.loads((folder / "ours.json").read_text())
    if figures["failed"] > 0:
        sys.exit(f"aiperf_peer: {figures['failed']} requests of bench serve failed")
    return [figures[name] for name, _ in FIGURES]


def theirs(url, prompts, options, folder):
    lines = folder / "theirs.jsonl"
    lines.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts))
    model = json.loads(streams.get(url, "/v1/models")[1])["data"][0]["id"]
    artifacts, tokenizer = folder / "artifacts", folder / "tokenizer"
    tokenizer.mkdir()  # it loads one, though tokens are counted by the server
    (tokenizer / "tokenizer.json").symlink_to(TOP / "models/longneedle/tokenizer.json")
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    run([options.aiperf, "profile", "--model", model, "--url", url, "--endpoint-type", "completions", "--streaming",
         "--tokenizer", str(tokenizer), "--use-server-token-count", "--use-legacy-max-tokens",
         "--input-file", str(lines), "--custom-dataset-type", "single_turn", "--request-count", str(len(prompts)),
         "--concurrency", str(options.concurrency), "--extra-inputs", json.dumps({"max_tokens": TOKENS, "ignore_eos": True}),
         "--workers-max", "2", "--ui", "none", "--artifact-dir", str(artifacts)],
        cwd=folder)
    (path,) = artifacts.rglob("profile_export_aiperf.json")
    figures = json.loads(path.read_text())
    if figures["request_count"]["avg"] != len(prompts):
        sys.exit(f"aiperf_peer: {figures['request_count']['avg']} of {len(prompts)} requests of AIPerf ended well")
    return [figures[name]["avg"] for _, name in FIGURES]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--aiperf", default="aiperf")
    parser.add_argument("--url")
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    draw = random.Random(1)
    rounds = {ours: [], theirs: []}
    with contextlib.ExitStack() as stack:
        url = options.url or stack.enter_context(Scripted(FIRST_S, GAP_S, TOKENS)).url
        for _ in range(options.rounds):
            for program, figures in rounds.items():  # other prompts each time: none of them is cached
                prompts = [" ".join(draw.choices(WORDS, k=64)) for _ in range(options.requests)]
                with tempfile.TemporaryDirectory() as folder:
                    figures.append(program(url, prompts, options, pathlib.Path(folder)))
    rows, far = [], False
    print(f"{'':20} {'bench serve':>12} {'AIPerf':>12} {'difference':>11}")
    for (name, _), a, b in zip(FIGURES, zip(*rounds[ours]), zip(*rounds[theirs])):
        a, b = statistics.median(a), statistics.median(b)
        far |= abs(a / b - 1) > 0.05
        print(f"{name:20} {a:12.2f} {b:12.2f} {a / b - 1:+10.1%}")
        rows.append({"figure": name, "bench_serve": a, "aiperf": b})
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n")
    return int(far)


if __name__ == "__main__":
    sys.exit(main())
