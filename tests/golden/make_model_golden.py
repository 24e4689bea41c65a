"""Makes the model fixtures of tests/data/models: tiny random models and the logits that transformers computes for them.

For each variant: NAME/config.json and NAME/model.safetensors (F32, as transformers saves them) and NAME/logits.f32: float32
(64, V), little endian, the logits of the first 64 positions of the token sequence tokens() below. The script checks that the
same logits come out teacher-forced, one token a step. Also:
  llama_g3/model.gguf, qwen2/model.gguf, qwen3/model.gguf, gemma3/model.gguf   the same weights in GGUF's names, row order and norms (F32)
  mixed_quants/model.gguf                a llama of one layer in which every quantised type stands once
  bf16_sharded/, f16/                    a llama in BF16 over two shards, and in F16
  longneedle/logits.f32 (32, V): positions 63, 127, ... 2047 of document 0 of needles-2k.jsonl, weights dequantised to float;
  longneedle/argmax.i32 (2048), longneedle/logsumexp.f32 (2048): of every position.

usage: make_model_golden.py REPOSITORY OUT [PREFIX]      needs torch, transformers, safetensors, tokenizers, gguf, numpy
With PREFIX only the variants whose names start with it.
"""
import json, os, sys
import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, Qwen2Config, Qwen3Config
from tokenizers import Tokenizer
import gguf

repository, out, prefix = (sys.argv[1:] + [""])[:3]
torch.set_grad_enabled(False)
torch.set_num_threads(8)
V, E, F, POSITIONS = 96, 32, 64, 64


def tokens(count, vocab):
    """A fixed sequence: x' = (5 x + 7 + i) mod vocab."""
    x, ids = 1, []
    for i in range(count):
        x = (5 * x + 7 + i) % vocab
        ids.append(x)
    return ids


def base(**more):
    d = dict(vocab_size=V, hidden_size=E, intermediate_size=F, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             head_dim=64, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False,
             bos_token_id=0, eos_token_id=2, attn_implementation="eager")
    d.update(more)
    return d


def gemma(**more):
    d = base(tie_word_embeddings=True, rms_norm_eps=1e-6, hidden_activation="gelu_pytorch_tanh", attention_bias=False)
    del d["rope_theta"]
    d.update(more)
    return d


VARIANTS = {
    "llama_g1": LlamaConfig(**base(num_attention_heads=2, num_key_value_heads=2)),
    "llama_g3": LlamaConfig(**base(hidden_size=48, num_attention_heads=3)),
    "llama_g4_d80": LlamaConfig(**base(num_attention_heads=4, head_dim=80)),
    "llama_g8": LlamaConfig(**base(num_attention_heads=8, rms_norm_eps=1e-6)),
    "llama_g4_d128_tied": LlamaConfig(**base(num_attention_heads=4, head_dim=128, tie_word_embeddings=True, rope_theta=500000.0)),
    "llama_bias": LlamaConfig(**base(attention_bias=True, mlp_bias=True)),
    "llama_linear": LlamaConfig(**base(rope_scaling={"rope_type": "linear", "factor": 4.0})),
    "llama_llama3": LlamaConfig(**base(rope_scaling={"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                                                     "original_max_position_embeddings": 32})),
    "llama_yarn": LlamaConfig(**base(rope_scaling={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32})),
    "llama_yarn_options": LlamaConfig(**base(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 16.0,
                                                           "beta_slow": 2.0, "attention_factor": 1.25, "truncate": False})),
    "mistral": MistralConfig(**base(num_attention_heads=4, num_key_value_heads=2, head_dim=32, sliding_window=None)),
    "qwen2": Qwen2Config(**base(tie_word_embeddings=True, num_attention_heads=2, head_dim=16, use_sliding_window=False)),
    "qwen2_g4": Qwen2Config(**base(num_attention_heads=4, head_dim=8 * 4)),
    "qwen3": Qwen3Config(**base(num_attention_heads=4, num_key_value_heads=2, head_dim=64, use_sliding_window=False)),
    "qwen3_tied_d128": Qwen3Config(**base(num_attention_heads=2, num_key_value_heads=1, head_dim=128, tie_word_embeddings=True)),
    # Windows shorter than the 64 positions, both RoPE bases, one of them scaled; an attention scale that is not the head's (GGUF cannot say it).
    "gemma3": Gemma3TextConfig(**gemma(num_attention_heads=4, num_key_value_heads=2, head_dim=16, num_hidden_layers=3, sliding_window=12,
                                       layer_types=["sliding_attention", "sliding_attention", "full_attention"], query_pre_attn_scalar=16,
                                       rope_parameters={"sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
                                                        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}})),
    "gemma3_d256": Gemma3TextConfig(**gemma(hidden_size=16, intermediate_size=32, head_dim=256, sliding_window=40,
                                            layer_types=["full_attention", "sliding_attention"], query_pre_attn_scalar=168)),
}


def randomise(model, seed):
    """Weights large enough that attention is far from uniform, biases and norms away from 0 and 1."""
    g = torch.Generator().manual_seed(seed)
    is_gemma = model.config.model_type == "gemma3_text"  # its norms store the weight less one, its embedding is scaled up
    for name, p in model.named_parameters():
        noise = torch.randn(p.shape, generator=g)
        if is_gemma and ("q_norm" in name or "k_norm" in name):
            p.copy_(0.6 + 0.3 * noise)
        elif is_gemma and "norm" in name:
            p.copy_(0.3 * noise)
        elif is_gemma and "embed_tokens" in name:
            p.copy_(0.4 * noise)
        elif "norm" in name:
            p.copy_(1.0 + 0.2 * noise)
        elif name.endswith("bias"):
            p.copy_(0.3 * noise)
        elif "embed_tokens" in name:
            p.copy_(noise)
        else:
            p.copy_(1.5 * noise / p.shape[-1] ** 0.5)


def logits_of(model, ids):
    whole = model(torch.tensor([ids])).logits[0].float()
    cache, steps = None, []
    for t in ids:
        o = model(torch.tensor([[t]]), past_key_values=cache, use_cache=True)
        cache = o.past_key_values
        steps.append(o.logits[0, -1].float())
    worst = (torch.stack(steps) - whole).abs().max().item()
    assert worst < 2e-4, worst
    return whole.numpy().astype("<f4"), worst


def save(name, model, array):
    folder = f"{out}/{name}"
    os.makedirs(folder, exist_ok=True)
    model.save_pretrained(folder)
    array.tofile(f"{folder}/logits.f32")
    if os.path.exists(f"{folder}/generation_config.json"):
        os.remove(f"{folder}/generation_config.json")


GEMMA_NAMES = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
               "post_feedforward_layernorm": "post_ffw_norm"}
NAMES = {"self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm",
         "post_attention_layernorm": "ffn_norm", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}


def gguf_name(name, arch="llama"):
    if name == "model.embed_tokens.weight": return "token_embd.weight"
    if name == "model.norm.weight": return "output_norm.weight"
    if name == "lm_head.weight": return "output.weight"
    _, _, layer, rest = name.split(".", 3)
    stem, kind = rest.rsplit(".", 1)
    return f"blk.{layer}.{GEMMA_NAMES[stem] if arch == 'gemma3' and stem in GEMMA_NAMES else NAMES[stem]}.{kind}"


def interleave(w, heads):
    """Row order of llama GGUF files: within a head, row i and row i + D/2 become neighbours."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path, arch, c, arrays):
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(c.max_position_embeddings); w.add_embedding_length(c.hidden_size); w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size); w.add_head_count(c.num_attention_heads); w.add_head_count_kv(c.num_key_value_heads)
    w.add_key_length(c.head_dim); w.add_value_length(c.head_dim); w.add_layer_norm_rms_eps(c.rms_norm_eps)
    rope = getattr(c, "rope_parameters", None) or {"rope_theta": getattr(c, "rope_theta", None)}
    if arch == "gemma3":
        w.add_uint32("gemma3.attention.sliding_window", c.sliding_window)
        w.add_uint32("gemma3.attention.sliding_window_pattern", 3)
        rope = rope["full_attention"]
        w.add_string("gemma3.rope.scaling.type", rope["rope_type"]); w.add_float32("gemma3.rope.scaling.factor", rope["factor"])
    theta = rope["rope_theta"]
    w.add_rope_freq_base(theta); w.add_rope_dimension_count(c.head_dim); w.add_vocab_size(c.vocab_size)
    w.add_tokenizer_model("gpt2"); w.add_tokenizer_pre("smollm")
    n = c.vocab_size - 3  # a smallest BPE vocabulary: readers refuse one without merges
    w.add_token_list([f"<{i}>" for i in range(n)] + ["a", "b", "ab"]); w.add_token_types([3] * n + [1] * 3); w.add_token_merges(["a b"])
    w.add_bos_token_id(0); w.add_eos_token_id(2)
    for name, (data, kind) in arrays.items():
        if kind is None: w.add_tensor(name, np.ascontiguousarray(data))
        else: w.add_tensor(name, np.ascontiguousarray(data), raw_dtype=kind)
    w.write_header_to_file(); w.write_kv_data_to_file(); w.write_tensors_to_file(); w.close()


def save_gguf(name, arch, model):
    c, arrays = model.config, {}
    for key, p in model.state_dict().items():
        if key == "lm_head.weight" and c.tie_word_embeddings: continue
        a = p.numpy().astype(np.float32)
        if arch == "llama" and "q_proj" in key: a = interleave(a, c.num_attention_heads)
        if arch == "llama" and "k_proj" in key: a = interleave(a, c.num_key_value_heads)
        if arch == "gemma3" and "norm" in key: a = a + 1
        arrays[gguf_name(key, arch)] = (a, None)
    write_gguf(f"{out}/{name}/model.gguf", arch, c, arrays)


for seed, (name, config) in enumerate(VARIANTS.items()):
    if not name.startswith(prefix): continue
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    randomise(model, seed)
    array, worst = logits_of(model, tokens(POSITIONS, V))
    save(name, model, array)
    if name == "llama_g3": save_gguf(name, "llama", model)
    if name in ("qwen2", "qwen3", "gemma3"): save_gguf(name, name, model)
    print(f"{name}: stepwise within {worst:.1e}, largest logit {np.abs(array).max():.2f}")

if prefix: sys.exit()

# Storage types: the same small llama in BF16 over two shards, and in F16. Expected: float arithmetic on the rounded weights.
for name, dtype, shard in (("bf16_sharded", torch.bfloat16, "60KB"), ("f16", torch.float16, "10GB")):
    model = LlamaForCausalLM(LlamaConfig(**base())).float().eval()
    randomise(model, 77)
    model = model.to(dtype)
    array, _ = logits_of(LlamaForCausalLM.from_pretrained(None, config=model.config, state_dict={k: v.float() for k, v in model.state_dict().items()}, attn_implementation="eager").float().eval(), tokens(POSITIONS, V))
    folder = f"{out}/{name}"
    os.makedirs(folder, exist_ok=True)
    model.save_pretrained(folder, max_shard_size=shard)
    if os.path.exists(f"{folder}/generation_config.json"): os.remove(f"{folder}/generation_config.json")
    array.tofile(f"{folder}/logits.f32")
    print(name, sorted(os.listdir(folder)))

# Every quantised type once. K-quants have no encoder in gguf: their blocks are random bytes with small scales.
Q = gguf.GGMLQuantizationType
rng = np.random.default_rng(5)
c = LlamaConfig(**base(hidden_size=256, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2))
model = LlamaForCausalLM(c).float().eval()
randomise(model, 99)


def random_blocks(kind, rows, cols, scale_at):
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    b = rng.integers(0, 256, (rows, cols // elements, size), dtype=np.uint8)
    for at, mean in scale_at:
        s = (mean * rng.uniform(0.5, 1.5, (rows, cols // elements, 1))).astype(np.float16)
        b[:, :, at:at + 2] = s.view(np.uint8)
    return b.reshape(rows, -1)


TYPES = {"model.embed_tokens.weight": Q.Q5_1, "model.layers.0.self_attn.q_proj.weight": Q.Q4_K, "model.layers.0.self_attn.k_proj.weight": Q.Q5_K,
         "model.layers.0.self_attn.v_proj.weight": Q.Q6_K, "model.layers.0.self_attn.o_proj.weight": Q.Q5_0, "model.layers.0.mlp.gate_proj.weight": Q.Q4_0,
         "model.layers.0.mlp.up_proj.weight": Q.Q4_1, "model.layers.0.mlp.down_proj.weight": Q.Q8_0, "lm_head.weight": Q.Q8_0}
SCALES = {Q.Q4_K: [(0, 2e-4), (2, 1.5e-3)], Q.Q5_K: [(0, 1e-4), (2, 1.5e-3)], Q.Q6_K: [(208, 5e-5)]}
arrays, state = {}, model.state_dict()
for key, p in state.items():
    a = p.numpy().astype(np.float32)
    if key not in TYPES:
        arrays[gguf_name(key)] = (a, None)
        continue
    kind = TYPES[key]
    heads = c.num_attention_heads if "q_proj" in key else c.num_key_value_heads if "k_proj" in key else 0
    if kind in SCALES: blocks = random_blocks(kind, *a.shape, SCALES[kind])
    else: blocks = gguf.quants.quantize(interleave(a, heads) if heads else a, kind)
    values = gguf.quants.dequantize(blocks, kind)
    arrays[gguf_name(key)] = (blocks, kind)
    if heads:  # blocks are in file order: undo it for transformers
        values = values.reshape(heads, values.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(values.shape)
    state[key].copy_(torch.from_numpy(values.copy()))
array, worst = logits_of(model, tokens(POSITIONS, V))
os.makedirs(f"{out}/mixed_quants", exist_ok=True)
write_gguf(f"{out}/mixed_quants/model.gguf", "llama", c, arrays)
array.tofile(f"{out}/mixed_quants/logits.f32")
print(f"mixed_quants: stepwise within {worst:.1e}, largest logit {np.abs(array).max():.2f}")

# longneedle, its file dequantised.
folder = f"{repository}/models/longneedle"
reader = gguf.GGUFReader(f"{folder}/longneedle-q8_0.gguf")
config = LlamaConfig(**{k: v for k, v in json.load(open(f"{folder}/config.json")).items() if k not in ("architectures", "torch_dtype", "model_type")})
model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa").float().eval()
state = model.state_dict()
tensors = {t.name: t for t in reader.tensors}
for key in state:
    if key == "lm_head.weight": continue
    t = tensors[gguf_name(key)]
    a = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(tuple(reversed(t.shape.tolist())))
    heads = config.num_attention_heads if "q_proj" in key else config.num_key_value_heads if "k_proj" in key else 0
    if heads: a = a.reshape(heads, a.shape[0] // heads // 2, 2, -1).swapaxes(1, 2).reshape(a.shape)
    state[key].copy_(torch.from_numpy(a.copy()))
text = json.loads(open(f"{repository}/tests/data/needles/needles-2k.jsonl").readline())["context"]
ids = Tokenizer.from_file(f"{folder}/tokenizer.json").encode(text).ids
ids = (ids * 2)[:2048]
logits = model(torch.tensor([ids])).logits[0].float()
os.makedirs(f"{out}/longneedle", exist_ok=True)
np.array(ids, "<i4").tofile(f"{out}/longneedle/tokens.i32")
logits[63::64].numpy().astype("<f4").tofile(f"{out}/longneedle/logits.f32")
logits.argmax(-1).numpy().astype("<i4").tofile(f"{out}/longneedle/argmax.i32")
logits.logsumexp(-1).numpy().astype("<f4").tofile(f"{out}/longneedle/logsumexp.f32")
print("longneedle: mean logsumexp", logits.logsumexp(-1).mean().item())
