"""Makes the expected values of the tokenizer tests, with Hugging Face tokenizers 0.23.3 and sentencepiece 0.2.3 as oracles.

    pip install tokenizers==0.23.3 sentencepiece==0.2.3 xxhash
    python3 make_tokenizer_golden.py train      makes the small vocabularies in tests/data/vocab anew, then as below
    python3 make_tokenizer_golden.py            makes tests/golden/tokenizer.json (needs tools/fixtures vocabs)

For each case (a vocabulary, perhaps with components replaced) tokenizer.json holds, for the mixed text cut into slices of at
most 4096 bytes at characters and for the whole, the number of ids and the xxh3 of the ids as little-endian int32; and for a
few short texts the ids and the decoded text themselves.
"""
import importlib.metadata
import io
import json
import pathlib
import random
import re
import sys

import sentencepiece
import tokenizers
import xxhash
from tokenizers import decoders, models, pre_tokenizers, trainers

from make_mixed_text import PROSE

TOP = pathlib.Path(__file__).resolve().parents[2]
TEXT = TOP / "tests/data/text/mixed.txt"
VOCAB = TOP / "tests/data/vocab"
FIXTURES = pathlib.Path.home() / ".cache/spillway/fixtures/vocabs"
sys.path.insert(0, str(TOP / "tools"))

SLICE_BYTES = 4096
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
TEKKEN = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}"
          r"\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def split(pattern, behavior="Isolated", kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": False}


def byte_level(*steps, use_regex=False):
    last = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": use_regex}
    return {"type": "Sequence", "pretokenizers": [*steps, last]}


DIGITS = {"type": "Digits", "individual_digits": True}
NAMED = {  # GGUF's name -> what the oracle is given for it
    "gpt-2": {"pre_tokenizer": byte_level(use_regex=True)},
    "smollm": {"pre_tokenizer": byte_level(DIGITS, use_regex=True)},
    "llama-bpe": {"pre_tokenizer": byte_level(split(LLAMA3)), "model": {"ignore_merges": True}},
    "qwen2": {"pre_tokenizer": byte_level(split(LLAMA3.replace("{1,3}", ""))), "normalizer": {"type": "NFC"}},
    "tekken": {"pre_tokenizer": byte_level(split(TEKKEN)), "model": {"ignore_merges": True}},
}
SPACE = "\u2581"
REPLACE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
PREPEND = {"type": "Prepend", "prepend": SPACE}
BACK = [{"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def metaspace(scheme, cut):
    return {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": scheme, "split": cut}


def sequence(key, *steps):
    return {"type": "Sequence", key: list(steps)}


LLAMA_LIKE = {  # the ways in which published files spell a SentencePiece vocabulary as BPE
    "llama2": {"normalizer": sequence("normalizers", PREPEND, REPLACE), "pre_tokenizer": None,
               "decoder": sequence("decoders", *BACK, STRIP)},
    "gemma": {"normalizer": REPLACE, "pre_tokenizer": split(" ", "MergedWithPrevious", "String"),
              "decoder": sequence("decoders", *BACK)},
    "mistral": {"normalizer": None, "pre_tokenizer": metaspace("first", False), "decoder": sequence("decoders", *BACK, STRIP)},
    "metaspace": {"normalizer": None, "pre_tokenizer": metaspace("always", True), "decoder": sequence("decoders", *BACK, STRIP)},
    "no fallback": {"normalizer": REPLACE, "pre_tokenizer": None, "model": {"byte_fallback": False},
                    "decoder": sequence("decoders", BACK[0], BACK[2])},
}
OTHER = {  # components and behaviours that the published patterns do not reach
    "digits together": {"pre_tokenizer": byte_level({"type": "Digits", "individual_digits": False})},
    "byte-level only": {"pre_tokenizer": byte_level()},
    "prefix space": {"pre_tokenizer": {**byte_level(use_regex=True)["pretokenizers"][0], "add_prefix_space": True}},
    "merged with next": {"pre_tokenizer": byte_level(split(r"\p{Lu}", "MergedWithNext"))},
    "merged with previous": {"pre_tokenizer": byte_level(split(r"\s", "MergedWithPrevious"))},
    "contiguous": {"pre_tokenizer": byte_level(split(r"[\p{P}\p{S}]", "Contiguous"))},
    "removed": {"pre_tokenizer": byte_level(split(" ", "Removed", "String"))},
    "o200k": {"pre_tokenizer": byte_level(split(TEKKEN.replace(r"\p{N}|", r"\p{N}{1,3}|")))},
    "deepseek": {"pre_tokenizer": byte_level(split(r"\p{N}{1,3}"), split(r"[一-龥぀-ゟ゠-ヿ]+"),
                                             split(r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                                                   r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"))},
    "replace": {"normalizer": sequence("normalizers", {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "_"},
                                       {"type": "NFC"})},
}
SHORT = ["", " ", "a", " a", "a ", "  a  b", "\n", "Hello, world! It's 2024.", "hello<|im_start|>user\nhi <l> there<r> \n you<|im_end|>",
         "<|im_start|>", "<tool>x <tool> y", "word words sword word", "<s>Hello</s>", "<s> Hello", "é e\u0301 👩‍👩‍👧 '\u017f", "<unk><0x0A>",
         "a\u180eb \u180e", "\u3000x", "\u0085\u0085y", "<|im_start|><|im_start|>  <l><l>", "  <r>  ", "x" * 60, "\u2581"]


def slices_of(data):
    start = 0
    while start < len(data):
        end = min(start + SLICE_BYTES, len(data))
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end -= 1
        yield data[start:end].decode()
        start = end


def digest(ids):
    return [len(ids), xxhash.xxh3_64_hexdigest(b"".join(i.to_bytes(4, "little") for i in ids))]


def answers(encode, decode, round_trip):
    """encode(text, parse_special) -> ids; decode(ids) -> text without special tokens."""
    data = TEXT.read_bytes()
    whole = encode(data.decode(), False)
    short = []
    for text in SHORT:
        for parse_special in (False, True):
            ids = encode(text, parse_special)
            short.append({"text": text, "parse_special": parse_special, "ids": ids, "decoded": decode(ids)})
    return {"round_trip": round_trip, "whole": digest(whole), "slices": [digest(encode(text, False)) for text in slices_of(data)],
            "short": short}


def load(vocabulary, patch):
    path = FIXTURES / vocabulary[8:] if vocabulary.startswith("fixture:") else TOP / vocabulary
    data = json.loads(path.read_text())
    for key, value in patch.items():
        if key == "model":
            data["model"].update(value)
        else:
            data[key] = value
    return data


def hugging_face(name, vocabulary, patch=None, pre="", round_trip=True):
    patch = patch or {}
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(load(vocabulary, NAMED[pre] if pre else patch)))

    def encode(text, parse_special):
        tokenizer.encode_special_tokens = not parse_special
        return tokenizer.encode(text, add_special_tokens=False).ids

    print(name, flush=True)
    return {"name": name, "vocabulary": vocabulary, "patch": patch, "pre": pre,
            **answers(encode, lambda ids: tokenizer.decode(ids, skip_special_tokens=True), round_trip)}


def sentence_piece(name, vocabulary, model):
    """SentencePiece never makes control tokens of text: only what both ways of parsing agree on is asked."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    found = answers(lambda text, parse_special: processor.encode(text), processor.decode, True)
    special = [processor.id_to_piece(i) for i in range(processor.get_piece_size()) if processor.is_control(i) or processor.is_unknown(i)]
    found["short"] = [short for short in found["short"] if not any(token in short["text"] for token in special + [SPACE])]
    print(name, flush=True)
    return {"name": name, "vocabulary": vocabulary, "patch": {}, "pre": "", **found}


def model_in_wheel(name):
    import importlib.machinery
    import importlib.util
    loader = importlib.machinery.SourceFileLoader("fixtures", str(TOP / "tools/fixtures"))
    fixtures = importlib.util.module_from_spec(importlib.util.spec_from_loader("fixtures", loader))
    loader.exec_module(fixtures)
    if name is None:
        return fixtures
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        return fixtures.fetch_wheel(*fixtures.MISTRAL, pathlib.Path(folder)).read(f"mistral_common/data/{name}")


def write_json(path, data):
    """One token, merge or score a line would triple the file: a line holds about 20."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    path.write_text(text + "\n")


def train_small_bpe():
    """Pieces of 1 to 16 characters of any kind, so that tokens cross every border that a pre-tokenizer might draw."""
    rng = random.Random(4)
    text = TEXT.read_bytes().decode()
    pieces, pos = [], 0
    while pos < len(text):
        size = rng.randint(1, 16)
        pieces.append(text[pos:pos + size])
        pos += size
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=2500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator(pieces, trainer)
    tokenizer.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer.add_tokens([tokenizers.AddedToken("<tool>"), tokenizers.AddedToken("<l>", lstrip=True, normalized=False),
                          tokenizers.AddedToken("<r>", rstrip=True, normalized=False),
                          tokenizers.AddedToken("word", single_word=True, normalized=False)])
    write_json(VOCAB / "small-bpe.tokenizer.json", json.loads(tokenizer.to_str()))


def train_small_spm(prefix):
    model = io.BytesIO()
    sources = [PROSE, *((TOP / "models/longneedle" / name).read_text() for name in ("train.py", "sparse_eval.py"))]
    lines = [line for source in sources for line in source.split("\n") if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=1500, byte_fallback=True,
        character_coverage=0.99, normalization_rule_name="identity", remove_extra_whitespaces=False, split_digits=True,
        allow_whitespace_only_pieces=True, add_dummy_prefix=prefix, max_sentence_length=100000, minloglevel=2,
        num_threads=1)
    name = "small-prefix" if prefix else "small-plain"
    (VOCAB / f"{name}.model").write_bytes(model.getvalue())
    data = model_in_wheel(None).spm_json(model.getvalue())
    write_json(VOCAB / f"{name}.spm.json", data)
    return data


def bpe_of_spm(spm):
    """The same vocabulary as tokenizer.json: every cut of a token is a merge, best score first."""
    vocab = {token: i for i, token in enumerate(spm["tokens"])}
    merges = []
    for token, score in zip(spm["tokens"], spm["scores"]):
        cuts = [(token[:i], token[i:]) for i in range(1, len(token))]
        merges += [(score, cut) for cut in cuts if cut[0] in vocab and cut[1] in vocab]
    merges.sort(key=lambda entry: -entry[0])
    added = [{"id": vocab[text], "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
              "special": True} for text in ("<unk>", "<s>", "</s>")]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": LLAMA_LIKE["llama2"]["normalizer"], "pre_tokenizer": None, "post_processor": None,
            "decoder": LLAMA_LIKE["llama2"]["decoder"],
            "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                      "vocab": vocab, "merges": [" ".join(cut) for _, cut in merges]}}


def train():
    VOCAB.mkdir(exist_ok=True)
    train_small_bpe()
    train_small_spm(prefix=False)
    write_json(VOCAB / "small-llama.tokenizer.json", bpe_of_spm(train_small_spm(prefix=True)))


def cases():
    bpe, llama = "tests/data/vocab/small-bpe.tokenizer.json", "tests/data/vocab/small-llama.tokenizer.json"
    yield hugging_face("longneedle", "models/longneedle/tokenizer.json")
    for pre in NAMED:
        yield hugging_face(f"small, {pre}", bpe, pre=pre, round_trip=pre != "qwen2")
    for name, patch in OTHER.items():
        yield hugging_face(f"small, {name}", bpe, patch, round_trip=name not in ("prefix space", "removed", "replace"))
    for name, patch in LLAMA_LIKE.items():
        # Metaspace adds no space to text that has one in front, and decoding drops it all the same.
        yield hugging_face(f"small, {name}", llama, patch, round_trip=name in ("llama2", "gemma"))
    for name in ("small-plain", "small-prefix"):
        yield sentence_piece(name, f"tests/data/vocab/{name}.spm.json", (VOCAB / f"{name}.model").read_bytes())
    for name in ("gpt-2", "llama-bpe", "qwen2", "tekken"):
        fixture = f"fixture:{name}.tokenizer.json"
        yield hugging_face(f"{name}, file", fixture, round_trip=name != "qwen2")
        yield hugging_face(f"{name}, name", fixture, pre=name, round_trip=name != "qwen2")
    for name, model in (("mistral-v1", "tokenizer.model.v1"), ("mistral-v3", "mistral_instruct_tokenizer_240323.model.v3")):
        yield sentence_piece(name, f"fixture:{name}.spm.json", model_in_wheel(model))


def main():
    if sys.argv[1:] not in ([], ["train"]):
        sys.exit(__doc__)
    for package, version in (("tokenizers", "0.23.3"), ("sentencepiece", "0.2.3")):
        if importlib.metadata.version(package) != version:
            sys.exit(f"{package} is {importlib.metadata.version(package)}; expected values are made with {version}")
    if sys.argv[1:] == ["train"]:
        train()
    made = [json.dumps(case, ensure_ascii=True, separators=(",", ":")) for case in cases()]
    made = [re.sub(r'("slices":|"short":)', r"\n  \1", case) for case in made]
    (TOP / "tests/golden/tokenizer.json").write_text('{"cases":[\n' + ",\n".join(made) + "\n]}\n")


if __name__ == "__main__":
    main()
