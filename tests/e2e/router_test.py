#!/usr/bin/env python3
"""Two servers behind routers that people run: requests go where their prefix is cached, and a server may be killed, drained, restarted.

Each router gets two servers of a tiny model as static back ends; which of them served is the model's name in the answer. Every request
has to end. What a router does that no server can change is named where the test allows for it.
"""

import http.client
import json
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import serving

SCRIPTS = pathlib.Path(sys.executable).parent
PREFIX_TOKENS = 3000
WORDS = "the cat sat on a mat and looked at all of the birds in one old tree while rain fell over that quiet town".split()
# What docs/operations.md recommends. /ready is asked each second, one failed check takes a server out and one good one brings it
# back. Until then a request that fails is tried again, and by default goes to the same server each time, since that is where its
# prefix is: two failures open the circuit, and the third try goes to the other server.
CARE = ["--health-check-endpoint", "/ready", "--health-check-interval-secs", "1", "--health-failure-threshold", "1",
        "--health-success-threshold", "1", "--worker-startup-check-interval", "1",
        "--cb-failure-threshold", "2", "--cb-success-threshold", "1", "--cb-timeout-duration-secs", "2"]
SERVE = ["--preset", "dense", "--device-memory", "128MiB", "--threads", "1", "--drain-delay", "2"]


def text_of(seed, words):
    """A text that no other seed's begins like, about a token a word."""
    state, out = seed * 2654435761 % 2**32, [f"{seed}:"]
    for _ in range(words):
        state = (state * 1664525 + 1013904223) % 2**32
        out.append(WORDS[(state >> 16) % len(WORDS)])
    return " ".join(out)


def parsed(text):
    """JSON, or the text itself where a router speaks for itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def ask(port, body, path="/v1/completions", headers=None):
    """(status, headers, JSON)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request("POST", path, json.dumps({"model": "tiny", **body}),
                           {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        return response.status, {name.lower(): value for name, value in response.getheaders()}, parsed(response.read().decode())
    finally:
        connection.close()


def server_of(answer):
    """The index of the server that gave it."""
    return int(answer["model"].removeprefix("server-"))


class Stream(threading.Thread):
    """A streamed completion: what came, when it ended, whether it ended as it should."""

    def __init__(self, port, prompt, tokens):
        super().__init__(daemon=True)
        self.port, self.prompt, self.tokens = port, prompt, tokens
        self.begun = threading.Event()
        self.status, self.headers, self.lines, self.error, self.ended = None, {}, [], None, None
        self.start()

    def run(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("POST", "/v1/completions", json.dumps({
                "model": "tiny", "prompt": self.prompt, "max_tokens": self.tokens, "ignore_eos": True, "temperature": 0, "stream": True,
                "stream_options": {"include_usage": True}}), {"Content-Type": "application/json", "X-Request-Id": f"stream-{id(self)}"})
            response = connection.getresponse()
            self.status, self.headers = response.status, {name.lower(): value for name, value in response.getheaders()}
            rest = b""
            while piece := response.read1(65536):  # unlike readline(), it tells a broken answer from one that ended
                *lines, rest = (rest + piece).split(b"\n")
                self.lines += [line.decode() for line in lines if line]
                if self.lines:
                    self.begun.set()
        except (OSError, http.client.HTTPException) as error:
            self.error = error
        finally:
            self.ended = time.monotonic()
            self.begun.set()
            connection.close()

    def server(self):
        return server_of(json.loads(self.lines[0].removeprefix("data: ")))

    def wait_begun(self):
        assert self.begun.wait(60), "a stream did not begin"
        assert self.ended is None or self.whole(), f"a stream ended early: {self.status} {self.error} {self.lines[-3:]}"

    def whole(self):
        """Whether all of it came: its tokens as the usage has them, then [DONE]."""
        self.join(120)
        assert not self.is_alive(), "a stream hangs"
        if self.error or self.status != 200 or self.lines[-1:] != ["data: [DONE]"]:
            return False
        return json.loads(self.lines[-2].removeprefix("data: "))["usage"]["completion_tokens"] == self.tokens


class Router:
    """A router in front of `servers`."""

    def __init__(self, command, servers):
        self.port, self.metrics_port = serving.free_port(), serving.free_port()
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [SCRIPTS / command[0], *command[1:], "--host", "127.0.0.1", "--port", str(self.port), "--prometheus-port",
             str(self.metrics_port), *CARE, "--worker-urls", *(server.url for server in servers)],
            stdout=self.log, stderr=subprocess.STDOUT)

    def healthy(self):
        """How many servers it would send requests to."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", "/readiness")
            return json.loads(connection.getresponse().read()).get("healthy_workers", 0)
        except (OSError, ValueError, http.client.HTTPException):
            return 0
        finally:
            connection.close()

    def wait_healthy(self, count):
        for _ in range(600):
            if self.healthy() == count:
                return
            time.sleep(0.1)
        raise AssertionError(f"the router has {self.healthy()} servers and not {count} after 60 s:\n{self.output()}")

    def output(self):
        self.log.seek(0)
        return self.log.read()[-4000:]

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.log.close()


class Routed:
    """What each router must do; its command is the subclass's."""

    @classmethod
    def setUpClass(cls):
        if not (SCRIPTS / cls.command[0]).exists():
            raise unittest.SkipTest(f"needs {cls.command[0]} of tests/e2e/requirements.txt")
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = serving.tiny_model(cls.folder.name, 16384)
        cls.servers = [cls.start(0), cls.start(1)]
        cls.router = Router([*cls.command, *cls.event_sources()], cls.servers)
        cls.addClassCleanup(cls.router.stop)
        for server in cls.servers:
            server.__enter__()

    @classmethod
    def start(cls, index, port=None):
        server = serving.Server(*cls.model, *SERVE, *cls.event_options(index), "--served-model-name", f"server-{index}", "tiny", port=port)
        for cleanup in (server.log.close, server.process.wait, server.process.kill):  # the last runs first
            cls.addClassCleanup(cleanup)
        return server

    @classmethod
    def event_options(cls, index):
        return []

    @classmethod
    def event_sources(cls):
        return []

    def setUp(self):
        self.router.wait_healthy(2)

    def ask(self, prompt):
        """The answer to a completion that has to succeed, and which server it is from."""
        status, _, answer = ask(self.router.port, {"prompt": prompt, "max_tokens": 4, "ignore_eos": True})
        self.assertEqual(status, 200, answer)
        return answer, server_of(answer)

    def place(self, seed, tokens=500):
        """Two prefixes, each cached by the server with its index."""
        seen = []
        for attempt in range(64):
            # No server knows them, so each goes to the one that has less to do, or that was sent less so far.
            pair = [Stream(self.router.port, text_of(1000 * seed + attempt, tokens), 1000)]
            pair[0].wait_begun()
            pair.append(Stream(self.router.port, text_of(1000 * seed + 500 + attempt, tokens), 10))
            self.assertTrue(all(stream.whole() for stream in pair))
            homes = {stream.server(): stream.prompt for stream in pair}
            if len(homes) == 2:
                return [homes[0], homes[1]]
            seen += homes
        self.fail(f"the router sends everything to one server: {seen}")

    def streams(self, prefixes, tokens):
        """Two streams of each prefix, each of so many tokens, all of them running."""
        streams = [[Stream(self.router.port, f"{prefix} Stream {index}.", count) for index in range(2)]
                   for prefix, count in zip(prefixes, tokens)]
        for index in range(2):
            for stream in streams[index]:
                stream.wait_begun()
                self.assertEqual(stream.server(), index)
        return streams

    def restart(self, index):
        """A server at the place of one that is gone; the router gives it requests again."""
        self.servers[index] = self.start(index, self.servers[index].port)
        self.servers[index].__enter__()
        self.router.wait_healthy(2)
        for attempt in range(100):
            streams = [Stream(self.router.port, text_of(900_000 + 4 * attempt + stream, 20), 200) for stream in range(4)]
            self.assertTrue(all(stream.whole() for stream in streams))
            if index in [stream.server() for stream in streams]:
                return
        self.fail("the restarted server got no requests")

    def test_requests_go_where_their_prefix_is_cached(self):
        prefixes = self.place(100, PREFIX_TOKENS)
        for turn in range(3):
            for index, prefix in enumerate(prefixes):
                answer, where = self.ask(f"{prefix} Turn {turn}.")
                self.assertEqual(where, index)
                self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], PREFIX_TOKENS - 64)

    def test_answers_pass_whole(self):
        status, headers, answer = ask(self.router.port, {"prompt": "Once", "max_tokens": 3, "ignore_eos": True},
                                      headers={"X-Request-Id": "mine-1"})
        self.assertEqual((status, headers["x-request-id"], answer["usage"]["completion_tokens"]), (200, "mine-1", 3), answer)
        # Fields that a router does not know: without its salt a prompt is found where it must not be.
        cached = []
        for salt in ("one", "one", "two"):
            status, _, answer = ask(self.router.port, {"messages": [{"role": "user", "content": text_of(20, 100)}], "max_tokens": 3,
                                                       "cache_salt": salt}, "/v1/chat/completions")
            self.assertEqual(status, 200, answer)
            cached.append(answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 64)
        self.assertEqual(cached, [False, True, self.drops_fields_of_chats])
        stream = Stream(self.router.port, "Once", 20)
        self.assertTrue(stream.whole(), stream.lines)
        self.assertEqual(stream.headers["x-request-id"], f"stream-{id(stream)}")
        self.assertTrue(stream.headers["content-type"].startswith("text/event-stream"))
        # The server's own errors come as they are.
        status, _, answer = ask(self.router.port, {"prompt": "Once", "max_tokens": 20000})
        self.assertEqual((status, answer["error"]["code"]), (400, "context_length_exceeded"), answer)
        status, _, answer = ask(self.router.port, {"model": "other", "prompt": "Once"})
        self.assertEqual((status, answer["error"]["code"]), (404, "model_not_found"), answer)

    def test_the_other_serves_when_one_is_killed(self):
        prefixes = self.place(300)
        broken, running = self.streams(prefixes, (12000, 2000))
        answers = []
        body = {"prompt": f"{prefixes[0]} Whole.", "max_tokens": 3000, "ignore_eos": True}
        unbegun = threading.Thread(target=lambda: answers.append(ask(self.router.port, body)), daemon=True)
        unbegun.start()
        for _ in range(500):
            if self.servers[0].metric("vllm:num_requests_running") == 3:
                break
            time.sleep(0.01)
        killed = time.monotonic()
        self.servers[0].process.kill()
        self.servers[0].process.wait()
        for turn in range(3):
            for prefix in prefixes:
                self.assertEqual(self.ask(f"{prefix} After {turn}.")[1], 1)
        for stream in broken:
            self.assertFalse(stream.whole())
            self.assertIsNotNone(stream.error, "a broken answer looks like one that ended")
            self.assertLess(stream.ended - killed, 1)
        self.assertTrue(all(stream.whole() for stream in running))
        # An answer of which nothing had come is asked of the other server.
        unbegun.join(60)
        self.assertEqual([answer[0] for answer in answers], [200], answers)
        self.restart(0)

    def test_a_drained_server_ends_what_it_has(self):
        prefixes = self.place(500)
        streams = sum(self.streams(prefixes, (6000, 500)), [])
        drained, other = self.servers
        drained.process.send_signal(signal.SIGTERM)
        for _ in range(1000):
            if drained.request("GET", "/ready")[0] == 503:
                break
        self.assertEqual([drained.request("GET", path)[0] for path in ("/ready", "/health")], [503, 200])
        while self.router.healthy() == 2:  # requests keep coming; for --drain-delay the server takes them
            self.ask(f"{prefixes[0]} Meanwhile.")
        for turn in range(4):
            self.assertEqual(self.ask(f"{prefixes[0]} Later {turn}.")[1], 1)
        self.assertTrue(all(stream.whole() for stream in streams))
        self.assertEqual(drained.process.wait(60), 0)
        self.assertEqual(self.ask(f"{prefixes[0]} At last.")[1], 1)
        self.restart(0)


class VllmRouterCacheAware(Routed, unittest.TestCase):
    command = ["vllm-router", "--log-level", "warning", "--policy", "cache_aware"]
    drops_fields_of_chats = False


class VllmRouterKvAware(Routed, unittest.TestCase):
    """Goes by what the servers tell of their caches, not by what it sent them."""

    command = ["vllm-router", "--log-level", "warning", "--policy", "kv_aware", "--kv-event-block-size", "32", "--kv-event-model", "tiny"]
    drops_fields_of_chats = False

    @classmethod
    def setUpClass(cls):
        cls.event_ports = [(serving.free_port(), serving.free_port()) for _ in range(2)]
        super().setUpClass()

    @classmethod
    def event_options(cls, index):
        live, replay = (f"tcp://127.0.0.1:{port}" for port in cls.event_ports[index])
        return ["--page-size", "32", "--kv-events-config", json.dumps(
            {"enable_kv_cache_events": True, "publisher": "zmq", "endpoint": live, "replay_endpoint": replay})]

    @classmethod
    def event_sources(cls):
        options = []
        for server, ports in zip(cls.servers, cls.event_ports):
            for option, port in zip(("--kv-event-source", "--kv-event-replay-source"), ports):
                options += [option, f"{server.url}=tcp://127.0.0.1:{port}"]
        return options

    def hits(self):
        """Requests of which the router knew a prefix somewhere."""
        connection = http.client.HTTPConnection("127.0.0.1", self.router.metrics_port, timeout=60)
        try:
            connection.request("GET", "/metrics")
            text = connection.getresponse().read().decode()
        finally:
            connection.close()
        return sum(float(count) for count in re.findall(r'^vllm_router_kv_placement_lookups_total{result="hit"} (\S+)$', text, re.M))

    def test_what_a_server_computed_for_others_is_found(self):
        prefixes = [text_of(700 + index, 500) for index in range(6)]
        for index in (0, 1):
            # The last prompt tells that the events of those before it have come, too.
            last = text_of(800 + index, 100)
            for prompt in (*prefixes[index::2], last):
                self.assertEqual(ask(self.servers[index].port, {"prompt": prompt, "max_tokens": 1})[0], 200)
            before = self.hits()
            for _ in range(500):
                self.ask(last)
                if self.hits() > before:
                    break
            else:
                self.fail("the router does not know what a server has told")
        for index, prefix in enumerate(prefixes):
            answer, where = self.ask(f"{prefix} And on.")
            self.assertEqual(where, index % 2)
            self.assertGreater(answer["usage"]["prompt_tokens_details"]["cached_tokens"], 500 - 64)


class SglangRouterCacheAware(Routed, unittest.TestCase):
    command = ["sglang-router", "launch", "--log-level", "warn", "--policy", "cache_aware"]
    drops_fields_of_chats = True  # docs/operations.md warns of it


if __name__ == "__main__":
    unittest.main()
