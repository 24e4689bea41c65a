"""The rows of tools/gpu_check that run whole engines (spillway bench), on the shapes of models with random weights.

As bench/gpu_rows.py, whose helpers these use. Runs of one group share a process, so that homes are pinned once. Seconds in SECONDS are
those of one H200 with 16 cores, starts included.
"""

import json
import pathlib
import shlex
import statistics
import subprocess
import tempfile

import dense_queue
from gpu_rows import LONGNEEDLE, NEEDLES, TOP, row

# Expected, a group.
SECONDS = {"steps": 95, "deterministic": 25, "resident": 60, "capped": 90, "whole": 190, "whole-short": 110, "arrivals": 510, "arrivals-8": 140,
           "serving": 100, "long-prompts": 60, "ladder": 170, "ready": 45}

GIB = 1 << 30
LAYERS, KV_HEADS, HEAD_DIM, WIDTH = 32, 8, 128, 4096  # of the 8B shape
TOKEN_BYTES = LAYERS * KV_HEADS * HEAD_DIM * 2 * 2    # K and V of a token in BF16
STEP_ROWS = 2048                                      # of runs whose device memory is small

# Recorded figures of vLLM 0.26 (BF16, FlashAttention 3, CUDA graphs) on an H200: seconds of a prompt, milliseconds of a step, and
# tokens a second with 115 GiB of pages.
VLLM_PROMPT_S = {8192: 0.206, 32768: 1.20, 130816: 10.2}
VLLM_STEP_MS = {8192: 5.3, 32768: 6.06, 130816: 9.05}
VLLM_DECODE_TS = {7: 183, 28: 839, 109: 3261}


def config(**shape):
    common = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}
    return common | shape


# Llama-3.1-8B's.
SHAPE_8B = config(hidden_size=4096, intermediate_size=14336, num_hidden_layers=LAYERS, num_attention_heads=32, num_key_value_heads=KV_HEADS,
                  head_dim=HEAD_DIM, vocab_size=128256, max_position_embeddings=131072, rope_theta=500000.0)
# LWM-7B's: as many KV heads as query heads.
SHAPE_LWM = config(hidden_size=4096, intermediate_size=11008, num_hidden_layers=LAYERS, num_attention_heads=32, num_key_value_heads=32,
                   head_dim=HEAD_DIM, vocab_size=32000, max_position_embeddings=1048576, rope_theta=50000000.0)


class Shape:
    """A model folder of this shape, for --load-format dummy, while it is open."""

    def __init__(self, shape):
        self.shape = shape

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name)
        (self.path / "config.json").write_text(json.dumps(self.shape))
        heads = self.shape["num_key_value_heads"]
        self.heads = self.path / "heads.json"  # every other KV head sees its first and last tokens only
        self.heads.write_text(json.dumps({"version": 1, "model": "dummy", "sink": 128, "local": 1024,
                                          "streaming": [[head % 2 for head in range(heads)] for _ in range(LAYERS)]}))
        return self

    def __exit__(self, *error):
        self.folder.cleanup()


def runs(machine, model, described, timeout=520, load_format="dummy"):
    """(name, result of one test) as they end, of runs by name: all in one process. What fails is left out, and said."""
    names = list(described)
    with tempfile.NamedTemporaryFile("w", suffix=".runs") as file:
        file.write("".join(" ".join(shlex.quote(str(o)) for o in options) + "\n" for options in described.values()))
        file.flush()
        for line in machine.lines("spillway", "bench", model, "--load-format", load_format, "--runs", file.name, timeout=timeout):
            if line.startswith("{"):
                test = json.loads(line)
                yield names[test["run"]], test


def common(*options, repeats=1):
    return ("--device", "cuda", "-o", "jsonl", "-r", repeats, *options)


def seconds(test):
    return statistics.median(test["samples_ns"]) * 1e-9


def rate(test):
    """Tokens a second of decoding: the mean, as windows that select are slower than those that reuse, and a median would know one kind."""
    return test["decode_ts"]


def step_s(test):
    """Seconds of a decode step, the mean."""
    return test["decode_rows"] / test["decode_ts"]


def speed(test):
    spread = test["decode_windows"]["ts"]
    return (f"{rate(test):.0f} tokens/s (windows' p10 {spread['p10']:.0f}, p50 {spread['p50']:.0f}, p90 {spread['p90']:.0f}) "
            f"in steps of {test['decode_rows']:.1f} rows")


def mean_ttft_s(test):
    return 1e-3 * test["ttft_ms"]


def median_ttft_s(test):
    return 1e-3 * statistics.median(first - arrival for arrival, _, first, _ in test["requests"])


def missed(test):
    kv = test["kv"]
    share = f"{100 * kv['pages_missed'] / max(1, kv['pages_selected']):.1f} % of the pages missed"
    return share + (f", gathered at {kv['bytes_gathered'] / kv['load_us'] * 1e-3:.1f} GB/s" if kv["load_us"] else "")


def for_kv(test):
    """Bytes of frames, statistics, tables, layer buffers and scratch, as planned."""
    s = test["sizes"]
    return s["device_bytes"] - s["activation_bytes"] - s["workspace_bytes"] - s["staging_bytes"]


def decode(count, depth, generated):
    """`count` prompts of their own with random K and V, then decode steps long enough to time alone."""
    return common("--fill", "random", "--own-prompts", "-p", 0, "-n", generated, "-d", depth, "--streams", count)


def whole(count, prompt, generated, repeats=1):
    """`count` whole requests."""
    return common("-p", 0, "-n", 0, "--pg", f"{prompt},{generated}", "--streams", count, repeats=repeats)


WORKSPACE = {STEP_ROWS: 330 * 2**20, 8192: 586 * 2**20}  # of steps of so many rows, or a little less


def small_memory(kv_bytes, rows=STEP_ROWS):
    """Options of a preset that computes prompts by chunks: `kv_bytes`, or a little less, and workspace of steps of `rows`."""
    return "--max-num-batched-tokens", rows, "--device-memory", kv_bytes + WORKSPACE[rows]


def device_memory(kv_bytes, context, rows=STEP_ROWS):
    """Of one that computes them by layers: also what waits between layers."""
    pages = -(-context // 32) + -(-rows // 32)
    return "--max-num-batched-tokens", rows, "--device-memory", kv_bytes + (pages * 32 + rows) * WIDTH * 4 + WORKSPACE[rows]


def steps(machine):
    """one sequence of Llama-3.1-8B's shape: prompts and decode steps, dense, beside vLLM's recorded figures"""
    described = {}
    for tokens in VLLM_PROMPT_S:
        described[f"prompt {tokens}"] = common("--preset", "dense", "-p", tokens, "-n", 0, "--max-model-len", 131072, repeats=3)
        described[f"step {tokens}"] = common("--preset", "dense", "--fill", "random", "-p", 0, "-n", 64, "-d", tokens, "--max-model-len", 131072, repeats=3)
    with Shape(SHAPE_8B) as model:
        for _, test in runs(machine, model.path, described):
            of = f"median of {len(test['samples_ns'])}"
            if test["n_prompt"]:
                tokens, peer = test["n_prompt"], VLLM_PROMPT_S[test["n_prompt"]]
                yield row(f"prompt of {tokens}, dense", "<= 1.03 of vLLM's", f"{seconds(test):.3f} against {peer} s, {of}",
                          seconds(test) <= 1.03 * peer, samples_ns=test["samples_ns"])
            else:
                # From the first token to the last of one sequence.
                tokens, ms, peer = test["n_depth"], 1e3 * seconds(test) / test["n_gen"], VLLM_STEP_MS[test["n_depth"]]
                yield row(f"decode step at {tokens}, dense, batch 1", "<= 1.03 of vLLM's", f"{ms:.2f} against {peer} ms, {of} times {test['n_gen']} steps",
                          ms <= 1.03 * peer, samples_ns=test["samples_ns"])


def deterministic(machine):
    """what it costs that answers do not depend on what else runs"""
    described = {}
    for name, flags in (("free", ()), ("deterministic", ("--deterministic",))):
        described[f"{name} prompt"] = common("--preset", "dense", "-p", "8192,32768", "-n", 0, "--max-model-len", 33000, *flags)
        for count, depth in ((1, 8192), (16, 8192)):
            described[f"{name} {count}"] = (*decode(count, depth, 128), "--preset", "dense", "--max-model-len", 8448, *flags)
    found = {}
    with Shape(SHAPE_8B) as model:
        for name, test in runs(machine, model.path, described):
            kind, what = name.split()
            what = f"prompt of {test['n_prompt']}" if what == "prompt" else f"decode step of {what} at {test['n_depth']}"
            ms = seconds(test) * 1e3 if test["n_prompt"] else 1e3 * step_s(test)
            found[kind, what] = ms
            if kind == "deterministic" and ("free", what) in found:
                free = found["free", what]
                yield row(f"{what}, dense, --deterministic / without", "shown", f"{ms:.2f} against {free:.2f} ms: {ms / free:.3f}x", True)


def resident(machine):
    """decode of Llama-3.1-8B's shape with all of the GPU's memory for pages: sparse beside vLLM's recorded figures"""
    described, about = {}, {}
    for count, depth, times in ((7, 130000, 5), (28, 32256, 3), (109, 7680, 2)):
        what = f"{count} sequences of {depth}, sparse, budget 2048, decode"
        described[what] = (*decode(count, depth, 512), "--preset", "sparse", "--max-model-len", depth + 512 + 64,
                           "--max-num-batched-tokens", 16384, "--chunk-size", 16384)
        about[what] = (count, depth, times)
    with Shape(SHAPE_8B) as model:
        for what, test in runs(machine, model.path, described):
            count, depth, times = about.pop(what)
            ratio = rate(test) / VLLM_DECODE_TS[count]
            yield row(what, f">= {times} times vLLM's {VLLM_DECODE_TS[count]} tokens/s", f"{speed(test)}: {ratio:.2f}x; "
                      f"{count * (depth + 512) * TOKEN_BYTES / GIB:.0f} GiB of pages", ratio >= times, result=test)
    for what, (count, depth, times) in about.items():
        yield row(what, f">= {times} times vLLM's {VLLM_DECODE_TS[count]} tokens/s", "failed", False)


# Groups that replay selections, and the needle sets whose first text a trace continues, with characters that are left out at its
# beginning: the recorded rows then stand before the depths at which they are replayed.
REPLAYING = ("capped", "whole", "whole-short", "arrivals", "arrivals-8", "ladder")
TRACED = {"32k": 5000, "128k": 9000}


def make_trace(program, length):
    """A trace of what longneedle selects while it continues the first text of a needle set: made once, on the CPU, in minutes."""
    path = TOP / "build/traces" / f"{length}.jsonl"
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = path.with_suffix(".texts")
    continued = 4600  # characters: about 1,300 steps
    with open(NEEDLES / f"needles-{length}.jsonl") as source:
        text = json.loads(source.readline())["context"]
    item = {"kind": "text", "depth": 1.0, "question": text[-continued:], "answer": ""}
    texts.write_text(json.dumps({"context": text[TRACED[length]:-continued], "items": [item]}) + "\n")
    made = path.with_suffix(".part")
    subprocess.run([program, "trace", LONGNEEDLE, texts, "-o", made, "--preset", "sparse", "--device", "cpu"], check=True)
    made.rename(path)
    return path


def trace(machine, length):
    """The packed trace, or one that is made now."""
    if machine.traces:
        return machine.traces / f"{length}.jsonl"
    return make_trace(machine.programs["spillway"], length)


KV_16 = 16 * GIB
# Of a request: 32k with 1,024 tokens of answer, and 128k.
CONTEXTS = {"32k": 32768 + 1024 + 64, "128k": 129024 + 384 + 64}
HOST_SPARE = 20 * GIB  # left to the system and to the random weights


def home_bytes(context, token_bytes):
    return -(-context // 32) * 32 * token_bytes


def fitting(machine, count, request_bytes):
    """That many requests, or as many as the host's memory has homes for."""
    return max(1, min(count, (machine.host_memory(count * request_bytes + HOST_SPARE) - HOST_SPARE) // request_bytes))


def requests(machine, length, layers=LAYERS):
    """24 requests of 32k, or 6 of 128k, or as many as fit."""
    return fitting(machine, {"32k": 24, "128k": 6}[length], home_bytes(CONTEXTS[length], TOKEN_BYTES * layers // LAYERS))


def full(machine, length, count, *options, layers=LAYERS, rows=STEP_ROWS):
    """Options of `full` in 16 GiB for KV, or its share for a part of the layers, with a recorded trace's selections and homes for
    `count` requests."""
    context = CONTEXTS[length]
    return (*options, "--preset", "full", "--replay-selections", trace(machine, length), "--max-model-len", context,
            *device_memory(KV_16 * layers // LAYERS, context, rows), "--host-memory", count * home_bytes(context, TOKEN_BYTES * layers // LAYERS))


def dense(length, *options, layers=LAYERS, rows=STEP_ROWS):
    return (*options, "--preset", "dense", "--max-model-len", CONTEXTS[length], *small_memory(KV_16 * layers // LAYERS, rows))


def capped(machine):
    """16 GiB for KV, 24 requests of 32k and 6 of 129,024 tokens: decode of full, with a recorded trace's selections, beside dense"""
    # Filling a prompt takes a step for every `rows` x LAYERS of its tokens x layers, and those that are filled decode meanwhile: with
    # small steps the first are at their end when the last begin, and few decode together in the interval that is measured.
    generated, rows = 384, 8192
    described, about = {}, {}
    for length, depth, streams, least in (("32k", 32768, 3, {1: 2.0, 4: 2.5}), ("128k", 129024, 1, {1: 4.0, 4: 5.0})):
        count = requests(machine, length)
        described[f"dense {length}"] = dense(length, *decode(streams, depth, generated), rows=rows)
        for reuse, times in least.items():
            what = f"16 GiB for KV, {count} requests of {depth}, decode of full / dense, reuse {reuse}"
            described[what] = full(machine, length, count, *decode(count, depth, generated), "--reuse-interval", reuse,
                                   "--max-inject-tokens", (depth + 2) * LAYERS, rows=rows)
            about[what] = (f"dense {length}", times)
    found = {}
    with Shape(SHAPE_8B) as model:
        for what, test in runs(machine, model.path, described):
            found[what] = test
            peer, times = about.get(what, (None, 0))
            if peer not in found:
                continue
            del about[what]
            ratio = rate(test) / rate(found[peer])
            yield row(what, f">= {times}x", f"{speed(test)} against {speed(found[peer])}: {ratio:.2f}x; {missed(test)}; "
                      f"{for_kv(test) / GIB:.2f} GiB planned for KV", ratio >= times, full=test, dense=found[peer])
    for what, (_, times) in about.items():
        yield row(what, f">= {times}x", "failed", False)


def warm(machine, count, layers=LAYERS):
    """Pins homes and chooses kernels: not measured."""
    return full(machine, "32k", count, *decode(count, 32768, 2), "--max-inject-tokens", 32770 * layers, layers=layers)


def whole_rate(test):
    """Generated tokens a second, first arrival to last token, median of its repeats."""
    return test["n_streams"] * test["n_gen"] / seconds(test)


def whole_runs(machine, generated, least):
    count, rows = requests(machine, "32k"), 8192  # as serve has it: each step that holds a piece of a prompt delays all that decode
    load = whole(count, 32768, generated)
    described = {"warm": warm(machine, count), "full": full(machine, "32k", count, *load, rows=rows), "dense": dense("32k", *load, rows=rows)}
    with Shape(SHAPE_8B) as model:
        found = dict(runs(machine, model.path, described))
    what, must = f"16 GiB for KV, {count} requests of 32768 + {generated}, whole run, full / dense", f">= {least}x tokens/s"
    if "full" not in found or "dense" not in found:
        yield row(what, must, "failed", False, **found)
        return
    ours, theirs = (whole_rate(found[preset]) for preset in ("full", "dense"))
    mean, median = ([ttft(found[preset]) for preset in ("full", "dense")] for ttft in (mean_ttft_s, median_ttft_s))
    yield row(what, must, f"{ours:.0f} against {theirs:.0f} tokens/s: {ours / theirs:.2f}x; mean TTFT {mean[0]:.1f} against {mean[1]:.1f} s "
              f"(median {median[0]:.1f} against {median[1]:.1f}); {missed(found['full'])}", ours >= least * theirs, full=found["full"], dense=found["dense"])


def whole_long(machine):
    """16 GiB for KV: 24 requests of 32k prompt and 1,024 output tokens at once, full beside dense"""
    yield from whole_runs(machine, 1024, 1.6)


def whole_short(machine):
    """16 GiB for KV: 24 requests of 32k prompt and 256 output tokens at once, full beside dense"""
    yield from whole_runs(machine, 256, 1.0)


SLOTS = 3  # requests of 32k that `dense` holds in 16 GiB
PATTERN_RATE = 1000.0


def poisson(machine, layers):
    count, prompt, generated, seed = 48, 32768, 1024, 1
    # The load's own arrivals, which the same seed scales to any rate; a short prompt first, so that choosing kernels is not timed.
    measured = {"pattern": dense("32k", *whole(count, 32, 2), "--request-rate", PATTERN_RATE, "--seed", seed, layers=layers),
                "warm": dense("32k", *common("-p", 4096, "-n", 0), layers=layers),
                "prompt": dense("32k", *common("-p", prompt, "-n", 0), layers=layers)}
    measured |= {f"step {rows}": dense("32k", *decode(rows, prompt, 128), layers=layers) for rows in (1, SLOTS)}
    part = "" if layers == LAYERS else f", {layers} of {LAYERS} layers in {KV_16 * layers // LAYERS // GIB} GiB for KV"
    what = f"{count} Poisson arrivals of {prompt} + {generated} at 1.3 times what dense sustains{part}"
    with Shape(SHAPE_8B | {"num_hidden_layers": layers}) as model:
        found = dict(runs(machine, model.path, measured))
        if len(found) == len(measured):
            one, all_of = (step_s(found[f"step {rows}"]) for rows in (1, SLOTS))
            server = dense_queue.Server(prompt_s=seconds(found["prompt"]), chunks=-(-prompt // STEP_ROWS),
                                        step_s=dense_queue.steps_between(SLOTS, one, all_of))
            pattern = [1e-3 * arrival * PATTERN_RATE for arrival, *_ in found["pattern"]["requests"]]
            per_second = 1.3 * dense_queue.sustained_rate(server, pattern, generated)
            load = (*whole(count, prompt, generated), "--request-rate", f"{per_second:.4f}", "--seed", seed)
            homes = requests(machine, "32k", layers)
            found = dict(runs(machine, model.path, {"warm": warm(machine, homes, layers), "full": full(machine, "32k", homes, *load, layers=layers),
                                                    "dense": dense("32k", *load, layers=layers)}))
    if "full" not in found or "dense" not in found:
        yield row(f"{what}, mean TTFT dense / full", ">= 5x", "failed", False)
        return
    ours, theirs = found["full"], found["dense"]
    yield row(f"{what}, mean TTFT dense / full", ">= 5x", f"{mean_ttft_s(theirs):.2f} against {mean_ttft_s(ours):.2f} s: "
              f"{theirs['ttft_ms'] / ours['ttft_ms']:.2f}x at {per_second:.3f} a second; median {median_ttft_s(theirs):.2f} against "
              f"{median_ttft_s(ours):.2f} s", theirs["ttft_ms"] >= 5 * ours["ttft_ms"], full=ours, dense=theirs)
    yield row(f"{what}, mean TBT full / dense", "<= 1.2x", f"{ours['tbt_ms']:.2f} against {theirs['tbt_ms']:.2f} ms: "
              f"{ours['tbt_ms'] / theirs['tbt_ms']:.2f}x; {missed(ours)}", ours["tbt_ms"] <= 1.2 * theirs["tbt_ms"])


def arrivals(machine):
    """48 Poisson arrivals of 32k + 1,024 tokens, full beside dense, 16 GiB for KV"""
    yield from poisson(machine, LAYERS)


def arrivals_8(machine):
    """the same with a quarter of the layers and of the memory, in a quarter of the time"""
    yield from poisson(machine, 8)


def serving(machine):
    """full beside dense where everything fits, whole requests"""
    described = {}
    for count, repeats in ((1, 5), (64, 3)):  # the first of a process is slower: a median of fewer would feel it
        options = (*whole(count, 1024, 256, repeats), "--max-model-len", 2048)
        for name, more in (("dense", ()), ("full", ("--host-memory", "12GiB")), ("dense again", ())):
            described[f"{count} {name}"] = (*options, "--preset", name.split()[0], *more)
    found, what, must = {}, "batch {}, 1k in, 256 out, full / dense", ">= 0.98x"
    with Shape(SHAPE_8B) as model:
        for name, test in runs(machine, model.path, described):
            found[name] = test
            count, kind = name.split(maxsplit=1)
            if kind != "dense again" or not {f"{count} full", f"{count} dense"} <= found.keys():
                continue
            rates = {kind: whole_rate(found[f"{count} {kind}"]) for kind in ("full", "dense", "dense again")}
            most = max(rates["dense"], rates["dense again"])
            yield row(what.format(count), must, f"{rates['full']:.0f} against {most:.0f} tokens/s: {rates['full'] / most:.3f}x; "
                      f"median of {len(test['samples_ns'])}", rates["full"] >= 0.98 * most, full=found[f"{count} full"],
                      dense=found[f"{count} dense"], again=test)
    for count in (1, 64):
        if any(f"{count} {kind}" not in found for kind in ("dense", "full", "dense again")):
            yield row(what.format(count), must, "failed", False)


# Beside weights and what was planned: kernels, libraries, graphs. 20 to 236 MiB were seen, 126 with at most three sequences.
REST_BYTES = 256 << 20


def small_row(test):
    """One prompt of 128k in 2 GiB for KV, and the tokens it makes through tiers."""
    what, must = "one prompt of 128k in 2 GiB for KV", "answers within the limit"
    if not test:
        return row(what, must, "failed", False)
    planned, beside, kv = test["sizes"]["device_bytes"], test["gpu_bytes_taken"] - test["sizes"]["weights_bytes"], test["kv"]
    # The peak is counted where memory is allocated, and only long lists of logit changes outgrow the plan; `beside` is what the GPU says.
    within = for_kv(test) <= 2 * GIB and kv["device_bytes_peak"] <= planned + (1 << 20) and beside <= planned + REST_BYTES
    return row(what, must, f"{test['ttft_ms'] * 1e-3:.2f} s, then {test['n_gen']} tokens in {test['tbt_ms']:.2f} ms each, {missed(test)}; "
               f"{for_kv(test) / GIB:.2f} GiB for KV; beside the weights {planned / GIB:.2f} GiB planned, {beside / GIB:.2f} GiB taken, "
               f"the rest {(beside - planned) / 2**20:.0f} MiB", within and kv["pages_missed"] > 0, result=test)


def long_prompts(machine):
    """a prompt of 128k: half of the KV heads streaming, and in 2 GiB of device memory for KV"""
    prompt, generated = 130816, 32
    # A short prompt first, so that choosing kernels is not timed.
    options = common("--own-prompts", "-p", f"8192,{prompt}", "-n", 0, "--max-model-len", 131072)
    answers = common("--own-prompts", "-p", 8192, "-n", 0, "--pg", f"{prompt},{generated}", "--max-model-len", 131072)
    found = {}
    with Shape(SHAPE_8B) as model:
        described = {"dense": ("--preset", "dense", *options), "half": ("--preset", "duo", "--heads", model.heads, *options),
                     "small": ("--preset", "full", *answers, "--host-memory", "18GiB", *device_memory(2 * GIB, 131072))}
        for name, test in runs(machine, model.path, described):
            if test["n_prompt"] == prompt:
                found[name] = test
            if name == "half" and "dense" in found and "half" in found:
                one, other = seconds(found["half"]), seconds(found["dense"])
                yield row("prompt of 128k, half of the KV heads streaming", "<= 0.75 of dense", f"{one:.2f} against {other:.2f} s: {one / other:.2f}",
                          one <= 0.75 * other)
    yield small_row(found.get("small"))


def ladder_presets(model, recorded, context, kv_bytes, homes):
    """The steps of both papers, each with what it adds to one before it."""
    chunks, layers = small_memory(kv_bytes), device_memory(kv_bytes, context)
    replay = ("--replay-selections", recorded)
    tiers = (*replay, "--host-memory", homes)
    offload = ("--preset", "sparse-offload", *tiers, *chunks)
    transfer = ("--load-method", "auto", "--save-method", "auto")
    return {"dense": ("--preset", "dense", *chunks),
            "duo: half of the heads streaming": ("--preset", "duo", "--heads", model.heads, *chunks),
            "sparse": ("--preset", "sparse", *replay, *chunks),
            "lserve: both, reuse 4": ("--preset", "lserve", "--heads", model.heads, "--page-size", 32, *replay, *chunks),
            "sparse-offload": offload,
            "+FT": (*offload, *transfer),
            "+WC": (*offload, *transfer, "--admission", "working-set"),
            "+LP (full)": ("--preset", "full", *tiers, *layers)}


def ladder(machine):
    """dense, duo, sparse, lserve, sparse-offload, +FT, +WC, +LP on one workload: whole requests of 32k at once, few of which fit"""
    prompt, generated = 32000, 128
    context = prompt + generated + 64
    for title, shape, count, gib in (("8B shape", SHAPE_8B, 6, 16), ("LWM-7B's shape", SHAPE_LWM, 3, 20)):
        token_bytes = TOKEN_BYTES * shape["num_key_value_heads"] // KV_HEADS
        count = fitting(machine, count, home_bytes(context, token_bytes))
        with Shape(shape) as model:
            described = {step: (*whole(count, prompt, generated), "--max-model-len", context, *options)
                         for step, options in ladder_presets(model, trace(machine, "32k"), context, gib * GIB, count * home_bytes(context, token_bytes)).items()}
            base = None
            for step, test in runs(machine, model.path, described, timeout=270):
                base = base or whole_rate(test)
                yield row(f"ladder, {title}, {gib} GiB for KV, {count} requests of {prompt} + {generated}: {step}", "shown",
                          f"{whole_rate(test):.1f} tokens/s ({whole_rate(test) / base:.2f}x); decode {speed(test)}; mean TTFT {test['ttft_ms'] * 1e-3:.1f} s; "
                          f"TBT {test['tbt_ms']:.1f} ms; {missed(test)}", True, result=test)


def tensors_8b():
    """(name, shape) of the 8B shape's weights."""
    s = SHAPE_8B
    width, ffn, kv = s["hidden_size"], s["intermediate_size"], KV_HEADS * HEAD_DIM
    yield "model.embed_tokens.weight", (s["vocab_size"], width)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        for name, rows in (("q", width), ("k", kv), ("v", kv), ("o", width)):
            yield f"{at}.self_attn.{name}_proj.weight", (rows, width)
        yield f"{at}.mlp.gate_proj.weight", (ffn, width)
        yield f"{at}.mlp.up_proj.weight", (ffn, width)
        yield f"{at}.mlp.down_proj.weight", (width, ffn)
        yield f"{at}.input_layernorm.weight", (width,)
        yield f"{at}.post_attention_layernorm.weight", (width,)
    yield "model.norm.weight", (width,)
    yield "lm_head.weight", (s["vocab_size"], width)


def write_weights(path):
    """A safetensors file of zeros in BF16. Nothing is written behind the header: reading it once fills the page cache, whatever the disk."""
    header, end = {}, 0
    for name, shape in tensors_8b():
        size = 2
        for extent in shape:
            size *= extent
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + end)
    subprocess.run(["cat", path], check=True, stdout=subprocess.DEVNULL)
    return end


LINK = """import torch
h = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True); d = torch.empty(1 << 30, dtype=torch.uint8, device="cuda"); best = 0
for _ in range(5):
    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    a.record(); d.copy_(h, non_blocking=True); b.record(); torch.cuda.synchronize(); best = max(best, (1 << 30) / a.elapsed_time(b) * 1e-6)
print(best)"""


def ready(machine):
    """from safetensors in the page cache to weights that are ready, beside the link's speed"""
    done = subprocess.run(["python3", "-c", LINK], capture_output=True, text=True)
    link = float(done.stdout) if done.returncode == 0 else 0.0
    what, must = "weights to ready, 16 GB of BF16 safetensors in the page cache", ">= 60 % of the link's speed"
    with Shape(SHAPE_8B) as model:
        size = write_weights(model.path / "model.safetensors")
        options = common("--preset", "dense", "-p", 128, "-n", 0, "--max-model-len", 2048)
        found = [test for _ in range(3) for _, test in runs(machine, model.path, {"load": options}, load_format="auto")]
    if not found or not link:
        yield row(what, must, "failed", False)
        return
    took = [test["ready_s"] for test in found]
    gbs = size / statistics.median(took) * 1e-9
    yield row(what, must, f"{statistics.median(took):.2f} s, {gbs:.1f} GB/s of {link:.1f}: {100 * gbs / link:.0f} %, median of 3 processes",
              gbs >= 0.6 * link)


GROUPS = {"steps": steps, "deterministic": deterministic, "resident": resident, "capped": capped, "whole": whole_long,
          "whole-short": whole_short, "arrivals": arrivals, "arrivals-8": arrivals_8, "serving": serving, "long-prompts": long_prompts, "ladder": ladder, "ready": ready}
