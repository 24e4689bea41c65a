#!/usr/bin/env python3
"""Tiered == resident on a GPU, through the whole program: the same needles answered with device memory that holds a fraction of the
contexts and with room for everything, token by token.

    tests/gpu/compare_tiers.py SPILLWAY MODEL NEEDLES [--spare MIB] [--preset full] [options of `spillway eval needles`]

The tiered run gets the least device memory with which --max-model-len fits, and --spare MiB more.

Both run with --deterministic, so that batches, tiles and layers change no bit: one answer that differs ends with status 1, and so
does a run of --preset full whose counters do not show misses, loads, evictions, saves and layers. (sparse-offload needs rows for a
whole context, so that one at a time misses nothing.)
"""

import argparse
import json
import re
import subprocess
import sys
import time


def command_of(binary, model, needles, options):
    return [binary, "eval", "needles", model, needles, "-o", "json", "--device", "cuda", "--deterministic", *options]


def least_memory(binary, model, needles, options):
    """MiB, as the program's own advice has it."""
    asked = 1
    for _ in range(4):
        command = command_of(binary, model, needles, [*options, "--device-memory", f"{asked}MiB"])
        error = subprocess.run(command, capture_output=True, text=True).stderr
        if found := re.search(r"raise --device-memory to (\d+)MiB", error):
            return int(found[1])
        found = re.search(r"workspace and staging take ([\d.]+) (MiB|GiB)", error)
        if not found:
            sys.exit(f"{' '.join(command)}: no advice on memory\n{error[-2000:]}")
        asked = int(float(found[1]) * (1024 if found[2] == "GiB" else 1)) + 2
    sys.exit("no advice on memory")


def answers(binary, model, needles, options):
    command = command_of(binary, model, needles, options)
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout)
    result["wall"] = time.monotonic() - began
    return result


def show(name, result):
    kv = {key: value for key, value in result["kv"].items() if value}
    print(f"{name}: {result['right']} of {result['asked']} right, {result['seconds']:.2f} s ({result['wall']:.2f} s in all), {kv}")


def without_host(options):
    for flag in ("--host-memory", "--load-method", "--save-method"):
        if flag in options:
            at = options.index(flag)
            options = [*options[:at], *options[at + 2:]]
    return options


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("needles")
    parser.add_argument("--spare", type=int, default=8, help="MiB of device memory beyond the least")
    parser.add_argument("--preset", default="full")
    args, options = parser.parse_known_args()
    tier_options = ["--preset", args.preset, *options]
    memory = least_memory(args.binary, args.model, args.needles, tier_options) + args.spare
    tiered = answers(args.binary, args.model, args.needles, [*tier_options, "--device-memory", f"{memory}MiB"])
    show(f"{args.preset} in {memory} MiB, {tiered['sizes']['num_frames']} rows of frames", tiered)
    resident = answers(args.binary, args.model, args.needles, ["--preset", "sparse", *without_host(options)])
    show("sparse, resident", resident)
    different = [
        number for number, (x, y) in enumerate(zip(tiered["answers"], resident["answers"], strict=True))
        if x["tokens"] != y["tokens"]
    ]
    print(f"equal answers: {len(tiered['answers']) - len(different)} of {len(tiered['answers'])}")
    if different:
        print("different:", different[:20])
    wanted = ["pages_saved"]
    if args.preset == "full":
        wanted += ["pages_missed", "pages_loaded", "pages_evicted", "layers_segmented"]
    unseen = [name for name in wanted if not tiered["kv"].get(name)]
    if unseen:
        print("never happened:", ", ".join(unseen))
    sys.exit(1 if different or unseen else 0)


if __name__ == "__main__":
    main()
