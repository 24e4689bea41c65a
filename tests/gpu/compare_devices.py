#!/usr/bin/env python3
"""The same needles answered on the GPU and on the CPU: how many answers are equal, token by token, and how fast each was.

    tests/gpu/compare_devices.py SPILLWAY MODEL NEEDLES [--device-a cuda] [--device-b cpu] [options of `spillway eval needles`]
    tests/gpu/compare_devices.py ... --eager      the GPU's graphs against the same launched kernel by kernel
    tests/gpu/compare_devices.py ... --must 0.98  ends with status 1 when fewer answers are equal

The weights of both are the same; products are rounded to BF16 on the GPU alone, so an answer may differ where two logits are
near to each other: at the first token that differs, the best two of the second run must be within NEAR (nats), or the status is 1.
Options that follow are given to both.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))

from gpu_rows import NEAR, first_difference, is_near_tie  # noqa: E402


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
    equal, far, first = 0, 0, []
    for number, (x, y) in enumerate(zip(a["answers"], b["answers"], strict=True)):
        if x["tokens"] == y["tokens"]:
            equal += 1
            continue
        at = first_difference(x, y)
        near = is_near_tie(x, y)
        far += not near
        first.append(f"{number} ({x['kind']}, {x['right']}/{y['right']}) at token {at} of {len(y['tokens'])}"
                     f" ({'a near tie' if near else 'FAR APART'})")
    total = len(a["answers"])
    print(f"equal answers: {equal} of {total}, {total - equal - far} differ from a near tie on, {far} where the best two are over {NEAR} apart"
          + (f"; different: {', '.join(first[:12])}" if first else ""))
    sys.exit(far > 0 or equal < args.must * total)


if __name__ == "__main__":
    main()
