"""A running server for tests, and a little HTTP."""

import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time

TOP = pathlib.Path(__file__).resolve().parent.parent.parent
BINARY = os.environ.get("SPILLWAY_BINARY", str(TOP / "build/release/spillway"))
LONGNEEDLE = str(TOP / "models/longneedle/longneedle-q8_0.gguf")


def smollm2():
    """The chat model's file, fetched if need be; None where that is not possible."""
    done = subprocess.run([BINARY, "inspect", "smollm2"], capture_output=True, text=True)
    return "smollm2" if done.returncode == 0 else None


def tiny_model(folder, max_model_len=1024):
    """Writes the config.json of a model that costs next to nothing, and a tokenizer, into `folder`: for tests of the server and not
    of the model. Returns the arguments to serve it with."""
    tokenizer = TOP / "models/longneedle"
    config = json.loads((tokenizer / "config.json").read_text())
    config.update(hidden_size=64, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32, intermediate_size=128)
    (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
    shutil.copy(tokenizer / "tokenizer.json", folder)
    return [str(folder), "--load-format", "dummy", "--device", "cpu", "--max-model-len", str(max_model_len)]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    """`with Server(model, "--option", "value") as server:` runs until the end of the block and must then exit with 0."""

    def __init__(self, model, *options, port=None):
        self.port = port or free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = tempfile.TemporaryFile("w+")
        models = [] if model is None else [model]  # None: a config file among the options names it
        self.process = subprocess.Popen([BINARY, "serve", *models, "--port", str(self.port), *options],
                                        stdout=self.log, stderr=subprocess.STDOUT)

    def __enter__(self):
        for _ in range(1200):
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended with {self.process.returncode}:\n{self.output()}")
            try:
                if self.request("GET", "/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.05)
        self.process.kill()
        raise AssertionError(f"the server was not ready after 60 s:\n{self.output()}")

    def __exit__(self, kind, value, trace):
        self.process.send_signal(signal.SIGTERM)
        try:
            status = self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = "no end after SIGTERM"
        output = self.output()
        self.log.close()
        if kind is None and status != 0:
            raise AssertionError(f"the server's end: {status}\n{output}")
        if kind is not None:
            print(output)

    def output(self):
        self.log.seek(0)
        return self.log.read()[-8000:]

    def request(self, method, path, body=None, headers=None):
        """(status, headers, text)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        payload = json.dumps(body) if isinstance(body, (dict, list)) else body
        try:
            connection.request(method, path, payload, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, dict(response.getheaders()), response.read().decode()
        finally:
            connection.close()

    def metric(self, name):
        """The sum of a metric's samples."""
        text = self.request("GET", "/metrics")[2]
        values = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([-+0-9.eE]+)$", text, re.M)
        if not values:
            raise AssertionError(f"no metric {name}")
        return sum(float(value) for value in values)

    def wait_idle(self):
        """Returns once nothing runs or waits; clients that left must have been noticed by then."""
        for _ in range(200):
            if self.metric("vllm:num_requests_running") + self.metric("vllm:num_requests_waiting") == 0:
                return
            time.sleep(0.05)
        raise AssertionError("requests still run 10 s after their clients left")
