#!/usr/bin/env python3
"""Writes corpus/gguf, corpus/safetensors and corpus/hf_config: small valid files, and the same damaged in instructive places.

pip install gguf safetensors numpy; run from anywhere. Inputs that a fuzzer found are added to the folders by hand, named
after what broke.
"""

import json
import pathlib
import struct

import gguf
import numpy as np
import safetensors.numpy

CORPUS = pathlib.Path(__file__).parent / "corpus"
RNG = np.random.default_rng(7)


def quantised(shape, name):
    """Random blocks with finite scales, as the bytes of rows."""
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    rows = RNG.integers(0, 64, (*shape[:-1], shape[-1] // block * size), dtype=np.uint8)
    return rows


def gguf_file(path, arch, tokenizer, weight_type="Q4_0", rope=None):
    writer = gguf.GGUFWriter(path, arch)
    width, ffn, vocab, head = 32, 32, 8, 16
    writer.add_name("tiny")
    writer.add_block_count(1)
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(ffn)
    writer.add_context_length(512)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(head)
    if rope == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(128)
    if tokenizer == "gpt2":
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(["<|im_start|>", "<|im_end|>", "a", "b", "c", "ab", "abc"])  # one less than rows
        writer.add_token_types([3, 3, 1, 1, 1, 1, 1])
        writer.add_token_merges(["a b", "ab c"])
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_add_bos_token(False)
        writer.add_chat_template("{{ messages[0].content }}")
    elif tokenizer == "llama":
        writer.add_tokenizer_model("llama")
        writer.add_token_list(["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", "a", "\u2581a", "b"])
        writer.add_token_types([2, 3, 3, 6, 1, 1, 1, 4])
        writer.add_token_scores([0.0, 0.0, 0.0, 0.0, -1.0, -2.0, -3.0, 0.0])
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_unk_token_id(0)

    def matrix(name, rows, cols):
        if weight_type in ("F32", "F16"):
            values = RNG.standard_normal((rows, cols)).astype(np.float16 if weight_type == "F16" else np.float32)
            writer.add_tensor(name, values)
        else:
            kind = gguf.GGMLQuantizationType[weight_type]
            writer.add_tensor(name, quantised((rows, cols), weight_type), raw_dtype=kind)

    def vector(name, size):
        writer.add_tensor(name, np.ones(size, np.float32))

    matrix("token_embd.weight", vocab, width)
    vector("blk.0.attn_norm.weight", width)
    matrix("blk.0.attn_q.weight", 2 * head, width)
    matrix("blk.0.attn_k.weight", head, width)
    matrix("blk.0.attn_v.weight", head, width)
    matrix("blk.0.attn_output.weight", width, 2 * head)
    vector("blk.0.ffn_norm.weight", width)
    matrix("blk.0.ffn_gate.weight", ffn, width)
    matrix("blk.0.ffn_up.weight", ffn, width)
    matrix("blk.0.ffn_down.weight", width, ffn)
    vector("output_norm.weight", width)
    if arch == "qwen2":
        for part, size in (("q", 2 * head), ("k", head), ("v", head)):
            vector(f"blk.0.attn_{part}.bias", size)
    if arch == "gemma3":
        writer.add_uint32("gemma3.attention.sliding_window", 64)
        writer.add_array("gemma3.attention.sliding_window_pattern", [True])
        writer.add_float32("gemma3.rope.freq_base_swa", 5000.0)
        vector("blk.0.post_attention_norm.weight", width)
        vector("blk.0.post_ffw_norm.weight", width)
    if arch in ("qwen3", "gemma3"):
        vector("blk.0.attn_q_norm.weight", head)
        vector("blk.0.attn_k_norm.weight", head)
    if rope == "divisors":
        vector("rope_freqs.weight", head // 2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def make_gguf():
    folder = CORPUS / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    gguf_file(folder / "llama_q4_0.gguf", "llama", "gpt2", rope="divisors")
    gguf_file(folder / "qwen2_q5_1_spm.gguf", "qwen2", "llama", "Q5_1", rope="yarn")
    gguf_file(folder / "qwen3_q4_1.gguf", "qwen3", None, "Q4_1")
    whole = (folder / "llama_q4_0.gguf").read_bytes()
    (folder / "cut_in_header.gguf").write_bytes(whole[:700])
    (folder / "cut_in_data.gguf").write_bytes(whole[:-512])
    huge = struct.pack("<Q", 1 << 40)
    (folder / "huge_tensor_count.gguf").write_bytes(whole[:8] + huge + whole[16:400])
    (folder / "huge_key_count.gguf").write_bytes(whole[:16] + huge + whole[24:400])
    tokens = whole.index(b"tokenizer.ggml.tokens") + len(b"tokenizer.ggml.tokens") + 8
    (folder / "huge_array.gguf").write_bytes(whole[:tokens] + huge + whole[tokens + 8 : 1200])
    (folder / "version_1.gguf").write_bytes(whole[:4] + struct.pack("<I", 1) + whole[8:200])


def make_safetensors():
    folder = CORPUS / "safetensors"
    folder.mkdir(parents=True, exist_ok=True)
    shapes = {"model.embed_tokens.weight": (4, 16), "model.norm.weight": (16,)}
    layer = "model.layers.0."
    for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
        shapes[f"{layer}self_attn.{part}.weight"] = (16, 16)
    for part in ("gate_proj", "up_proj", "down_proj"):
        shapes[f"{layer}mlp.{part}.weight"] = (16, 16)
    shapes[layer + "input_layernorm.weight"] = (16,)
    shapes[layer + "post_attention_layernorm.weight"] = (16,)
    tensors = {name: RNG.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    safetensors.numpy.save_file(tensors, folder / "tiny_f16.safetensors", metadata={"format": "pt"})
    small = {"a": np.arange(4, dtype=np.int64), "b": np.zeros((0, 3), np.float32), "c": np.array(True)}
    safetensors.numpy.save_file(small, folder / "other_types.safetensors")
    whole = (folder / "tiny_f16.safetensors").read_bytes()
    (folder / "cut.safetensors").write_bytes(whole[:-100])
    (folder / "huge_header.safetensors").write_bytes(struct.pack("<Q", 1 << 40) + whole[8:200])
    header = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}'
    (folder / "overlap.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"123456")
    header = b'{"a":{"dtype":"F64","shape":[9223372036854775807,4],"data_offsets":[0,0]}}'
    (folder / "huge_shape.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)


def make_hf_config():
    folder = CORPUS / "hf_config"
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {
        "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-05, "hidden_act": "silu", "attention_dropout": 0.0, "use_cache": True,
    }
    llama3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
              "original_max_position_embeddings": 8192}
    yarn = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768, "mscale": 1.0,
            "mscale_all_dim": 0.7, "truncate": False, "beta_fast": 32, "beta_slow": 1}
    files = {
        "llama": {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes, "rope_scaling": llama3,
                  "rope_theta": 500000.0, "eos_token_id": [128001, 128008], "attention_bias": False,
                  "tie_word_embeddings": True},
        "qwen2": {"model_type": "qwen2", **sizes, "rope_scaling": yarn, "use_sliding_window": False,
                  "sliding_window": 4096, "max_window_layers": 28, "bos_token_id": 1},
        "qwen3": {"model_type": "qwen3", **sizes, "rope_parameters": {"rope_type": "linear", "factor": 2.0,
                  "rope_theta": 1e6}, "layer_types": ["full_attention"] * 2, "attention_bias": True},
        "gemma3": {"model_type": "gemma3", "vision_config": {}, "eos_token_id": [1, 106], "text_config": {
                   "model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024,
                   "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "sliding_window_pattern": 6}},
        "gemma3_text": {"model_type": "gemma3_text", **sizes, "hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": 256,
                        "layer_types": ["sliding_attention", "full_attention"] * 8, "rope_parameters": {
                            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}},
        "mistral": {"model_type": "mistral", **sizes, "sliding_window": None, "residual_scale": 2.0},
        "quantised": {"model_type": "llama", **sizes, "quantization_config": {"quant_method": "awq"}},
        "generation": {"bos_token_id": 1, "eos_token_id": [2, 7], "temperature": 0.6},
        "tokenizer": {"bos_token": None, "eos_token": {"content": "<e>"}, "unk_token": "<u>", "add_bos_token": True,
                      "added_tokens_decoder": {"0": {"content": "<e>", "special": True}},
                      "chat_template": [{"name": "default", "template": "{{ x }}"}]},
    }
    for name, value in files.items():
        (folder / f"{name}.json").write_text(json.dumps(value))
    (folder / "nested.json").write_text('{"rope_scaling":' * 1100 + "1" + "}" * 1100)


if __name__ == "__main__":
    make_gguf()
    make_safetensors()
    make_hf_config()
    gguf_file(CORPUS / "gguf" / "gemma3_q4_0.gguf", "gemma3", "llama")
