"""The rows of tools/gpu_check: what a GPU must show, and how each figure is measured.

A group is a function of a machine (tools/gpu_check) that returns rows: what was measured, what it must show, the figure, whether
that is met. Ratios are between two things of the same run; a row that only shows a figure is met by having one.
"""

import json
import pathlib
import re
import subprocess
import sys
import tempfile

TOP = pathlib.Path(__file__).resolve().parent.parent

# Cases on small shapes that compute-sanitizer gets through in a minute.
SANITIZED = {"decode_attention_test": "*AttendsToListsOfPages*", "prefill_hopper_test": "*OneBlockOfOneHead*",
             "prefill_portable_test": "*Small*", "row_ops_cuda_test": "*", "transfers_cuda_test": "*Gather*",
             "select_cuda_test": "*Small*"}


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


def kernels(machine):
    """attention, selection and products beside torch's libraries in the same run"""
    peer = peers(machine)
    rows = []
    prompts = output(machine, "prefill_bench", "--only", "dense", "--repeats", 7)
    us = number(prompts, r"dense +T +32768 D 128 P 32 +([\d.]+) us")
    rows.append(against("prefill attention, 32k, all heads dense", ">= 0.75 of cuDNN (aim 1.0)", us, peer.get("prefill_32768_us"), 0.75))
    long = output(machine, "prefill_bench", "--only", "long", "--repeats", 3)
    whole, half = (number(long, rf"{name} +T +131072 D 128 P 32 +([\d.]+) us") for name in ("long-dense", "half-streaming"))
    if whole and half:
        rows.append(row("prefill attention, 128k, half of the KV heads streaming", "<= 0.65 of dense", f"{half / whole:.2f} "
                        f"({half * 1e-3:.1f} against {whole * 1e-3:.1f} ms)", half / whole <= 0.65))
    attention = output(machine, "attention_cuda_bench")
    dense = number(attention, r"decode BF16 +Hq 32 Hk 8 D 128 P 32 batch 8 context 131072 +([\d.]+) us")
    listed = number(attention, r"decode BF16 +Hq 32 Hk 8 D 128 P 32 batch 8 context 131072 list 64 +([\d.]+) us")
    cudnn = peer.get("decode_8x131072_us")
    rows.append(against("dense paged decode, batch 8 at 128k", ">= 0.9 of cuDNN", dense, cudnn, 0.9))
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
    print(text)
    return [row("transfers (table in the log)", "shown", f"{len(text.splitlines())} lines", bool(text), log=text)]


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


def differing(one, other):
    return sum(a["tokens"] != b["tokens"] for a, b in zip(one["answers"], other["answers"]))


def needles(machine):
    """longneedle's answers: the GPU beside the CPU, under selection, and through tiers"""
    rows = []
    for name, budget, frames in (("needles-2k.jsonl", 1024, "12MiB"), ("needles-8k.jsonl", 2048, "48MiB"),
                                 ("needles-32k.jsonl", 2048, "96MiB")):
        length = name[8:-6]
        gpu, cpu = (ask(machine, name, "--preset", "dense", "--device", device) for device in ("cuda", "cpu"))
        resident = ask(machine, name, "--preset", "sparse", "--device", "cuda", "--budget", budget)
        tiered = ask(machine, name, "--preset", "full", "--device", "cuda", "--budget", budget, "--device-memory", frames,
                     "--host-memory", "4GiB", "--max-num-seqs", 1)
        if not gpu or not cpu:
            rows.append(row(f"{length} set, dense", "as on the CPU", "failed", False))
            continue
        rows.append(row(f"{length} set, dense, right answers", "as on the CPU within 1", f"{gpu['right']} against {cpu['right']}; "
                        f"{differing(gpu, cpu)} of {len(gpu['answers'])} texts differ", abs(gpu["right"] - cpu["right"]) <= 1))
        if resident:
            rows.append(row(f"{length} set, budget {budget}, right answers", "99 % of dense", f"{resident['right']} of {gpu['right']}",
                            resident["right"] >= 0.99 * gpu["right"] - 1 and resident["kv"]["selections"] > 0))
        if resident and tiered:
            kv = tiered["kv"]
            missed = 100 * kv["pages_missed"] / max(1, kv["pages_selected"])
            rows.append(row(f"{length} set through tiers in {frames}", "the same tokens", f"{differing(resident, tiered)} of "
                            f"{len(tiered['answers'])} texts differ; {missed:.1f} % of the pages missed, {kv['pages_saved']} saved",
                            differing(resident, tiered) == 0 and kv["pages_saved"] > 0, kv=kv))
        else:
            rows.append(row(f"{length} set through tiers", "the same tokens", "failed", False))
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
            for test in measure(machine, model, "--preset", "dense", "-p", 0, "-n", 64, "-d", tokens, "-r", 1, "--max-model-len", 131072):
                ms = 1e3 / test["avg_ts"]
                rows.append(row(f"decode step at {tokens}, dense, batch 1", "<= 1.03 of vLLM's", f"{ms:.2f} against {VLLM_STEP_MS[tokens]} ms",
                                ms <= 1.03 * VLLM_STEP_MS[tokens]))
    return rows


GROUPS = {"needles": needles, "kernels": kernels, "transfers": transfers, "steps": steps}

if __name__ == "__main__":
    sys.exit("rows of tools/gpu_check: run that")
