"""Makes tests/golden/data/gemma_golden.json: what llama.cpp says on the real Gemma 3 270M, greedily.

For each prompt: its tokens, the tokens that llama.cpp (llama-cpp-python 0.3.36, its CPU back end, KV in F32) draws with the
highest logit, and by how much each led the second. The long prompt is a prefix of the repository's LICENSE, far past the
model's window of 512 tokens.

usage: make_gemma_golden.py GEMMA.gguf      (from `tools/fixtures gemma`)
Needs numpy, diskcache, jinja2, typing_extensions and the peer that bench/compare_llamacpp builds.
"""
import hashlib
import json
import os
import pathlib
import sys

TOP = pathlib.Path(__file__).resolve().parents[2]
PEER = pathlib.Path.home() / ".cache/spillway/peers/llama.cpp-0.3.36"
os.environ["LLAMA_CPP_LIB_PATH"] = str(PEER / "build/bin")
sys.path.insert(0, str(PEER / "llama_cpp_python-0.3.36"))
import numpy as np  # noqa: E402
from llama_cpp import Llama  # noqa: E402

LICENSE_BYTES = 9000
PROMPTS = [
    ("The capital of France is", 32),
    ("Once upon a time, in a small village by the sea,", 48),
    ("def fibonacci(n):\n    ", 48),
    ("Häuser, naïve Café, 東京 🙂 <div>\t1234 + 5678 =", 32),  # byte fallback, spaces, control characters
    (None, 64),
]

(path,) = sys.argv[1:]
llm = Llama(path, n_ctx=4096, n_batch=512, n_threads=2, type_k=0, type_v=0, flash_attn=False, verbose=False)
cases = []
for prompt, count in PROMPTS:
    text = prompt if prompt is not None else (TOP / "LICENSE").read_bytes()[:LICENSE_BYTES].decode()
    tokens = llm.tokenize(text.encode(), add_bos=True, special=False)
    llm.reset()
    llm.eval(tokens)
    greedy, leads = [], []
    while len(greedy) < count:
        logits = np.ctypeslib.as_array(llm._ctx.get_logits_ith(-1), shape=(llm.n_vocab(),))
        first, second = np.argsort(logits)[-2:][::-1]
        greedy.append(int(first))
        leads.append(round(float(logits[first] - logits[second]), 3))
        llm.eval([int(first)])
    case = {"tokens": tokens, "greedy": greedy, "leads": leads}
    cases.append({"license_bytes": LICENSE_BYTES, **case} if prompt is None else {"prompt": prompt, **case})
    print(repr(llm.detokenize(greedy).decode(errors="replace")), min(leads), len(tokens))
data = {"file_sha256": hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest(), "cases": cases}
out = TOP / "tests/golden/data/gemma_golden.json"
out.write_text(json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace('{"prompt"', '\n{"prompt"').replace('{"license', '\n{"license') + "\n")
