#!/usr/bin/env python3
"""Models by name: `spillway inspect org/name` against a stub of the Hugging Face Hub, which fails and lies as servers do. What is
fetched lies where huggingface_hub puts it, each finds the other's, and nothing is written elsewhere."""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import unittest

import hub_stub
import serving

try:
    import huggingface_hub
except ImportError:
    huggingface_hub = None

COMMIT = "0123456789abcdef0123456789abcdef01234567"
NEXT_COMMIT = "89abcdef0123456789abcdef0123456789abcdef"


def safetensors(tensors, seed):
    """One file: small random BF16 weights of these shapes, ones where there is one dimension."""
    draw = random.Random(seed)
    header, body = {}, b""
    for name, shape in tensors.items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        low = draw.randbytes(2 * count)
        data = bytes(low[i] if i % 2 == 0 else 0x3C | (low[i] & 0x80) for i in range(2 * count)) if len(shape) > 1 else b"\x80\x3f" * count
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def tiny_repo(sharded=False):
    """The files of a model of two layers as its repository has them, with what no model needs among them."""
    with tempfile.TemporaryDirectory() as folder:
        serving.tiny_model(folder)
        files = {path.name: path.read_bytes() for path in pathlib.Path(folder).iterdir()}
    layers = {f"model.layers.{i}.{name}.weight": shape for i in range(2) for name, shape in {
        "input_layernorm": (64,), "post_attention_layernorm": (64,), "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64),
        "self_attn.v_proj": (32, 64), "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64),
        "mlp.down_proj": (64, 128)}.items()}
    outside = {"model.embed_tokens.weight": (8192, 64), "model.norm.weight": (64,)}
    files.update({"generation_config.json": b"{}", "README.md": b"about", ".gitattributes": b"x", "pytorch_model.bin": b"pickled",
                  "original/config.json": b"{}", "onnx/model.onnx": b"x"})
    if sharded:
        first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
        files[first], files[second] = safetensors(outside, 1), safetensors(layers, 2)
        index = {"weight_map": {**{name: first for name in outside}, **{name: second for name in layers}}}
        files["model.safetensors.index.json"] = json.dumps(index).encode()
        files["consolidated.safetensors"] = b"the same once more"
    else:
        files["model.safetensors"] = safetensors({**outside, **layers}, 1)
    return hub_stub.Repo(files, COMMIT)


NEEDED = {"config.json", "generation_config.json", "tokenizer.json", "model.safetensors"}


def tree(folder):
    """{path: symlink target or contents}, without locks and what is the writer's own."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = "-> " + os.readlink(path)
        elif path.is_file() and not name.startswith(".locks/") and "/trees/" not in name and name != "CACHEDIR.TAG":
            found[name] = path.read_bytes()
    return found


class ModelNames(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.home = pathlib.Path(folder.name) / "home"
        self.cache = self.home / "hub"
        self.repo = tiny_repo()
        self.stub = hub_stub.Stub({"org/tiny": self.repo})
        self.stub.__enter__()
        self.addCleanup(self.stub.__exit__)

    def environment(self, **more):
        env = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING")) and name != "TRANSFORMERS_OFFLINE"}
        return {**env, "HF_HOME": str(self.home), "HF_ENDPOINT": self.stub.url, "NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1", **more}

    def run_spillway(self, *arguments, **env):
        return subprocess.run([serving.BINARY, *arguments], capture_output=True, text=True, env=self.environment(**env), timeout=300)

    def fetch(self, name="org/tiny", **env):
        done = self.run_spillway("inspect", name, **env)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("llama", done.stdout)
        return done

    def refused(self, name="org/tiny", *, words, status=1, **env):
        """The last line says why; what went before are tries. Status 2: it will be so the next time, too."""
        done = self.run_spillway("inspect", name, **env)
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        last = done.stderr.strip().splitlines()[-1]
        for word in words:
            self.assertIn(word, last)
        return last

    def parts(self):
        return list(self.cache.glob("models--*/blobs/*.incomplete"))

    def test_a_model_is_fetched_once_and_only_what_it_needs(self):
        done = self.fetch()
        self.assertIn("fetching org/tiny", done.stderr)
        snapshot = self.cache / "models--org--tiny/snapshots" / COMMIT
        self.assertEqual({path.name for path in snapshot.iterdir()}, NEEDED)
        for path in snapshot.iterdir():
            self.assertEqual(path.read_bytes(), self.repo.files[path.name])
        before = len(self.stub.log)
        self.fetch()
        self.assertEqual([record["path"] for record in self.stub.log[before:]], ["/api/models/org/tiny/revision/main?blobs=true"])
        self.fetch(f"hf:org/tiny@{COMMIT}")
        self.assertEqual(len(self.stub.log), before + 1, "a commit that is whole asks nobody")
        self.assertEqual(self.parts(), [])

    def test_a_model_in_shards(self):
        self.stub.repos["org/tiny"] = self.repo = tiny_repo(sharded=True)
        self.fetch()
        names = {path.name for path in (self.cache / "models--org--tiny/snapshots" / COMMIT).iterdir()}
        self.assertIn("model-00002-of-00002.safetensors", names)
        self.assertNotIn("consolidated.safetensors", names)
        self.fetch(HF_HUB_OFFLINE="1")

    def test_a_broken_connection_goes_on_where_it_broke(self):
        self.stub.faults["model.safetensors"] = [{"break": 300_000}, {"break": 1}, {"break": 200_000}]
        self.fetch()
        self.assertEqual(self.stub.sent(self.repo, "model.safetensors"), len(self.repo.files["model.safetensors"]))
        asked = self.stub.asked("content", "GET")
        self.assertEqual([record["headers"].get("range") for record in asked], [None, "bytes=300000-", "bytes=300001-", "bytes=500001-"])
        self.assertEqual(asked[1]["headers"]["if-range"], '"another tag"')

    def test_the_next_process_goes_on_where_one_was_interrupted(self):
        self.stub.faults["model.safetensors"] = [{"break": 400_000, "stall": True}]
        process = subprocess.Popen([serving.BINARY, "inspect", "org/tiny"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                   env=self.environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(self.stub.stalled.wait(60))
        while not self.parts() or self.parts()[0].stat().st_size < 400_000:
            self.assertIsNone(process.poll())
        process.send_signal(signal.SIGINT)
        self.assertNotEqual(process.wait(60), 0)
        self.stub.released.set()
        self.assertEqual(self.parts()[0].stat().st_size, 400_000)
        self.fetch()
        self.assertEqual(self.stub.sent(self.repo, "model.safetensors"), len(self.repo.files["model.safetensors"]))

    def test_a_server_that_ignores_ranges_starts_over(self):
        self.stub.faults["model.safetensors"] = [{"break": 300_000}, {"ignore_range": True}]
        self.fetch()
        self.stub.faults["config.json"] = [{"break": 10}, {"ignore_range": True, "break": 5}, {"range": "bytes 0-1/2"}]
        self.repo.files["config.json"] += b" \n"
        self.repo.commit = NEXT_COMMIT
        self.fetch()

    def test_what_fails_for_a_while_is_tried_again(self):
        self.stub.faults = {"api": [{"status": 500}, {"status": 429}], "config.json": [{"status": 503}]}
        done = self.fetch()
        self.assertIn("answered 500; trying again", done.stderr)
        self.stub.faults["api"] = [{"status": 502, "always": True}]
        self.home = self.home.parent / "other"
        self.refused(words=["answered 502"])

    def test_a_wrong_checksum_keeps_nothing(self):
        for name in ("tokenizer.json", "model.safetensors"):
            data = bytearray(self.repo.files[name])
            data[-2] ^= 1
            self.stub.faults[name] = [{"data": bytes(data)}]
            self.refused(words=[name, "expected checksum", "removed"])
            self.assertEqual(self.parts(), [])
        done = self.fetch()
        self.assertIn("model         org/tiny\n", done.stdout)

    def test_who_may_not_have_it_learns_what_to_do(self):
        self.repo.gated = True
        self.refused(words=["accept them at", f"{self.stub.url}/org/tiny", "set HF_TOKEN"], status=2)
        self.refused(words=["accept them at", "whose token"], status=2, HF_TOKEN="hf_other")
        self.fetch(HF_TOKEN=hub_stub.GOOD_TOKEN)

    def test_what_is_not_there_is_named(self):
        self.refused("org/none", words=["no file or folder 'org/none' here", "private or not at", "HF_TOKEN"], status=2)
        self.refused("hf:org/none", words=["valid"], status=2, HF_TOKEN="hf_bad")
        self.refused("org/tiny@other", words=["no revision 'other'"])
        self.refused("org/tiny:Q4_0", words=["no GGUF file for 'Q4_0'", "there are none"])
        self.stub.repos["org/empty"] = hub_stub.Repo({"README.md": b"x"})
        self.refused("org/empty", words=["expected config.json and model.safetensors"])
        self.refused("models/typo.gguf", words=["models/typo.gguf", "neither a file"])
        self.assertFalse(self.stub.asked(end="typo.gguf"))

    def test_offline_serves_what_is_whole(self):
        self.refused(words=["HF_HUB_OFFLINE is set", "never fetched"], HF_HUB_OFFLINE="1")
        self.fetch()
        before = len(self.stub.log)
        self.fetch(HF_HUB_OFFLINE="1")
        self.assertEqual(len(self.stub.log), before)
        (self.cache / "models--org--tiny/snapshots" / COMMIT / "model.safetensors").unlink()
        self.refused(words=["model.safetensors is missing"], HF_HUB_OFFLINE="1")

    def test_without_the_network_the_cache_serves_and_says_so(self):
        gone = f"http://127.0.0.1:{serving.free_port()}"
        self.refused(words=["127.0.0.1"], HF_ENDPOINT=gone)
        self.fetch()
        done = self.fetch(HF_ENDPOINT=gone)
        self.assertIn("using org/tiny as it was fetched before", done.stderr)

    def test_a_branch_that_moved_is_fetched_again_but_for_what_is_the_same(self):
        self.fetch()
        self.repo.commit = NEXT_COMMIT
        self.repo.files["generation_config.json"] = b'{"temperature": 1}'
        before = len(self.stub.log)
        self.fetch()
        self.assertEqual([record["path"] for record in self.stub.log[before + 1:]],
                         [f"/org/tiny/resolve/{NEXT_COMMIT}/generation_config.json"])
        self.assertEqual((self.cache / "models--org--tiny/refs/main").read_text(), NEXT_COMMIT)

    def test_the_token_goes_to_the_endpoint_alone(self):
        self.home.mkdir()
        (self.home / "token").write_text("hf_from_file\n")
        self.fetch()
        for record in self.stub.log:
            expected = "Bearer hf_from_file" if record["server"] == "hub" else None
            self.assertEqual(record["headers"].get("authorization"), expected, record["path"])
        self.assertTrue(self.stub.asked("content"))
        self.home = self.home.parent / "other"
        self.stub.log.clear()
        self.fetch(HF_TOKEN="hf_first", HUGGING_FACE_HUB_TOKEN="hf_second")
        self.assertEqual({record["headers"].get("authorization") for record in self.stub.asked("hub")}, {"Bearer hf_first"})

    def test_a_listing_without_checksums_is_completed_by_the_files_headers(self):
        self.repo.blobs = False
        self.fetch()
        self.assertEqual(len(self.stub.asked("hub", "HEAD")), len(NEEDED))
        self.assertFalse(self.stub.asked("content", "HEAD"))
        snapshot = self.cache / "models--org--tiny/snapshots" / COMMIT
        self.assertEqual(os.readlink(snapshot / "model.safetensors"), f"../../blobs/{self.repo.etag('model.safetensors')}")

    def test_gguf_files(self):
        gguf = pathlib.Path(serving.LONGNEEDLE).read_bytes()
        self.stub.repos["org/tiny-GGUF"] = hub_stub.Repo({"tiny-Q8_0.gguf": gguf, "deep/tiny-Q4_K_M.gguf": gguf[:1000], "README.md": b"x"})
        self.refused("org/tiny-GGUF", words=["name one, as in org/tiny-GGUF:tiny-Q8_0.gguf", "deep/tiny-Q4_K_M.gguf (1000 B)", "27.9 MiB"])
        self.assertFalse(self.cache.exists())
        self.fetch("hf:org/tiny-GGUF:tiny-Q8_0.gguf")
        self.fetch("org/tiny-GGUF:q8_0")
        self.fetch("org/tiny-GGUF:Q8_0", HF_HUB_OFFLINE="1")
        self.assertEqual(len(self.stub.asked("content")), 1)
        self.refused("org/tiny-GGUF:deep/tiny-Q4_K_M.gguf", words=["tiny-Q4_K_M.gguf"], status=2)

    def test_processes_take_turns(self):
        self.stub.faults["model.safetensors"] = [{"break": 1000}, {"break": 1000}]
        processes = [subprocess.Popen([serving.BINARY, "inspect", "org/tiny"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                                      env=self.environment()) for _ in range(4)]
        for process in processes:
            self.assertEqual(process.wait(120), 0, process.stderr.read())
            process.stderr.close()
        for name in NEEDED:
            self.assertEqual(self.stub.sent(self.repo, name), len(self.repo.files[name]), name)

    def test_hostile_servers(self):
        outside = set(self.home.parent.iterdir())
        for path in ("../../../escaped.json", "/etc/escaped.json", "a/../../../escaped.json", "tokenizer\0.json", "..\\tokenizer.json"):
            self.repo.said["README.md"] = {"rfilename": path}
            self.refused(words=["expected a path inside the repository", "nothing was fetched"])
        self.repo.said.clear()
        for file, size, words in (("model.safetensors", 1 << 62, ["model.safetensors: expected at most 32.0 TiB"]),
                                  ("model.safetensors", 1 << 44, ["no space for org/tiny", "HF_HUB_CACHE"]),
                                  ("tokenizer.json", 1 << 40, ["tokenizer.json: expected at most"])):
            self.repo.said = {file: {"size": size, "lfs": None, "blobId": hub_stub.git_blob_id(b"")}}
            self.refused(words=words)
        self.repo.said = {}
        for body, words in ((b"<html>log in</html>", ["expected JSON", "<html>"]), (b"[" * 1_000_000, ["expected JSON"]),
                            (b" " * (17 << 20), ["expected at most 16.0 MiB"]), (b"{}", ["'sha'"]), (b"", ["expected JSON"])):
            self.stub.faults["api"] = [{"body": body}]
            self.refused(words=words)
        for target, words in ((f"{self.stub.url}/api/models/org/tiny/revision/main", ["more than 10 redirects"]),
                              ("file:///etc/passwd", ["redirects to"]), ("ftp://127.0.0.1/x", ["redirects to"])):
            self.stub.faults["api"] = [{"redirect": target, "always": True}]
            self.refused(words=words)
        self.stub.faults = {"config.json": [{"data": b"<html>log in</html>"}]}
        self.refused(words=["config.json: expected", "bytes, found 19"])
        self.stub.faults = {"config.json": [{"data": b"x" * 100_000, "no_length": True}]}
        self.refused(words=["found more; nothing was kept"])
        self.stub.faults = {"config.json": [{"break": 0, "always": True}]}
        self.refused(words=["bytes have come and are kept"])
        self.assertLessEqual(set(self.home.parent.iterdir()) - outside, {self.home})
        self.assertEqual([path.name for path in self.home.iterdir()], ["hub"])
        self.stub.faults = {}
        self.fetch()

    @unittest.skipIf(huggingface_hub is None, "needs huggingface_hub (tests/e2e/requirements.txt)")
    def test_the_cache_is_huggingface_hubs(self):
        self.stub.repos["org/tiny"] = self.repo = tiny_repo(sharded=True)
        self.fetch()
        ours = tree(self.cache)
        theirs_home = self.home.parent / "theirs"
        program = ("import huggingface_hub, sys\n"
                   "print(huggingface_hub.snapshot_download('org/tiny', allow_patterns=sys.argv[1].split(','), "
                   "local_files_only=sys.argv[2] == 'local'))")
        names = sorted(path.name for path in (self.cache / "models--org--tiny/snapshots" / COMMIT).iterdir())

        def snapshot_download(where, **env):
            done = subprocess.run([sys.executable, "-c", program, ",".join(names), where], capture_output=True, text=True,
                                  env=self.environment(HF_HUB_DISABLE_XET="1", HF_HUB_DISABLE_UPDATE_CHECK="1", **env))
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout.strip()

        snapshot_download("remote", HF_HOME=str(theirs_home))
        self.assertEqual(ours, tree(theirs_home / "hub"))
        before = len(self.stub.log)
        self.assertEqual(snapshot_download("local"), str((self.cache / "models--org--tiny/snapshots" / COMMIT).resolve()))
        self.home = theirs_home
        self.fetch(HF_HUB_OFFLINE="1")
        self.assertEqual(len(self.stub.log), before)

    def test_a_name_is_served(self):
        os.environ.update(self.environment())
        self.addCleanup(lambda: [os.environ.pop(name) for name in ("HF_HOME", "HF_ENDPOINT", "NO_PROXY", "no_proxy")])
        with serving.Server("org/tiny", "--device", "cpu", "--max-model-len", "512") as server:
            self.assertEqual(json.loads(server.request("GET", "/v1/models")[2])["data"][0]["id"], "org/tiny")
            status, _, text = server.request("POST", "/v1/completions", {"model": "org/tiny", "prompt": "In the beginning", "max_tokens": 4})
            self.assertEqual(status, 200, text)
        done = self.run_spillway("bench", "org/tiny", "--load-format", "dummy", "--device", "cpu", "-p", "16", "-n", "0",
                                 HF_HOME=str(self.home.parent / "other"))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertFalse(list((self.home.parent / "other").rglob("*.safetensors")), "made-up weights need none")

    def test_a_signal_ends_a_server_that_fetches(self):
        self.stub.faults["model.safetensors"] = [{"break": 1000, "stall": True}]
        process = subprocess.Popen([serving.BINARY, "serve", "org/tiny", "--port", str(serving.free_port())], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL, env=self.environment())
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        self.assertTrue(self.stub.stalled.wait(60))
        process.send_signal(signal.SIGTERM)
        self.assertEqual(process.wait(60), 0)
        self.assertEqual(len(self.parts()), 1)


if __name__ == "__main__":
    unittest.main()
