#!/usr/bin/env python3
"""Writes corpus/hub_listing: answers of a model hub, indices of weights and names, whole and damaged in instructive places.

Run from anywhere. Inputs that a fuzzer found are added to the folder by hand, named after what broke.
"""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "hub_listing"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def listing(*files):
    return json.dumps({"id": "org/name", "sha": COMMIT, "siblings": list(files)}).encode()


def file(name, **more):
    return {"rfilename": name, "size": 7, "blobId": COMMIT, **more}


LFS = {"lfs": {"sha256": "a" * 64, "size": 5_000_000_000, "pointerSize": 134}}

INPUTS = {
    "safetensors": listing(file("config.json"), file("tokenizer.json"), file("model.safetensors", **LFS)),
    "shards": listing(file("config.json"), file("model.safetensors.index.json"), file("m-1.safetensors", **LFS)),
    "gguf": listing(file("m-Q4_K_M.gguf", **LFS), file("sub/m-Q8_0.gguf"), file("m-Q2_K-00001-of-00002.gguf")),
    "pickled": listing(file("config.json"), file("pytorch_model.bin")),
    "names_only": listing({"rfilename": "config.json"}, {"rfilename": "model.safetensors"}),
    "outside": listing(file("../x"), file("/etc/passwd"), file("a\0b")),
    "sizes": listing(file("a", size=-1), file("b", size=1e300), file("c", size=2**63), file("d", lfs=[])),
    "no_files": json.dumps({"sha": COMMIT}).encode(),
    "bad_commit": json.dumps({"sha": "../../x", "siblings": []}).encode(),
    "index": json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}).encode(),
    "index_outside": json.dumps({"weight_map": {"a": "../m.safetensors"}}).encode(),
    "html": b"<html><body>Log in</body></html>",
    "deep": b'{"sha":' + b"[" * 2000,
    "name": b"hf:org/name@refs/pr/1:sub/m-Q4_K_M.gguf",
    "name_outside": b"hf:org/name@../../x:../y",
}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, data in INPUTS.items():
        (FOLDER / name).write_bytes(data)


if __name__ == "__main__":
    main()
