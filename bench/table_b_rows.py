"""The rows of bench/table_b: each runs the program and says what it measured against what it must show.

A row is a function of a Bench that returns a list of {what, must, measured, ok, ...}; what else is in it goes to the JSON.
"""

import json
import pathlib
import statistics
import sys
import tempfile

import llamacpp_peer
import machine
from machine import LONGNEEDLE, SPILLWAY, TOP

NEEDLES = TOP / "tests/data/needles"
DEPTH = 32768
# longneedle: pages of 32 tokens of a (layer, KV head) are 16 KiB; 8 layers of 2 KV heads.
COLUMNS, PAGE_BYTES, STATS_BYTES = 16, 2 * 32 * 128 * 2, 2 * 128 * 2


class Bench:
    """Runs programs, remembers nothing but options."""

    def __init__(self, threads, rounds, peer, host):
        self.threads, self.rounds, self.host = threads, rounds, host
        self.peer_path = peer

    def rounds_or(self, own):
        return self.rounds or own

    def needles(self, path, *options):
        command = [SPILLWAY, "eval", "needles", LONGNEEDLE, path, "-t", self.threads, "-o", "json", *options]
        return json.loads(machine.output_of(command))

    def bench(self, *arguments, model=LONGNEEDLE):
        """The rows of one run of one repetition."""
        return json.loads(machine.output_of([SPILLWAY, "bench", model, "-t", self.threads, "-r", "1", "-o", "json", *arguments]))

    def rate(self, *arguments, model=LONGNEEDLE):
        return self.bench(*arguments, model=model)[-1]["avg_ts"]

    def peer(self, model, flash, *arguments):
        if self.peer_path is None:
            self.peer_path = llamacpp_peer.llama_bench(machine.os.cpu_count())
        command = [self.peer_path, "-m", model, "-t", self.threads, "-fa", flash, "-r", "1", "-o", "json", *arguments]
        return json.loads(machine.output_of(command))[-1]["avg_ts"]


def alternate(rounds, contestants):
    """Medians by name of `rounds` interleaved runs of functions."""
    samples = {name: [] for name in contestants}
    for number in range(rounds):
        for name, run in contestants.items():
            samples[name].append(run())
        shown = ", ".join(f"{name} {values[-1]:.1f}" for name, values in samples.items())
        print(f"  round {number + 1} of {rounds}: {shown}", file=sys.stderr, flush=True)
    return {name: statistics.median(values) for name, values in samples.items()}, samples


def row(what, must, measured, ok, **more):
    return {"what": what, "must": must, "measured": measured, "ok": bool(ok), **more}


def did_something(result, *counters):
    """A mechanism that was on and did nothing makes a row worthless."""
    idle = [name for name in counters if result["kv"][name] == 0]
    if idle:
        sys.exit(f"table_b: {', '.join(idle)} stayed 0: a mechanism that is on did nothing")


SETS = (("needles-2k.jsonl", 1024), ("needles-8k.jsonl", 2048), ("needles-32k.jsonl", 2048))


def quality(bench):
    """right answers under selection against dense: three sets, two statistics, two shapes of pages"""
    dense = {name: bench.needles(NEEDLES / name, "--preset", "dense")["right"] for name, _ in SETS}
    rows = []
    for stats in ("cuboid-mean", "min-max"):
        for page, logical in ((32, 32), (64, 16)):
            right = {}
            for name, budget in SETS:
                result = bench.needles(NEEDLES / name, "--preset", "sparse", "--budget", budget, "--page-stats", stats,
                                       "--page-size", page, "--logical-page-size", logical)
                did_something(result, "selections", "pages_scored")
                right[name] = result["right"]
            total, best = sum(right.values()), sum(dense.values())
            listed = ", ".join(f"{name[8:-6]} {right[name]} of {dense[name]}" for name in right)
            rows.append(row(f"right answers, {stats}, pages {page}/{logical}", "99 % of dense", f"{total} of {best} ({listed})",
                            total >= 0.99 * best, dense=dense, right=right))
    return rows


def memory_for(bench, frames, context, *options):
    """(--device-memory, its frames): the least MiB that give at least so many rows of frames; sizes are monotonic in it."""
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        file.write(json.dumps({"context": "a", "items": [{"kind": "k", "question": "b", "answer": "c", "depth": 0}]}) + "\n")
        file.flush()

        def frames_of(mib):
            command = [SPILLWAY, "eval", "needles", LONGNEEDLE, file.name, "-o", "json", "-t", bench.threads,
                       "--max-model-len", context, "--device-memory", f"{mib}MiB", *options]
            done = machine.run(command)
            return json.loads(done.stdout)["sizes"]["num_frames"] if done.returncode == 0 else 0

        low, high = 16, 2048
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if frames_of(middle) >= frames else (middle, high)
        return high, frames_of(high)


def tiers(bench):
    """the same answers through tiers, frames for 4 selections: the same tokens, bit for bit"""
    rows = []
    for name, budget in SETS:
        context = int(name[8:-7]) * 1024 + 640
        policy = ("--budget", budget, "--max-model-len", context)
        resident = bench.needles(NEEDLES / name, "--preset", "sparse", *policy)
        frames = max(4 * budget // 32, 1)
        mib, got = memory_for(bench, frames, context, "--preset", "full", "--budget", budget)
        tiered = bench.needles(NEEDLES / name, "--preset", "full", "--device-memory", f"{mib}MiB", *policy)
        did_something(tiered, "pages_saved", "selections")
        differing = sum(a["tokens"] != b["tokens"] for a, b in zip(resident["answers"], tiered["answers"]))
        missed = tiered["kv"]["pages_missed"] / tiered["kv"]["pages_selected"]
        rows.append(row(f"{name[8:-6]} set through tiers, {got} rows of frames ({got * 32 / budget:.1f} selections)", "the same tokens",
                        f"{differing} of {len(tiered['answers'])} answers differ; {100 * missed:.1f} % of the pages missed",
                        differing == 0, kv=tiered["kv"], sizes=tiered["sizes"]))
    # Four selections hold a short context whole, so a set alone may miss nothing.
    did_something({"kv": {"pages_missed": sum(r["kv"]["pages_missed"] for r in rows)}}, "pages_missed")
    return rows


def device_192(bench):
    """one 32k prompt with 192 MiB of device memory, its KV being 256 MiB"""
    with open(NEEDLES / "needles-32k.jsonl", encoding="utf-8") as lines:
        document = json.loads(next(lines))
    document["items"] = [item for item in document["items"] if item["kind"] in ("niah", "secret")][:1]
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl", encoding="utf-8") as file:
        file.write(json.dumps(document) + "\n")
        file.flush()
        full = bench.needles(file.name, "--preset", "full", "--device-memory", "192MiB")
        did_something(full, "pages_loaded", "pages_saved", "layers_segmented")
        peak = full["kv"]["device_bytes_peak"]
        dense = machine.run([SPILLWAY, "eval", "needles", LONGNEEDLE, file.name, "--preset", "dense", "--device-memory", "192MiB"])
    refused = dense.returncode != 0 and "together they may have" in dense.stderr
    words = dense.stderr.strip().splitlines()[-1] if dense.stderr.strip() else ""
    return [row("one 32k prompt in 192 MiB, full", "answers, peak within", f"{full['right']} of {full['asked']} right, peak "
                f"{peak / 2**20:.1f} MiB", full["right"] == full["asked"] and 0 < peak <= 192 * 2**20, kv=full["kv"]),
            row("the same, dense", "refuses before work", words, refused)]


def decode_32k(bench):
    """decode at depth 32768, budget 2048, against llama.cpp dense: at least 5x"""
    at = ("-p", 0, "-n", 32, "-d", DEPTH)
    medians, samples = alternate(bench.rounds_or(3), {
        "sparse": lambda: bench.rate(*at, "--preset", "sparse", "--budget", 2048),
        "peer": lambda: bench.peer(LONGNEEDLE, "off", *at),
        "peer_fa": lambda: bench.peer(LONGNEEDLE, "on", *at)})
    peer = max(medians["peer"], medians["peer_fa"])
    ratio = medians["sparse"] / peer
    # Read for a token: the weights, the statistics of every page, the selected pages.
    read = LONGNEEDLE.stat().st_size + COLUMNS * (DEPTH // 32 * STATS_BYTES + 2048 // 32 * PAGE_BYTES)
    rows = [row("decode at depth 32768, budget 2048, against llama.cpp", ">= 5x (aim 10x)",
                f"{medians['sparse']:.1f} against {peer:.1f} tokens/s, {ratio:.1f}x", ratio >= 5, samples=samples)]
    if bench.host.get("read_gbs"):
        bound = bench.host["read_gbs"] * 1e9 / read
        rows.append(row("the same against its own byte bound", "within 1.5x", f"{bound / medians['sparse']:.2f}x ({bound:.0f} tokens/s)",
                        bound / medians["sparse"] <= 1.5, bytes=read))
    return rows


def decode_7680(bench):
    """SmolLM2, decode at depth 7680, budget 1024, against llama.cpp dense: at least 2.5x"""
    at, model = ("-p", 0, "-n", 32, "-d", 7680), machine.smollm2()
    medians, samples = alternate(bench.rounds_or(5), {
        "sparse": lambda: bench.rate(*at, "--preset", "sparse", "--budget", 1024, model=model),
        "peer": lambda: bench.peer(model, "off", *at), "peer_fa": lambda: bench.peer(model, "on", *at)})
    peer = max(medians["peer"], medians["peer_fa"])
    return [row("SmolLM2, decode at depth 7680, budget 1024, against llama.cpp", ">= 2.5x",
                f"{medians['sparse']:.1f} against {peer:.1f} tokens/s, {medians['sparse'] / peer:.2f}x",
                medians["sparse"] >= 2.5 * peer, samples=samples)]


def below_budget(bench):
    """all resident, context under the budget: full against dense, decode and prompt, within 3 %"""
    rows = []
    for what, at in (("decode 64 at depth 1024", ("-p", 0, "-n", 64, "-d", 1024)), ("prompt 1536", ("-p", 1536, "-n", 0))):
        medians, samples = alternate(bench.rounds_or(9), {preset: lambda preset=preset: bench.rate(*at, "--preset", preset)
                                                          for preset in ("dense", "full")})
        ratio = medians["full"] / medians["dense"]
        rows.append(row(f"{what}, all resident, full against dense", "within 3 %", f"{medians['full']:.1f} against "
                        f"{medians['dense']:.1f} tokens/s, {ratio:.3f}x", ratio >= 0.97, samples=samples))
    return rows


def frames_4(bench):
    """decode at depth 32768, frames for 4 selections against all resident: at least 0.8x"""
    context = DEPTH + 512
    mib, got = memory_for(bench, 4 * 64, context, "--preset", "full", "--max-num-seqs", 1)
    at = ("-p", 0, "-n", 64, "-d", DEPTH, "--preset", "full", "--max-model-len", context)
    last = {}

    def tiered():
        last.update(bench.bench(*at, "--device-memory", f"{mib}MiB")[-1])
        return last["avg_ts"]

    medians, samples = alternate(bench.rounds_or(3), {"resident": lambda: bench.rate(*at), "tiered": tiered})
    did_something(last, "pages_missed", "pages_loaded")
    ratio = medians["tiered"] / medians["resident"]
    return [row(f"decode at depth 32768, {got} rows of frames ({got / 64:.1f} selections) against all resident", ">= 0.8x",
                f"{medians['tiered']:.1f} against {medians['resident']:.1f} tokens/s, {ratio:.2f}x", ratio >= 0.8,
                samples=samples, kv=last["kv"])]


def heads_file(folder, share, sink, local, seed=None):
    """A heads file with this share of streaming heads: spread evenly, or drawn with a seed."""
    import random
    heads = [(layer, head) for layer in range(8) for head in range(2)]
    order = random.Random(seed).sample(heads, len(heads)) if seed is not None else sorted(heads, key=lambda lh: (lh[1], lh[0] % 2, lh[0]))
    chosen = set(order[:round(share * len(heads))])
    path = pathlib.Path(folder) / f"heads-{share}-{seed}.json"
    path.write_text(json.dumps({"version": 1, "model": "longneedle", "sink": sink, "local": local,
                                "streaming": [[int((layer, head) in chosen) for head in range(2)] for layer in range(8)]}))
    return path


def prefill_streaming(bench):
    """prefill 32768 with half and three quarters of the KV heads streaming against dense: 0.65 and 0.4 of the time"""
    with tempfile.TemporaryDirectory() as folder:
        at = ("-p", DEPTH, "-n", 0)
        contestants = {"dense": lambda: bench.rate(*at, "--preset", "dense")}
        for share in (0.5, 0.75):
            path = heads_file(folder, share, 128, 1024)
            contestants[share] = lambda path=path: bench.rate(*at, "--preset", "duo", "--heads", path)
        medians, samples = alternate(bench.rounds_or(3), contestants)
    return [row(f"prefill 32768, {share} of the KV heads streaming, against dense", f"<= {most} of the time",
                f"{medians['dense'] / medians[share]:.2f} ({medians[share]:.0f} against {medians['dense']:.0f} tokens/s)",
                medians["dense"] / medians[share] <= most, samples={str(k): v for k, v in samples.items()})
            for share, most in ((0.5, 0.65), (0.75, 0.4))]


def kv_bytes(bench):
    """KV bytes held by a sequence at 32768 tokens, half of the KV heads streaming, no prefix cache: at most 0.55 of dense"""
    with tempfile.TemporaryDirectory() as folder:
        at = ("-p", 64, "-n", 0, "--max-model-len", DEPTH, "--no-enable-prefix-caching")
        sizes = {"dense": bench.bench(*at, "--preset", "dense")[-1]["sizes"],
                 "half": bench.bench(*at, "--preset", "duo", "--heads", heads_file(folder, 0.5, 128, 1024))[-1]["sizes"]}
    held = {name: DEPTH // s["page_tokens"] * s["block_bytes"] + (s["ring_bytes"] // s["num_rings"] if s["num_rings"] else 0)
            for name, s in sizes.items()}
    ratio = held["half"] / held["dense"]
    return [row("KV bytes of a sequence of 32768 tokens, half of the KV heads streaming", "<= 0.55 of dense",
                f"{ratio:.3f} ({held['half'] / 2**20:.0f} of {held['dense'] / 2**20:.0f} MiB)", ratio <= 0.55, sizes=sizes)]


def heads_quality(bench):
    """right answers with the heads file that calibrate writes at a share of three quarters: at least 99 % of dense's"""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "heads.json"
        machine.output_of([SPILLWAY, "calibrate", LONGNEEDLE, "--share", "0.75", "--sink", "64", "--local", "256", "--random", "5", "-o", path])
        right, dense = {}, {}
        for name, _ in SETS:
            dense[name] = bench.needles(NEEDLES / name, "--preset", "dense")["right"]
            right[name] = bench.needles(NEEDLES / name, "--preset", "duo", "--heads", path)["right"]
        calibrated = json.loads(path.read_text())
    kl, random = calibrated["calibration"]["divergence"], calibrated["calibration"]["random_divergence"]
    total, best = sum(right.values()), sum(dense.values())
    listed = ", ".join(f"{name[8:-6]} {right[name]} of {dense[name]}" for name in right)
    return [row("right answers with calibrated heads, three quarters streaming, sink 64, local 256", "99 % of dense",
                f"{total} of {best} ({listed})", total >= 0.99 * best, heads=calibrated),
            row("KL to dense of the calibrated heads against five random choices of equal share", "below all of them",
                f"{kl:.3f} against {min(random):.3f} to {max(random):.3f} nats", len(random) == 5 and kl < min(random))]


def reuse(bench):
    """reuse-interval 4 against 1 at depth 32768: faster, and what it costs in answers"""
    at = ("-p", 0, "-n", 64, "-d", DEPTH, "--preset", "sparse", "--budget", 2048)
    medians, samples = alternate(bench.rounds_or(3), {n: lambda n=n: bench.rate(*at, "--reuse-interval", n) for n in (1, 4)})
    right = {}
    for interval in (1, 4):
        result = bench.needles(NEEDLES / "needles-32k.jsonl", "--preset", "sparse", "--reuse-interval", interval)
        right[interval] = result["right"]
    did_something(result, "selections_reused")
    return [row("reuse-interval 4 against 1, decode at depth 32768", "faster; answers listed",
                f"{medians[4]:.1f} against {medians[1]:.1f} tokens/s, {medians[4] / medians[1]:.2f}x; 32k set {right[4]} against {right[1]} right",
                medians[4] > medians[1], samples={str(k): v for k, v in samples.items()})]


ROWS = {"quality": quality, "tiers": tiers, "device-192": device_192, "decode-32k": decode_32k, "decode-7680": decode_7680,
        "below-budget": below_budget, "frames-4": frames_4, "prefill-streaming": prefill_streaming, "kv-bytes": kv_bytes,
        "heads": heads_quality, "reuse": reuse}
