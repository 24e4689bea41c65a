#!/usr/bin/env python3
"""Writes data/dequantize.bin: random blocks of every weight type and their values by the `gguf` package.

pip install gguf; run from anywhere. The blocks are random bits with finite scales, so every bit of a block matters; they are
not results of quantising anything. Format: name (8 bytes, zero-padded), u32 bytes, u32 elements, the row, the values as f32.
"""

import pathlib
import struct

import gguf
import numpy as np

TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Offsets of the half-precision scales in a block.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}
ELEMENTS = {"F32": 32, "F16": 64, "BF16": 64, "Q4_K": 768, "Q5_K": 768, "Q6_K": 768}


def random_row(rng, name, elements):
    if name in ("F32", "F16", "BF16"):
        values = rng.standard_normal(elements).astype(np.float32)
        if name == "F32":
            return values.tobytes()
        if name == "F16":
            return values.astype(np.float16).tobytes()
        return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    rows = rng.integers(0, 256, (elements // block, size), dtype=np.uint8)
    for offset in SCALES[name]:
        scales = (rng.standard_normal(len(rows)) * 0.05).astype(np.float16)
        rows[:, offset : offset + 2] = scales.view(np.uint8).reshape(-1, 2)
    return rows.tobytes()


def main():
    rng = np.random.default_rng(20240229)
    out = pathlib.Path(__file__).parent / "data" / "dequantize.bin"
    with out.open("wb") as file:
        for name in TYPES:
            elements = ELEMENTS.get(name, 256)
            row = random_row(rng, name, elements)
            values = gguf.quants.dequantize(np.frombuffer(row, np.uint8), gguf.GGMLQuantizationType[name])
            values = values.astype(np.float32).reshape(-1)
            assert values.size == elements
            file.write(struct.pack("<8sII", name.encode(), len(row), elements) + row + values.tobytes())


if __name__ == "__main__":
    main()
