"""What the GPU's libraries reach, measured beside our kernels: prints one JSON object. Needs torch with CUDA.

    python3 bench/gpu_peers.py               everything
    python3 bench/gpu_peers.py --in-turns    what each line of the input names ("all", or names of figures with blanks between them),
                                             when it is read; an object a line

Medians over CUDA events, in microseconds, on random data: cuDNN's attention and FlashAttention (through torch) for prompts and for
decode, cuBLAS products, one large copy in each direction, and a copy on the device. Between turns no device memory is kept.
"""

import functools
import json
import statistics
import sys

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.manual_seed(1)
HQ, HK, D = 32, 8, 128


def samples_us(work, repeats):
    """Times of `repeats` calls behind two that do not count, rising."""
    samples = []
    for i in range(repeats + 2):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        work()
        end.record()
        torch.cuda.synchronize()
        if i > 1:
            samples.append(begin.elapsed_time(end) * 1e3)
    return sorted(samples)


def median_us(work, repeats):
    return statistics.median(samples_us(work, repeats))


def heads(batch, heads_, tokens):
    return torch.randn(batch, tokens, heads_, D, device="cuda", dtype=torch.bfloat16).transpose(1, 2)


def attention_us(batch, queries, keys, repeats, backend=SDPBackend.CUDNN_ATTENTION):
    q, k, v = heads(batch, HQ, queries), heads(batch, HK, keys), heads(batch, HK, keys)
    with sdpa_kernel(backend):
        return median_us(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=queries == keys, enable_gqa=True), repeats)


def product_us(m, n, k):
    x, w = (torch.randn(a, k, device="cuda", dtype=torch.bfloat16) for a in (m, n))
    return median_us(lambda: F.linear(x, w), 20)


def copy_gbs(to, source):
    return to.numel() / median_us(lambda: to.copy_(source, non_blocking=True), 7) * 1e-3


def measurements():
    """name -> what measures it."""
    found = {}
    for tokens, repeats in ((8192, 9), (32768, 7), (131072, 3)):
        found[f"prefill_{tokens}_us"] = functools.partial(attention_us, 1, tokens, tokens, repeats)
    found["prefill_flash_32768_us"] = functools.partial(attention_us, 1, 32768, 32768, 5, SDPBackend.FLASH_ATTENTION)
    for batch, tokens in ((8, 131072), (1, 131072), (1, 32768), (64, 1024)):
        found[f"decode_{batch}x{tokens}_us"] = functools.partial(attention_us, batch, 1, tokens, 15)
    for m, n, k in ((2048, 28672, 4096), (8192, 28672, 4096), (16, 28672, 4096)):
        found[f"product_{m}x{n}x{k}_us"] = functools.partial(product_us, m, n, k)
    return found


def everything():
    result = {"torch": torch.__version__, "cudnn": torch.backends.cudnn.version()}
    result |= {name: measure() for name, measure in measurements().items()}
    host = torch.empty(1 << 30, dtype=torch.uint8, pin_memory=True)
    device = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    result["h2d_gbs"], result["d2h_gbs"] = copy_gbs(device, host), copy_gbs(host, device)
    result["d2d_gbs"] = 2 * copy_gbs(device, torch.empty_like(device))
    return result


def main():
    if sys.argv[1:] != ["--in-turns"]:
        print(json.dumps(everything()))
        return
    by_name = measurements()
    for line in sys.stdin:
        result = everything() if line.split() == ["all"] else {name: by_name[name]() for name in line.split()}
        torch.cuda.empty_cache()
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
