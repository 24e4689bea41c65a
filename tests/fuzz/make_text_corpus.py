#!/usr/bin/env python3
"""Writes corpus/tokenizer_json (small valid files of every component, and damaged ones) and corpus/encode (option byte, then text).

Run from anywhere; needs only Python. Inputs that a fuzzer found are added to the folders by hand, named after what broke.
"""

import json
import pathlib

CORPUS = pathlib.Path(__file__).parent / "corpus"


def byte_alphabet():
    itself = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [chr(byte) for byte in itself] + [chr(256 + i) for i in range(256 - len(itself))]


def added(i, text, **flags):
    return {"id": i, "content": text, "special": False, "normalized": False, **flags}


def byte_level(**parts):
    tokens = [*byte_alphabet(), "ab", "Ġab", "<s>", "<t>", "<l>", "word"]
    file = {
        "added_tokens": [added(258, "<s>", special=True), added(259, "<t>", normalized=True), added(260, "<l>", lstrip=True, rstrip=True),
                         added(261, "word", single_word=True)],
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "use_regex": True},
        "post_processor": {"type": "TemplateProcessing",
                           "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}, {"SpecialToken": {"id": "<s>"}}],
                           "special_tokens": {"<s>": {"ids": [258]}}},
        "decoder": {"type": "ByteLevel"},
        "model": {"type": "BPE", "ignore_merges": True, "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": ["a b", ["Ġ", "ab"]]},
    }
    return {**file, **parts}


def split(regex, behavior, invert=False):
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


def spm_like(**parts):
    tokens = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
    file = {
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"},
                                                            {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                      {"type": "ByteFallback"}, {"type": "Fuse"},
                                                      {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"unk_token": "<unk>", "byte_fallback": True, "fuse_unk": True,
                  "vocab": {token: i for i, token in enumerate(tokens)}, "merges": ["a b", "▁ ab"]},
    }
    return {**file, **parts}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}


FILES = {
    "byte_level": byte_level(),
    "splits": byte_level(pre_tokenizer=sequence(split("\\p{N}{1,3}", "Isolated"), split("(?i:'s)| ?\\p{L}+|\\s+(?!\\S)", "Contiguous", True),
                                                split("_+", "Removed"))),
    "merged": byte_level(pre_tokenizer=sequence({"type": "Digits", "individual_digits": True}, split("\\p{Lu}", "MergedWithNext"),
                                                split("\\s", "MergedWithPrevious"))),
    "spm_like": spm_like(),
    "metaspace": spm_like(normalizer=None, pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True},
                          decoder={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first"}),
    "regex_replace": byte_level(normalizer={"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "_"}),
    "huge_id": byte_level(model={"vocab": {"a": 2147483647}, "merges": []}),
    "backtracking": byte_level(pre_tokenizer=sequence(split("(a|aa|a*)*b", "Isolated"))),
    "refused": byte_level(normalizer={"type": "Lowercase"}),
    "no_model": {"added_tokens": []},
}
TEXTS = {
    "plain": b"\0The year 2024, it's done.\n\n  def f(x):\r\n\treturn x\n",
    "special": b"\1<|im_start|>user\nhi<|im_end|>\n",
    "special_as_text": b"\0<|im_start|>user\nhi<|im_end|>\n",
    "emoji": "\0👩\u200d👩\u200d👧 é e\u0301 漢字 العربية".encode(),
    "bad_bytes": b"\0a\xff\xe2\x82b\xf0\x9f\x98\xc0\xaf\xed\xa0\x80\xf4\x90\x80\x80\xe2\x82",
    "run": b"\0" + b"a" * 300 + b" " * 300 + b"!?" * 100,
}

if __name__ == "__main__":
    for folder in ("tokenizer_json", "encode"):
        (CORPUS / folder).mkdir(parents=True, exist_ok=True)
    for name, file in FILES.items():
        (CORPUS / "tokenizer_json" / f"{name}.json").write_text(json.dumps(file, ensure_ascii=False, separators=(",", ":")))
    (CORPUS / "tokenizer_json" / "cut.json").write_text(json.dumps(byte_level())[:700])
    for name, text in TEXTS.items():
        (CORPUS / "encode" / name).write_bytes(text)
