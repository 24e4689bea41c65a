#!/usr/bin/env python3
"""The same needles answered on the GPU and on the CPU: how many answers are equal, token by token, and how fast each was.

    tests/gpu/compare_devices.py SPILLWAY MODEL NEEDLES [--device-a cuda] [--device-b cpu] [options of `spillway eval needles`]
    tests/gpu/compare_devices.py ... --eager      the GPU's graphs against the same launched kernel by kernel
    tests/gpu/compare_devices.py ... --must 0.98  ends with status 1 when fewer answers are equal

The weights of both are the same; products are rounded to BF16 on the GPU alone, so an answer may differ where two logits are
near to each other. Options that follow are given to both.
"""

import argparse
import json
import subprocess
import sys
import time


def answers(binary, model, needles, options):
    command = [binary, "eval", "needles", model, needles, "-o", "json", *options]
    began = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-3000:]}")
    result = json.loads(done.stdout)
    result["wall"] = time.monotonic() - began
    result["log"] = [line for line in done.stderr.splitlines() if "comput" in line or "graphs" in line or " on " in line]
    return result


def show(name, result):
    kv = {key: value for key, value in result["kv"].items() if value and "bytes" not in key}
    print(f"{name}: {result['right']} of {result['asked']} right, {result['seconds']:.2f} s ({result['wall']:.2f} s in all), {kv}")
    for line in result["log"]:
        print("   ", line)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("model")
    parser.add_argument("needles")
    parser.add_argument("--device-a", default="cuda")
    parser.add_argument("--device-b", default="cpu")
    parser.add_argument("--eager", action="store_true")
    parser.add_argument("--must", type=float, default=0.0)
    args, options = parser.parse_known_args()
    a_options = [*options, "--device", args.device_a]
    b_options = [*options, "--device", args.device_a, "--enforce-eager"] if args.eager else [*options, "--device", args.device_b]
    a = answers(args.binary, args.model, args.needles, a_options)
    show(" ".join(a_options), a)
    b = answers(args.binary, args.model, args.needles, b_options)
    show(" ".join(b_options), b)
    equal, first = 0, []
    for number, (x, y) in enumerate(zip(a["answers"], b["answers"], strict=True)):
        if x["tokens"] == y["tokens"]:
            equal += 1
            continue
        at = next(i for i, (s, t) in enumerate(zip([*x["tokens"], None], [*y["tokens"], None])) if s != t)
        first.append(f"{number} ({x['kind']}, {x['right']}/{y['right']}) at token {at} of {len(y['tokens'])}")
    total = len(a["answers"])
    print(f"equal answers: {equal} of {total}" + (f"; different: {', '.join(first[:12])}" if first else ""))
    sys.exit(equal < args.must * total)


if __name__ == "__main__":
    main()
