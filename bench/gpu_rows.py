"""The rows of tools/gpu_check: what a GPU must show, and how each figure is measured.

A group is a function of a machine (tools/gpu_check) that returns rows: what was measured, what it must show, the figure, whether
that is met. Ratios are between two things of the same run; a row that only shows a figure is met by having one.
"""

import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent

# Cases on small shapes that compute-sanitizer gets through in a minute.
SANITIZED = {"decode_attention_test": "*NeverUsesWhatARowDoesNotSee", "prefill_hopper_test": "*OneBlockOfOneHead:*HeadsWithTables*",
             "prefill_portable_test": "*NeverUsesWhatARowDoesNotSee", "row_ops_cuda_test": "*Gates*:*EmbedCopies*:*AddRmsNorm*",
             "transfers_cuda_test": "*AGatherReplaysInAGraph*:*EverySaveMethod*", "page_score_cuda_test": "*SkipsRows*",
             "page_select_cuda_test": "*SaysWhen*", "select_cuda_test": "*FewPagesFromTheFirstToken", "sample_cuda_test": "*CutsAmong*"}


def row(what, must, measured, ok, **more):
    return {"what": what, "must": must, "measured": measured, "ok": bool(ok), **more}


def output(machine, name, *arguments):
    """What a measurement printed, kept as a log; '' when it is not there or failed."""
    if name not in machine.programs:
        return ""
    status, text = machine.run(name, *arguments)
    machine.log("-".join([name, *(str(a).strip("-") for a in arguments)]), text)
    return text if status == 0 else ""


def peers(machine):
    """Figures of torch's libraries in this run, {} where there is no torch."""
    done = subprocess.run(["python3", TOP / "bench/gpu_peers.py"], capture_output=True, text=True)
    machine.log("peers", done.stdout + done.stderr)
    return json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else {}


def number(text, pattern):
    found = re.search(pattern, text)
    return float(found.group(1)) if found else None


def against(what, must, ours, peer, least, unit="us", unit_peer="cuDNN"):
    """A row of times: peer / ours must reach `least`."""
    if ours is None or peer is None:
        return row(what, must, "not measured", False)
    return row(what, must, f"{ours:.1f} against {peer:.1f} {unit} of {unit_peer}: {peer / ours:.2f}x", peer / ours >= least,
               ours=ours, peer=peer)


def part(what, ours, whole, most, of):
    """A row of times: ours / whole must be `most` at most (None: shown)."""
    must = "shown" if most is None else f"<= {most} of {of}"
    if ours is None or whole is None:
        return row(what, must, "not measured", False)
    return row(what, must, f"{ours * 1e-3:.2f} against {whole * 1e-3:.2f} ms of {of}: {ours / whole:.2f}", most is None or ours <= most * whole,
               ours=ours, whole=whole)


def kernels(machine):
    """attention, selection and products beside torch's libraries in the same run"""
    peer = peers(machine)
    rows = []
    prompts = output(machine, "prefill_bench", "--repeats", 5)
    us = {found[1]: float(found[2]) for found in re.finditer(r"^(\S+) +T +\d+ D +\d+ P +\d+ +([\d.]+) us", prompts, re.MULTILINE)}
    rows.append(against("prefill attention, 32k, all heads dense", ">= 0.95 of cuDNN", us.get("32k"), peer.get("prefill_32768_us"), 0.95))
    rows.append(part("prefill attention, 128k, half of the KV heads streaming", us.get("128k-half-streaming"), us.get("128k"), 0.65, "dense"))
    rows.append(part("prefill attention, 32k, chunks of 512", us.get("32k-chunks-512"), us.get("32k"), None, "the whole prompt"))
    attention = output(machine, "attention_cuda_bench")
    dense = number(attention, r"decode BF16 +Hq 32 Hk 8 D 128 P 32 batch 8 context 131072 +([\d.]+) us")
    listed = number(attention, r"decode BF16 +Hq 32 Hk 8 D 128 P 32 batch 8 context 131072 list 64 +([\d.]+) us")
    cudnn = peer.get("decode_8x131072_us")
    rows.append(against("dense paged decode, batch 8 at 128k", ">= 0.9 of cuDNN", dense, cudnn, 0.9))
    if not listed:
        rows.append(row("sparse decode, batch 8, 128k", ">= 9x faster than dense cuDNN", "not measured", False))
    selection = output(machine, "select_cuda_bench")
    both = number(selection, r"8 x 128k, Hk 8 G 4[^\n]*both +([\d.]+)") or number(selection, r"8 x 128k +bound[^\n]*both +([\d.]+)")
    if both and listed:
        rows.append(against("score + select + resolve + attend, batch 8, 128k, budget 2048", ">= 9x faster than dense cuDNN",
                            both + listed, cudnn, 9))
        rows.append(against("the same with a reuse interval of 4, mean of a step", ">= 15x", both / 4 + listed, cudnn, 15))
    text = output(machine, "linear_cuda_bench")
    rows.append(row("products (table in the log)", "shown", f"{len(text.splitlines())} lines", bool(text), log=text))
    text = output(machine, "row_ops_cuda_bench")
    rows.append(row("row ops (table in the log)", "shown", f"{len(text.splitlines())} lines", bool(text), log=text))
    return rows


def transfers(machine):
    """gathers and saves over PCIe, and what they cost a neighbour"""
    text = output(machine, "transfer_cuda_bench")
    rows = [row("transfers (table in the log)", "shown", f"{len(text.splitlines())} lines", bool(text), log=text)]
    # "| bulk 4 blocks, 128 KB in flight | 44.5 (0.826) | ...": columns are pages of 4 to 64 KB.
    gathers = [(found[1], re.findall(r"([\d.]+) \(([\d.]+)\)", found[2]))
               for found in re.finditer(r"^\| ((?:uva|bulk) [1-8] blocks?, 128 KB in flight) \|(.*)", text, re.MULTILINE)]
    for column, kib, least in ((2, 16, 0.9), (1, 8, 0.85), (3, 32, 0.9)):
        what, must = f"gather of random pages of {kib} KiB, at most 8 blocks", f">= {least} of one big copy"
        best = max(gathers, key=lambda g: float(g[1][column][1]), default=None)
        rows.append(row(what, must, f"{best[1][column][0]} GB/s, {best[1][column][1]} of it: {best[0]}", float(best[1][column][1]) >= least)
                    if best else row(what, must, "not measured", False))
    text = output(machine, "gather_neighbour_bench")
    ratios = {}  # M -> (ratio, gather GB/s, which) of the gathers, those of 49 GB/s first
    for found in re.finditer(r"^\| (\d+) \| ((?:uva|bulk) [^|]*) \|(?: [\d.]+ \|){4} ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE):
        ratios.setdefault(int(found[1]), []).append((float(found[4]) < 49, float(found[3]), float(found[4]), found[2]))
    for rows_, found in sorted(ratios.items()):
        slow, ratio, gbs, which = min(found)
        rows.append(row(f"GEMM of {rows_} rows beside a gather / alone", "<= 1.15x at 49 GB/s", f"{ratio:.3f}x at {gbs:.1f} GB/s: {which.strip()}",
                        ratio <= 1.15 and not slow))
    if not ratios:
        rows.append(row("GEMMs beside a gather", "<= 1.15x at 49 GB/s", "not measured", False))
    return rows


LONGNEEDLE = TOP / "models/longneedle/longneedle-q8_0.gguf"
NEEDLES = TOP / "tests/data/needles"


def ask(machine, name, *options):
    """The result of one needle set, {} if it failed."""
    status, text = machine.run("spillway", "eval", "needles", LONGNEEDLE, NEEDLES / name, "-o", "json", *options, timeout=240)
    machine.log("-".join(["needles", name[8:-6], *(str(o).strip("-") for o in options)]), text)
    if status != 0:
        print(f"  {name} {' '.join(map(str, options))}: status {status}: {text.strip().splitlines()[-1] if text.strip() else ''}")
        return {}
    return json.loads(text[text.index("{"):text.rindex("}") + 1])


# Nats: where two log-probabilities of the GPU and of the CPU may lie apart (tests/gpu/sampling_rules_test), so two that are nearer to
# each other may change places.
NEAR = 0.5


def first_difference(one, other):
    """The first token that differs in two answers that do."""
    return next(i for i, (s, t) in enumerate(zip([*one["tokens"], None], [*other["tokens"], None])) if s != t)


def is_near_tie(one, other):
    """Whether the best two tokens of `other` are near to each other where `one` parts from it."""
    at = first_difference(one, other)
    margin = other["margins"][at] if at < len(other["margins"]) else None
    return margin is not None and margin <= NEAR


def far_apart(one, other):
    """Answers that differ where no two tokens are near to each other."""
    return sum(a["tokens"] != b["tokens"] and not is_near_tie(a, b) for a, b in zip(one["answers"], other["answers"]))


def differing(one, other):
    return sum(a["tokens"] != b["tokens"] for a, b in zip(one["answers"], other["answers"]))


def ask_in_least(machine, name, *options):
    """(MiB, result) in the least device memory that is not refused, in steps of 32 MiB; (0, {}) if none is enough."""
    for mib in range(64, 2048, 32):
        command = ("eval", "needles", LONGNEEDLE, NEEDLES / name, "-o", "json", *options, "--device-memory", f"{mib}MiB")
        status, text = machine.run("spillway", *command, timeout=120)
        if status == 0:
            return mib, json.loads(text[text.index("{"):text.rindex("}") + 1])
        if "raise it" not in text and "--device-memory" not in text:
            print(f"  {name} in {mib} MiB: status {status}: {text.strip().splitlines()[-1] if text.strip() else ''}")
            return 0, {}
    return 0, {}


def tiers_row(machine, name, budget, context):
    """The same set with all pages on the device, and in as little of it as there can be."""
    same = ("--device", "cuda", "--budget", budget, "--max-num-seqs", 4, "--max-num-batched-tokens", 1024, "--max-model-len", context)
    what = f"{name[8:-6]} set, budget {budget}, through tiers"
    resident = ask(machine, name, "--preset", "sparse", *same)
    mib, tiered = ask_in_least(machine, name, "--preset", "full", "--host-memory", "8GiB", *same)
    if not resident or not tiered:
        return row(what, "the same tokens", "failed", False)
    kv = tiered["kv"]
    missed = 100 * kv["pages_missed"] / max(1, kv["pages_selected"])
    return row(f"{what} in {mib} MiB", "the same tokens", f"{differing(resident, tiered)} of {len(tiered['answers'])} texts differ; "
               f"{missed:.1f} % of the pages missed, {kv['pages_saved']} saved, {tiered['right']} right",
               differing(resident, tiered) == 0 and kv["pages_saved"] > 0 and kv["pages_missed"] > 0, kv=kv)


def needles(machine):
    """longneedle's answers: the GPU beside the CPU, under selection, and through tiers"""
    rows = []
    for name, budget, tier_budget, context in (("needles-2k.jsonl", 1024, 512, 2560), ("needles-8k.jsonl", 2048, 1024, 9216),
                                               ("needles-32k.jsonl", 2048, 2048, 34816)):
        length = name[8:-6]
        gpu, cpu = (ask(machine, name, "--preset", "dense", "--device", device) for device in ("cuda", "cpu"))
        sparse = ask(machine, name, "--preset", "sparse", "--device", "cuda", "--budget", budget)
        if not gpu or not cpu:
            rows.append(row(f"{length} set, dense", "as on the CPU", "failed", False))
            continue
        rows.append(row(f"{length} set, dense", f"the CPU's answers, but from where its best two tokens are within {NEAR} on",
                        f"{differing(gpu, cpu)} of {len(gpu['answers'])} texts differ, {far_apart(gpu, cpu)} of them elsewhere; "
                        f"{gpu['right']} against {cpu['right']} right", far_apart(gpu, cpu) == 0 and abs(gpu["right"] - cpu["right"]) <= 1))
        if sparse:
            rows.append(row(f"{length} set, budget {budget}, right answers", "99 % of dense", f"{sparse['right']} of {gpu['right']}",
                            sparse["right"] >= 0.99 * gpu["right"] - 1 and sparse["kv"]["selections"] > 0))
        rows.append(tiers_row(machine, name, tier_budget, context))
    return rows


def shape(folder, **config):
    """A model folder of this shape, for --load-format dummy."""
    folder.mkdir(parents=True)
    common = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5,
              "torch_dtype": "bfloat16", "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False}
    (folder / "config.json").write_text(json.dumps(common | config))
    return folder


def shape_8b(folder):
    """Llama-3.1-8B's."""
    return shape(folder / "8b", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
                 num_key_value_heads=8, head_dim=128, vocab_size=128256, max_position_embeddings=131072, rope_theta=500000.0)


def measure(machine, model, *options, timeout=280):
    """The rows of `spillway bench` as JSON, [] if it failed."""
    status, text = machine.run("spillway", "bench", model, "--load-format", "dummy", "--device", "cuda", "-o", "json", *options, timeout=timeout)
    machine.log("-".join(["bench", *(str(o).strip("-").replace("/", "_") for o in options)])[:120], text)
    if status != 0 or "[" not in text:
        print(f"  bench {' '.join(map(str, options))}: status {status}: {text.strip().splitlines()[-1] if text.strip() else ''}")
        return []
    return json.loads(text[text.index("["):text.rindex("]") + 1])


# Recorded figures of vLLM 0.26 (BF16, FlashAttention 3, CUDA graphs) on an H200: seconds of a prompt, milliseconds of a step.
VLLM_PROMPT_S = {8192: 0.206, 32768: 1.20, 130816: 10.2}
VLLM_STEP_MS = {8192: 5.3, 32768: 6.06, 130816: 9.05}


def steps(machine):
    """one sequence of Llama-3.1-8B's shape: prompts and decode steps, dense, beside vLLM's recorded figures"""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = shape_8b(pathlib.Path(folder))
        for tokens, repeats in ((8192, 3), (32768, 2), (130816, 1)):
            for test in measure(machine, model, "--preset", "dense", "-p", tokens, "-n", 0, "-r", repeats, "--max-model-len", 131072):
                seconds = tokens / test["avg_ts"]
                rows.append(row(f"prompt of {tokens}, dense", "<= 1.03 of vLLM's", f"{seconds:.3f} against {VLLM_PROMPT_S[tokens]} s",
                                seconds <= 1.03 * VLLM_PROMPT_S[tokens]))
            for test in measure(machine, model, "--preset", "dense", "--fill", "random", "-p", 0, "-n", 64, "-d", tokens, "-r", 1,
                                "--max-model-len", 131072):
                ms = 1e3 / test["avg_ts"]
                rows.append(row(f"decode step at {tokens}, dense, batch 1", "<= 1.03 of vLLM's", f"{ms:.2f} against {VLLM_STEP_MS[tokens]} ms",
                                ms <= 1.03 * VLLM_STEP_MS[tokens]))
    return rows


GIB = 1 << 30
LAYERS, KV_HEADS, HEAD_DIM, WIDTH = 32, 8, 128, 4096  # of the 8B shape
TOKEN_BYTES = LAYERS * KV_HEADS * HEAD_DIM * 2 * 2    # K and V of a token in BF16

# vLLM 0.26 as above: tokens a second with 115 GiB of pages.
VLLM_DECODE_TS = {7: 183, 28: 839, 109: 3261}


def speed(test):
    return f"{test['decode_ts']:.0f} tokens/s in steps of {test['decode_rows']:.1f} rows"


def decode_options(count, depth, generated, *more):
    """`count` prompts of their own with random K and V, then decode steps long enough to time alone."""
    return ("--fill", "random", "--own-prompts", "-p", 0, "-n", generated, "-d", depth, "--streams", count, "-r", 1,
            "--max-model-len", depth + generated + 64, *more)


def resident(machine):
    """decode of Llama-3.1-8B's shape with all of the GPU's memory for pages: sparse beside vLLM's recorded figures"""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = shape_8b(pathlib.Path(folder))
        for count, depth, times in ((7, 130000, 5), (28, 32256, 3), (109, 7680, 2)):
            what = f"{count} sequences of {depth}, sparse, budget 2048, decode"
            must = f">= {times} times vLLM's {VLLM_DECODE_TS[count]} tokens/s"
            tests = measure(machine, model, "--preset", "sparse", *decode_options(count, depth, 512),
                            "--max-num-batched-tokens", 16384, "--chunk-size", 16384)
            rows += [row(what, must, f"{speed(t)}: {t['decode_ts'] / VLLM_DECODE_TS[count]:.2f}x; "
                         f"{count * (depth + 512) * TOKEN_BYTES / GIB:.0f} GiB of pages", t["decode_ts"] >= times * VLLM_DECODE_TS[count],
                         result=t) for t in tests] or [row(what, must, "failed", False)]
    return rows


# Groups that replay selections, and the needle sets whose first text a trace continues.
REPLAYING = ("capped-32k", "capped-128k")
TRACED = ("32k", "128k")


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
    texts.write_text(json.dumps({"context": text[:-continued], "items": [item]}) + "\n")
    made = path.with_suffix(".part")
    subprocess.run([program, "trace", LONGNEEDLE, texts, "-o", made, "--preset", "sparse", "--device", "cpu"], check=True)
    made.rename(path)
    return path


def trace(machine, length):
    """The packed trace, or one that is made now."""
    if machine.traces:
        return machine.traces / f"{length}.jsonl"
    return make_trace(machine.programs["spillway"], length)


STEP_ROWS = 2048  # of runs whose device memory is small


def device_memory(for_kv, context):
    """Options of a preset that prefills by layers: `for_kv` bytes, what waits between layers, and workspace of steps of STEP_ROWS."""
    pages = -(-context // 32) + -(-STEP_ROWS // 32)
    return "--max-num-batched-tokens", STEP_ROWS, "--device-memory", for_kv + (pages * 32 + STEP_ROWS) * WIDTH * 4 + 320 * 2**20


def for_kv(test):
    """Bytes of frames, statistics, tables, layer buffers and scratch, as planned."""
    s = test["sizes"]
    return s["device_bytes"] - s["activation_bytes"] - s["workspace_bytes"] - s["staging_bytes"]


def missed(test):
    kv = test["kv"]
    return f"{100 * kv['pages_missed'] / max(1, kv['pages_selected']):.1f} % of the pages missed"


def tiered(machine, model, count, depth, generated, recorded, reuse):
    """`full` in 16 GiB for KV, its selections replayed; {} if it failed."""
    tests = measure(machine, model, "--preset", "full", *decode_options(count, depth, generated), "--replay-selections", recorded,
                    "--reuse-interval", reuse, *device_memory(16 * GIB, depth + generated + 64), "--host-memory", "96GiB",
                    "--max-inject-tokens", (depth + 2) * LAYERS)
    return tests[0] if tests else {}


def capped(machine, length, count, depth, fitting, least):
    generated = 384
    recorded = trace(machine, length)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = shape_8b(pathlib.Path(folder))
        dense = measure(machine, model, "--preset", "dense", *decode_options(fitting, depth, generated),
                        "--max-num-batched-tokens", STEP_ROWS, "--device-memory", 16 * GIB + 384 * 2**20)
        for reuse, times in least.items():
            what = f"16 GiB for KV, {count} requests of {depth}, decode of full / dense, reuse {reuse}"
            full = tiered(machine, model, count, depth, generated, recorded, reuse)
            if not full or not dense:
                rows.append(row(what, f">= {times}x", "failed", False))
                continue
            ratio = full["decode_ts"] / dense[0]["decode_ts"]
            rows.append(row(what, f">= {times}x", f"{speed(full)} against {speed(dense[0])}: {ratio:.2f}x; {missed(full)}; "
                            f"{for_kv(full) / GIB:.2f} GiB planned for KV", ratio >= times, full=full, dense=dense[0]))
    return rows


def capped_32k(machine):
    """16 GiB for KV and 24 requests of 32k: full with a recorded trace's selections beside dense"""
    return capped(machine, "32k", 24, 32000, 3, {1: 2.0, 4: 2.5})


def capped_128k(machine):
    """16 GiB for KV and 6 requests of 129,024 tokens: the same"""
    return capped(machine, "128k", 6, 129024, 1, {1: 4.0, 4: 5.0})


def serving(machine):
    """full beside dense where everything fits"""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        model = shape_8b(pathlib.Path(folder))
        for count in (1, 64):
            common = ("--own-prompts", "-p", 0, "-n", 256, "-d", 1024, "--streams", count, "-r", 3, "--max-model-len", 2048)
            results = [measure(machine, model, "--preset", preset, *common, *more)
                       for preset, more in (("dense", ()), ("full", ("--host-memory", "12GiB")), ("dense", ()))]
            what = f"batch {count}, 1k in, 256 out, full / dense"
            if not all(results):
                rows.append(row(what, ">= 0.98x", "failed", False))
                continue
            first, full, last = (statistics.median(tests[0]["samples_ts"]) for tests in results)
            dense = max(first, last)
            rows.append(row(what, ">= 0.98x", f"{full:.0f} against {dense:.0f} tokens/s: {full / dense:.3f}x", full >= 0.98 * dense,
                            decode_ts=[tests[0]["decode_ts"] for tests in results]))
    return rows


def half_streaming(folder):
    """A heads file of the 8B shape: every other KV head sees its first 128 and last 1024 tokens only."""
    path = folder / "heads.json"
    path.write_text(json.dumps({"version": 1, "model": "8B shape", "sink": 128, "local": 1024,
                                "streaming": [[head % 2 for head in range(KV_HEADS)] for _ in range(LAYERS)]}))
    return path


def long_prompts(machine):
    """a prompt of 128k: half of the KV heads streaming, and in 2 GiB of device memory for KV"""
    rows = []
    prompt = 130816
    # A short prompt first, so that choosing kernels is not timed.
    common = ("--own-prompts", "-p", f"8192,{prompt}", "-n", 0, "-r", 1, "--max-model-len", 131072)
    with tempfile.TemporaryDirectory() as folder:
        model = shape_8b(pathlib.Path(folder))
        dense = measure(machine, model, "--preset", "dense", *common)
        half = measure(machine, model, "--preset", "duo", "--heads", half_streaming(pathlib.Path(folder)), *common)
        what, must = "prompt of 128k, half of the KV heads streaming", "<= 0.75 of dense"
        if dense and half:
            one, other = (tests[-1]["samples_ns"][0] * 1e-9 for tests in (half, dense))
            rows.append(row(what, must, f"{one:.2f} against {other:.2f} s: {one / other:.2f}", one <= 0.75 * other))
        else:
            rows.append(row(what, must, "failed", False))
        tests = measure(machine, model, "--preset", "full", *common, "--max-num-seqs", 1, "--host-memory", "18GiB",
                        *device_memory(2 * GIB, 131072))
        what, must = "one prompt of 128k in 2 GiB for KV", "answers within the limit"
        if tests:
            kv = for_kv(tests[-1])
            beside = tests[-1]["gpu_bytes_taken"] - tests[-1]["sizes"]["weights_bytes"]
            rows.append(row(what, must, f"{tests[-1]['samples_ns'][0] * 1e-9:.2f} s; {kv / GIB:.2f} GiB for KV, {beside / GIB:.2f} GiB taken "
                            f"beside the weights, {tests[-1]['sizes']['device_bytes'] / GIB:.2f} GiB of them planned",
                            kv <= 2 * GIB and beside <= tests[-1]["sizes"]["device_bytes"] + tests[-1]["sizes"]["runtime_bytes"],
                            result=tests[-1]))
        else:
            rows.append(row(what, must, "failed", False))
    return rows


# What each group runs, as a pattern of names; others run spillway alone.
PROGRAMS = {"ops": r".*_test", "sanitizer": "|".join(SANITIZED),
            "kernels": "prefill_bench|attention_cuda_bench|select_cuda_bench|linear_cuda_bench|row_ops_cuda_bench",
            "transfers": "transfer_cuda_bench|gather_neighbour_bench"}

GROUPS = {"needles": needles, "kernels": kernels, "transfers": transfers, "steps": steps, "resident": resident,
          "capped-32k": capped_32k, "capped-128k": capped_128k, "serving": serving, "long-prompts": long_prompts}

if __name__ == "__main__":
    sys.exit("rows of tools/gpu_check: run that")
