"""What the comparisons share: running a program, describing this machine and its peaks."""

import os
import pathlib
import re
import shlex
import subprocess
import sys

TOP = pathlib.Path(__file__).resolve().parent.parent
SPILLWAY = TOP / "build/release/spillway"
LONGNEEDLE = TOP / "models/longneedle/longneedle-q8_0.gguf"


def run(command):
    """The finished process, whatever its status."""
    command = [str(word) for word in command]
    return subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def output_of(command):
    done = run(command)
    if done.returncode:
        words = shlex.join(str(word) for word in command)
        sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {words} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def commit():
    return output_of(["git", "-C", TOP, "describe", "--always", "--dirty"]).strip()


def describe():
    cpuinfo = pathlib.Path("/proc/cpuinfo").read_text()
    flags = set(re.search(r"^flags\s*:\s*(.*)$", cpuinfo, re.M).group(1).split())
    return {"cpu": re.search(r"^model name\s*:\s*(.*)$", cpuinfo, re.M).group(1), "cores": os.cpu_count(),
            "isa": sorted(flags & {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16"})}


def measure_peaks(threads, isa):
    """Peaks of this machine in this run, from the ops' own benchmark (its first line; no shape is named like the filter)."""
    program = TOP / "build/release/src/ops/linear_bench"
    if not program.exists() or "avx512_bf16" not in isa:
        return {}
    text = output_of([program, threads, "avx512", "no shape"])
    bf16, read = re.search(r"BF16 dot ([\d.]+) GFLOP/s", text), re.search(r"read ([\d.]+) GB/s", text)
    if not bf16 or not read:
        sys.exit(f"linear_bench did not print its peaks:\n{text[:500]}")
    return {"bf16_gflops": float(bf16.group(1)), "read_gbs": float(read.group(1))}


def smollm2():
    """The chat model's file, fetched if need be."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = pathlib.Path(base if base.startswith("/") else pathlib.Path.home() / ".cache")
    path = cache / "spillway/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    if not path.exists():
        output_of([SPILLWAY, "inspect", "smollm2"])
    return path
