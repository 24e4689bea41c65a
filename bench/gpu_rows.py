"""The rows of tools/gpu_check: what a GPU must show, and how each figure is measured.

A group is a function of a machine (tools/gpu_check) that returns rows: what was measured, what it must show, the figure, whether
that is met. Ratios are between two things of the same run; a row that only shows a figure is met by having one.
"""

import collections
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import threading

TOP = pathlib.Path(__file__).resolve().parent.parent

# Cases on small shapes that compute-sanitizer gets through in a minute.
SANITIZED = {"decode_attention_test": "*NeverUsesWhatARowDoesNotSee", "prefill_hopper_test": "*OneBlockOfOneHead:*HeadsWithTables*",
             "prefill_portable_test": "*NeverUsesWhatARowDoesNotSee", "row_ops_cuda_test": "*",
             "transfers_cuda_test": "*AGatherReplaysInAGraph*:*EverySaveMethod*", "page_score_cuda_test": "*SkipsRows*",
             "page_select_cuda_test": "*SaysWhen*", "select_cuda_test": "*FewPagesFromTheFirstToken",
             "sample_cuda_test": "*CutsAmong*:*Penalties*", "tables_cuda_test": "*",
             "page_stats_cuda_test": "*", "kv_seal_cuda_test": "*", "page_fused_cuda_test": "*", "overlap_cuda_test": "*/0:*/5",
             "row_saves_cuda_test": "*RowsArrive*", "quantised_cuda_test": "*Embeds*:*AGraphReplays*", "fp8_rows_cuda_test": "*",
             "fp8_linear_cuda_test": "*AGraphReplays*", "linear_cuda_test": "*AGraphReplaysOur*"}


# Too slow under racecheck; what it runs is checked by the programs of its parts.
NOT_RACECHECKED = {"select_cuda_test"}
# Kernels that racecheck leaves out of a program, by a part of their names: cuBLASLt's have hazards of their own; gathers beside attention
# hand pieces from warp to warp by acquire and release, which racecheck does not follow (without attention beside them they are checked by transfers_cuda_test).
RACECHECK_LEAVES_OUT = {"fp8_linear_cuda_test": "nvjet", "quantised_cuda_test": "nvjet", "overlap_cuda_test": "gather_"}


def row(what, must, measured, ok, **more):
    return {"what": what, "must": must, "measured": measured, "ok": bool(ok), **more}


def output(machine, name, *arguments):
    """What a measurement printed, kept as a log; '' when it is not there or failed."""
    if name not in machine.programs:
        return ""
    status, text = machine.run(name, *arguments)
    machine.log("-".join([name, *(str(a).strip("-") for a in arguments)]), text)
    return text if status == 0 else ""


class Peers:
    """torch's libraries, measured by one process when they are asked, so that they can take turns with ours."""

    COMMAND = ("python3", TOP / "bench/gpu_peers.py", "--in-turns")
    SECONDS_MAX = 180  # of an answer; the first waits for torch

    def __init__(self, machine):
        self.machine, self.said, self.errors = machine, [], tempfile.TemporaryFile("w+")

    def __enter__(self):
        self.process = subprocess.Popen(self.COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)
        return self

    def ask(self, *names):
        """Figures by name, {} where there is no torch, or from where it failed on."""
        late = threading.Timer(self.SECONDS_MAX, self.process.kill)
        late.start()
        try:
            self.process.stdin.write(" ".join(names) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except OSError:
            line = ""
        finally:
            late.cancel()
        self.said.append(line)
        return json.loads(line) if line else {}

    def __exit__(self, *error):
        self.process.kill()
        self.process.communicate()
        self.errors.seek(0)
        self.machine.log("peers", "".join(self.said) + self.errors.read())
        self.errors.close()


class Turns(collections.defaultdict):
    """Figures by name, one of each turn."""

    def __init__(self):
        super().__init__(list)

    def add(self, figures):
        for name, value in figures.items():
            self[name].append(value)

    def median(self, name):
        return statistics.median(self[name]) if self[name] else None


def number_on_a_line(text, pattern):
    found = re.search(pattern, text, re.MULTILINE)
    return float(found.group(1)) if found else None


def against(what, must, ours, peer, least, unit="us", unit_peer="cuDNN"):
    """A row of times: peer / ours must reach `least`. Of times that were measured in turns the medians count."""
    turns = [len(times) for times in (ours, peer) if isinstance(times, list)]
    samples = {"ours_turns": ours, "peer_turns": peer} if turns else {}
    ours, peer = (statistics.median(times) if isinstance(times, list) and times else times or None for times in (ours, peer))
    if ours is None or peer is None:
        return row(what, must, "not measured", False)
    said = f", medians of {' and '.join(str(count) for count in dict.fromkeys(turns))} turns" if turns else ""
    return row(what, must, f"{ours:.1f} against {peer:.1f} {unit} of {unit_peer}: {peer / ours:.2f}x{said}", peer / ours >= least,
               ours=ours, peer=peer, **samples)


def part(what, ours, whole, most, of):
    """A row of times: ours / whole must be `most` at most (None: shown)."""
    must = "shown" if most is None else f"<= {most} of {of}"
    if ours is None or whole is None:
        return row(what, must, "not measured", False)
    return row(what, must, f"{ours * 1e-3:.2f} against {whole * 1e-3:.2f} ms of {of}: {ours / whole:.3f}", most is None or ours <= most * whole,
               ours=ours, whole=whole)


DENSE_DECODE = f"decode {'BF16':<7} Hq 32 Hk 8 D 128 P 32 batch 8 context 131072"
# What is measured again behind everything else: figures of libraries, then the program and the cases that stand beside them.
ROUNDS = 3
AGAIN = ((("prefill_32768_us", "prefill_flash_32768_us"), "prefill_bench", ("--repeats", 9, "--only", "32k")),
         ((), "prefill_bench", ("--repeats", 3, "--only", "128k")),
         ((), "prefill_bench", ("--repeats", 3, "--only", "128k-half-streaming")),
         (("decode_8x131072_us",), "attention_cuda_bench", (f"{DENSE_DECODE}$",)),
         (("decode_8x131072_us",), "sparse_decode_cuda_bench", ()))


def times_of(name, text):
    """What a program of the kernels printed, microseconds by name."""
    if name == "prefill_bench":
        return {found[1]: float(found[2]) for found in re.finditer(r"^(\S+) +T +\d+ D +\d+ P +\d+ +([\d.]+) us", text, re.MULTILINE)}
    if name == "attention_cuda_bench":
        return {"dense": float(found[1]) for found in re.finditer(rf"^{DENSE_DECODE} +([\d.]+) us", text, re.MULTILINE)}
    return sparse_times(text)


def kernels(machine):
    """attention, selection and products beside torch's libraries in the same run"""
    ours, peer, printed = Turns(), Turns(), {}
    with Peers(machine) as libraries:
        peer.add(libraries.ask("all"))
        for name, arguments in (("prefill_bench", ("--repeats", 9)), ("attention_cuda_bench", ()), ("sparse_decode_cuda_bench", ())):
            printed[name] = output(machine, name, *arguments)
            ours.add(times_of(name, printed[name]))
        for _ in range(ROUNDS - 1):
            for names, program, arguments in AGAIN:
                if names:
                    peer.add(libraries.ask(*names))
                ours.add(times_of(program, output(machine, program, *arguments)))
    rows = attention_rows(printed["prefill_bench"], ours, peer)
    selection = output(machine, "select_cuda_bench")
    rows.append(row("selection (table in the log)", "shown", f"{len(selection.splitlines())} lines", bool(selection), log=selection))
    text = output(machine, "linear_cuda_bench")
    rows.append(row("products (table in the log)", "shown", f"{len(text.splitlines())} lines", bool(text), log=text))
    rows += product_rows(text)
    for name, what in (("fp8_linear_cuda_bench", "products in FP8"), ("quantised_bench", "products of quantised weights"), ("row_ops_cuda_bench", "row ops")):
        text = output(machine, name)
        rows.append(row(f"{what} (table in the log)", "shown", f"{len(text.splitlines())} lines", bool(text), log=text))
    return rows


def attention_rows(prompts, ours, peer):
    """Of all turns; `prompts`: what prefill_bench printed of everything."""
    rows = [against("prefill attention, 32k, all heads dense", ">= 0.95 of cuDNN", ours["32k"], peer["prefill_32768_us"], 0.95),
            against("prefill attention, 32k, the fused kernel with all heads dense (it is the op)", ">= 0.75 of cuDNN", ours["32k"],
                    peer["prefill_32768_us"], 0.75),
            against("prefill attention, 32k, beside torch's FlashAttention", "shown", ours["32k"], peer["prefill_flash_32768_us"], 0,
                    unit_peer="FlashAttention"),
            part("prefill attention, 128k, half of the KV heads streaming", ours.median("128k-half-streaming"), ours.median("128k"), 0.65, "dense")]
    whole = {found[1]: float(found[2]) for found in re.finditer(r"^(\S+) .* whole in turns ([\d.]+) us", prompts, re.MULTILINE)}
    for name, what, most in (("32k-chunks-512", "chunks of 512", None), ("32k-tiles-8192", "layer segments in tiles of 8,192 rows", 1.02)):
        rows.append(part(f"prefill attention, 32k, {what}", ours.median(name), whole.get(name), most, "the whole prompt"))
    rows.append(against("dense paged decode, batch 8 at 128k", ">= 0.9 of cuDNN", ours["dense"], peer["decode_8x131072_us"], 0.9))
    return [*rows, *sparse_rows(ours, peer["decode_8x131072_us"])]


# What sparse_decode_cuda_bench calls its two ways to find pages that are all on the device.
LOOK_UPS = {"resident": "", "tables": ", looked up in the tables of residency"}


def sparse_times(text):
    """Of what sparse_decode_cuda_bench printed, by the names that it has for them: "resident, reusing: chain"."""
    found = {}
    for line in text.splitlines():
        title, _, figures = line.partition(":")
        if title.split(",")[0] in LOOK_UPS:
            found |= {f"{title}: {name.strip()}": float(us) for name, us in re.findall(r"([a-z ]+) ([\d.]+)", figures)}
    return found


def sparse_rows(ours, cudnn):
    """The whole chain of a layer in one graph beside cuDNN over all keys, its parts behind it."""
    for name, how in LOOK_UPS.items():
        what = f"score + select + resolve + attend, batch 8, 128k, budget 2048{how}"
        whole = against(what, ">= 9x faster than dense cuDNN", ours[f"{name}: chain"], cudnn, 9)
        parts = [ours.median(f"{name}: {part}") for part in ("score", "select", "both", "attend")]
        if None not in parts:
            whole["measured"] += "; parts alone: {:.1f} + {:.1f}, in two launches {:.1f}, + {:.1f}".format(*parts)
        yield whole
        again = against(f"the same with a reuse interval of 4, mean of a step{how}", ">= 15x", ours[f"{name}, reuse 4: mean of a step"], cudnn, 15)
        if reusing := ours.median(f"{name}, reusing: chain"):
            again["measured"] += f"; a layer that reuses takes {reusing:.1f}"
        yield again


def product_rows(text):
    """Of what linear_cuda_bench printed: our kernel beside cuBLASLt for few rows, on the matrices of an 8B model."""
    # "| qkv 6144x4096 | 16 | ours | apart | portable | cuBLASLt | ...".
    for found in re.finditer(r"^\| (\S+) (\d+x\d+) \| (1|16|64) \| ([\d.]+) \|(?: [\d.]+ \|){2} ([\d.]+) \|", text, re.MULTILINE):
        ours, peer = float(found[4]), float(found[5])
        yield against(f"our kernel for few rows, {found[3]} of them, {found[1]} {found[2]}", "shown", ours, peer, 0, unit_peer="cuBLASLt")


def gather_rows(text):
    """Of what transfer_cuda_bench printed: the best gather of each page size by at most 8 blocks, with as many bytes in flight as
    the engine's gathers have (store/cuda/gather_plan.h)."""
    pool = re.search(r"pool of (\S+ \S+) pinned", text)
    # "| bulk 4 blocks, 192 KB in flight | 44.5 (0.826) | ...": columns are pages of 4 to 64 KB.
    gathers = [(found[1], re.findall(r"([\d.]+) \(([\d.]+)\)", found[2]))
               for found in re.finditer(r"^\| ((?:uva|bulk) [1-8] blocks?(?: in pairs)?, (?:192|256) KB in flight) \|(.*)", text, re.MULTILINE)]
    for column, kib, least in ((2, 16, 0.9), (1, 8, 0.85), (3, 32, 0.9)):
        what, must = f"gather of random pages of {kib} KiB, at most 8 blocks", f">= {least} of one big copy"
        if not gathers:
            yield row(what, must, "not measured", False)
            continue
        method, figures = max(gathers, key=lambda g: float(g[1][column][1]))
        gbs, share = figures[column]
        yield row(what, must, f"{gbs} GB/s, {share} of it: {method}, from a pool of {pool[1] if pool else '?'}", float(share) >= least)


# The gather that the engine runs where nothing else was calibrated (store/cuda/gather_plan.h, Transfers::gather()), as
# gather_neighbour_bench calls it.
SHIPPED = "bulk x 6, pairs, own SMs, 256 KB"


def neighbour_rows(text):
    """Of what gather_neighbour_bench printed: each GEMM beside the gather that ships, which is judged, and beside the one that costs it
    least at 49 GB/s or more."""
    must = "<= 1.15x at 49 GB/s"
    gathers = {}  # M -> name -> (is slow, ratio, GB/s)
    for found in re.finditer(r"^\| (\d+) \| ((?:uva|bulk) [^|]*?) \|(?: [\d.]+ \|){4} ([\d.]+) \| ([\d.]+) \|$", text, re.MULTILINE):
        gathers.setdefault(int(found[1]), {})[found[2]] = (float(found[4]) < 49, float(found[3]), float(found[4]))
    for m, by_name in sorted(gathers.items()):
        best = min(by_name, key=by_name.get)
        said = {name: f"{by_name[name][1]:.3f}x at {by_name[name][2]:.1f} GB/s" for name in by_name}
        slow, ratio, _ = by_name.get(SHIPPED, (True, 0, 0))
        yield row(f"GEMM of {m} rows beside a gather / alone", must, f"{said.get(SHIPPED, 'not measured')}, {SHIPPED}, which ships; best: "
                  f"{said[best]}, {best}", ratio <= 1.15 and not slow)
    if not gathers:
        yield row("GEMMs beside a gather", must, "not measured", False)


def transfers(machine):
    """gathers and saves over PCIe, and what they cost a neighbour"""
    # Less where the machine has less: the pool then ends there.
    text = output(machine, "transfer_cuda_bench", "--pool", 96)
    rows = [row("transfers (table in the log)", "shown", f"{len(text.splitlines())} lines", bool(text), log=text), *gather_rows(text)]
    rows += neighbour_rows(output(machine, "gather_neighbour_bench"))
    text = output(machine, "overlap_bench", "--pool", 4)
    # "| 4.0 | gather | attention | one behind the other | beside | saved | GB/s |", of 12 rows first.
    found = re.search(r"^\| 4\.0 \|((?: [\d.]+ \|){4})", text, re.MULTILINE)
    what, must = "12 rows attend while 4 pages of 64 come / when they have come", "< 1"
    if found:
        gather, attention, behind, beside = map(float, found[1].replace("|", "").split())
        rows.append(row(what, must, f"{beside:.0f} against {behind:.0f} us a layer (gather {gather:.0f}, attention {attention:.0f}): "
                        f"{beside / behind:.2f}", beside < behind, log=text))
    else:
        rows.append(row(what, must, "not measured", False))
    return rows


def saves(machine):
    """prompts and decode steps of an 8B shape beside the saves of their K and V"""
    text = output(machine, "save_bench", "--repeats", 3)
    prompts, _, steps = text.partition("decode steps")
    ratio = r"^\| {} \|(?: [\d.]+ \|){{{}}} ([\d.]+) \|"
    for method, must in (("extents", 1.02), ("staged", 1.02), ("gpu-direct", None), ("memcpy", None)):
        measured = number_on_a_line(prompts, ratio.format(method, 2))
        yield row(f"prompt of 32k, saved by {method} / not saved", f"<= {must}" if must else "shown",
                  f"{measured:.3f}x" if measured else "not measured", measured is not None and measured <= (must or 99))
    for method in ("extents", "extents, rows of steps", "staged", "gpu-direct", "memcpy"):
        measured = number_on_a_line(steps, ratio.format(method, 1))
        yield row(f"decode step of 12 rows, saved by {method} / not saved", "shown", f"{measured:.4f}x" if measured else "not measured",
                  measured is not None)


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


def least_memory(machine, name, *options):
    """MiB of device memory with which the set is not refused, as the program's own advice has it; 0 if there is none."""
    asked = 1
    for _ in range(4):
        command = ("eval", "needles", LONGNEEDLE, NEEDLES / name, *options, "--device-memory", f"{asked}MiB")
        _, text = machine.run("spillway", *command, timeout=120)
        if found := re.search(r"raise --device-memory to (\d+)MiB", text):
            return int(found[1])
        found = re.search(r"workspace and staging take ([\d.]+) (MiB|GiB)", text)
        if not found:
            print(f"  {name} in {asked} MiB: {text.strip().splitlines()[-1] if text.strip() else ''}")
            return 0
        asked = int(float(found[1]) * (1024 if found[2] == "GiB" else 1)) + 2
    return 0


SPARE_MIB = 8  # beyond the least


def tiers_options(name, budget, context):
    same = ("--device", "cuda", "--budget", budget, "--max-num-seqs", 4, "--max-num-batched-tokens", 1024, "--max-model-len", context)
    return same, ("--preset", "full", "--host-memory", "8GiB", *same)


def through_tiers(machine, name, full):
    """(MiB, result) in about the least device memory; (0, {}) if that fails."""
    mib = least_memory(machine, name, *full) + SPARE_MIB
    return (mib, ask(machine, name, *full, "--device-memory", f"{mib}MiB")) if mib > SPARE_MIB else (0, {})


def same_tokens(what, resident, tiered, mib):
    """The same set with all pages on the device, and in `mib` of it."""
    if not resident or not tiered:
        return row(what, "the same tokens", "failed", False)
    kv = tiered["kv"]
    missed = 100 * kv["pages_missed"] / max(1, kv["pages_selected"])
    return row(what, "the same tokens", f"{differing(resident, tiered)} of {len(tiered['answers'])} texts differ in {mib} MiB; "
               f"{missed:.1f} % of the pages missed, {kv['pages_saved']} saved, {tiered['right']} right",
               differing(resident, tiered) == 0 and kv["pages_saved"] > 0 and kv["pages_missed"] > 0, kv=kv)


def tiers_row(machine, name, budget, context):
    """The same set with all pages on the device, and in as little of it as there can be."""
    same, full = tiers_options(name, budget, context)
    resident = ask(machine, name, "--preset", "sparse", *same)
    mib, tiered = through_tiers(machine, name, full)
    return same_tokens(f"{name[8:-6]} set, budget {budget}, through tiers", resident, tiered, mib)


def longest_rows(machine):
    """The longest set through tiers beside dense attention, and beside the same selection with all pages on the device."""
    name = "needles-128k.jsonl"
    same, full = tiers_options(name, 2048, 133120)
    dense = ask(machine, name, "--preset", "dense", "--device", "cuda", "--max-num-seqs", 4, "--max-model-len", 133120)
    mib, tiered = through_tiers(machine, name, full)
    what, must = "128k set, budget 2048, through tiers", "one fewer than dense at most"
    if not dense or not tiered:
        yield row(f"{what}, right answers", must, "failed", False)
    else:
        kv = tiered["kv"]
        yield row(f"{what}, right answers", must, f"{tiered['right']} against {dense['right']} of {len(dense['answers'])} in {mib} MiB; "
                  f"{100 * kv['pages_missed'] / max(1, kv['pages_selected']):.1f} % of the pages missed",
                  tiered["right"] >= dense["right"] - 1 and kv["pages_missed"] > 0, kv=kv)
    yield same_tokens(what, ask(machine, name, "--preset", "sparse", *same), tiered, mib)


def budget_row(length, budget, dense, sparse):
    """Right answers under selection beside dense attention's."""
    what, must = f"{length} set, budget {budget}, right answers", "99 % of dense, less one at most"
    if not sparse:
        return row(what, must, "failed", False)
    # Of pages selected the device counts each: proof that selection ran.
    return row(what, must, f"{sparse['right']} of {dense['right']}",
               sparse["right"] >= 0.99 * dense["right"] - 1 and sparse["kv"]["pages_selected"] > 0)


def needles(machine):
    """longneedle's answers: the GPU beside the CPU, under selection, and through tiers"""
    yield from longest_rows(machine)
    for name, budget, tier_budget, context in (("needles-2k.jsonl", 1024, 512, 2560), ("needles-8k.jsonl", 2048, 1024, 9216),
                                               ("needles-32k.jsonl", 2048, 2048, 34816)):
        length = name[8:-6]
        yield tiers_row(machine, name, tier_budget, context)
        gpu, cpu = (ask(machine, name, "--preset", "dense", "--device", device) for device in ("cuda", "cpu"))
        sparse = ask(machine, name, "--preset", "sparse", "--device", "cuda", "--budget", budget)
        if not gpu or not cpu:
            yield row(f"{length} set, dense", "the CPU's answers", "failed", False)
            continue
        yield row(f"{length} set, dense", f"the CPU's answers, but from where its best two tokens are within {NEAR} on",
                  f"{differing(gpu, cpu)} of {len(gpu['answers'])} texts differ, {far_apart(gpu, cpu)} of them elsewhere; "
                  f"{gpu['right']} against {cpu['right']} right", far_apart(gpu, cpu) == 0 and abs(gpu["right"] - cpu["right"]) <= 1)
        if name == "needles-2k.jsonl":
            fp8 = ask(machine, name, "--preset", "dense", "--device", "cuda", "--weights", "fp8")
            right = f"{fp8['right']} against {gpu['right']}" if fp8 else "failed"
            yield row(f"{length} set, dense, weights in FP8, right answers", "BF16's within 2", right,
                      bool(fp8) and abs(fp8["right"] - gpu["right"]) <= 2)
        yield budget_row(length, budget, gpu, sparse)


# Expected on an H200 with 16 cores.
SECONDS = {"ops": 120, "sanitizer": 180, "needles": 105, "kernels": 115, "transfers": 75, "saves": 45}

# What each group runs, as a pattern of names; others run spillway alone.
PROGRAMS = {"ops": r".*_test", "sanitizer": "|".join(SANITIZED),
            "kernels": "prefill_bench|attention_cuda_bench|select_cuda_bench|sparse_decode_cuda_bench|linear_cuda_bench|fp8_linear_cuda_bench|"
                       "quantised_bench|row_ops_cuda_bench",
            "transfers": "transfer_cuda_bench|gather_neighbour_bench|overlap_bench", "saves": "save_bench"}

GROUPS = {"needles": needles, "kernels": kernels, "transfers": transfers, "saves": saves}

if __name__ == "__main__":
    sys.exit("rows of tools/gpu_check: run that")
