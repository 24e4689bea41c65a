#!/usr/bin/env python3
"""Causal attention of one prompt in torch (cuDNN, and FlashAttention as torch ships it), at the shapes of
src/ops/cuda/prefill_bench.cc: medians of events, FLOPs counted as 4 * D * Hq for each (row, visible key).

  attention_peer.py [--repeats N] [--backend cudnn|flash] [T:D ...]      default: cudnn, 2048:128 ... 131072:128
"""
import argparse
import statistics

import torch
import torch.nn.functional as functional
from gpu_peers import samples_us
from torch.nn.attention import SDPBackend, sdpa_kernel

NUM_Q_HEADS, NUM_KV_HEADS = 32, 8
BACKENDS = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}


def random_heads(tokens, heads, dim):
    return torch.randn(1, tokens, heads, dim, device="cuda", dtype=torch.bfloat16).transpose(1, 2)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--backend", choices=BACKENDS, default="cudnn")
    parser.add_argument("shapes", nargs="*", default=["2048:128", "8192:128", "32768:128", "32768:64", "131072:128"])
    options = parser.parse_args()
    torch.manual_seed(1)
    for shape in options.shapes:
        tokens, dim = map(int, shape.split(":"))
        q = random_heads(tokens, NUM_Q_HEADS, dim)
        k, v = (random_heads(tokens, NUM_KV_HEADS, dim) for _ in range(2))
        with sdpa_kernel(BACKENDS[options.backend]):
            samples = samples_us(
                lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True),
                options.repeats)
        us, best = statistics.median(samples), samples[0]
        flops = 4 * dim * NUM_Q_HEADS * tokens * (tokens + 1) / 2
        print(f"{options.backend:28} T {tokens:6} D {dim:3} {us:15.1f} us (best {best:.1f}) {flops / us * 1e-6:6.1f} TFLOP/s",
              flush=True)


if __name__ == "__main__":
    main()
