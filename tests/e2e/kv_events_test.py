"""KV-cache events over ZeroMQ, as a router reads them.

A subscriber builds its index from messages alone, while small pools evict and the tiers move blocks. At the end the prompts are sent
again, one at a time: what the index says of each must be what the server finds cached. Also: subscribers that come late, that never
read, that missed more than is kept; salts; a reset; a restart with a disk; what cannot be bound.
"""

import contextlib
import json
import random
import subprocess
import tempfile
import threading
import time
import unittest

import msgpack
import zmq

import serving

PAGE = 32
END = 2**64 - 1
TOPIC = "kv@test"


def config(ports, **fields):
    return ["--kv-events-config", json.dumps({
        "enable_kv_cache_events": True, "publisher": "zmq", "endpoint": f"tcp://127.0.0.1:{ports[0]}",
        "replay_endpoint": f"tcp://127.0.0.1:{ports[1]}", "topic": TOPIC, **fields})]


class Index:
    """What the messages say: of each block its tokens, what it stands on, and where it is."""

    def __init__(self):
        self.media, self.blocks, self.children = {}, {}, {}
        self.seen = {"BlockStored": 0, "BlockRemoved": 0, "AllBlocksCleared": 0}
        self.told = set()  # media that were ever heard of

    def apply(self, event):
        if isinstance(event, list):  # the array format
            names = {"BlockStored": ["block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
                                     "extra_keys"], "BlockRemoved": ["block_hashes", "medium"], "AllBlocksCleared": []}[event[0]]
            event = {"type": event[0], **dict(zip(names, event[1:]))}
        self.seen[event["type"]] += 1
        if event["type"] == "AllBlocksCleared":
            self.media, self.blocks, self.children = {}, {}, {}
        elif event["type"] == "BlockRemoved":
            for block in event["block_hashes"]:
                self.media[block].remove(event["medium"])
                if not self.media[block]:
                    del self.media[block]
                    parent, salt, tokens = self.blocks.pop(block)
                    del self.children[parent, salt, tokens]
        else:
            self.store(event)

    def store(self, event):
        size, parent = event["block_size"], event["parent_block_hash"]
        assert len(event["token_ids"]) == size * len(event["block_hashes"]), event
        for i, block in enumerate(event["block_hashes"]):
            extra = (event.get("extra_keys") or [None] * (i + 1))[i]
            tokens = tuple(event["token_ids"][i * size:(i + 1) * size])
            media = self.media.setdefault(block, set())
            assert event["medium"] not in media, f"{block} is stored twice in {event['medium']}"
            media.add(event["medium"])
            self.told.add(event["medium"])
            if block not in self.blocks:
                key = parent, extra[0] if extra else None, tokens
                self.blocks[block] = key
                self.children[key] = block
            parent = block

    def cached(self, tokens, salt=None):
        """Whole blocks at the beginning of these tokens that are somewhere."""
        parent, count = None, 0
        for at in range(0, len(tokens) - PAGE + 1, PAGE):
            parent = self.children.get((parent, salt if at == 0 else None, tuple(tokens[at:at + PAGE])))
            if parent is None:
                break
            count += 1
        return count

    def content(self):
        return {block: (self.blocks[block], frozenset(media)) for block, media in self.media.items()}


class Subscriber:
    """Applies messages in order. A gap is filled by replay; what is not kept any more is told again behind an AllBlocksCleared."""

    def __init__(self, ports, read=True):
        self.context = zmq.Context()
        self.sub = self.context.socket(zmq.SUB)
        self.sub.setsockopt(zmq.SUBSCRIBE, TOPIC.encode())
        if not read:
            self.sub.setsockopt(zmq.RCVHWM, 1)
        self.sub.connect(f"tcp://127.0.0.1:{ports[0]}")
        self.replay_endpoint = f"tcp://127.0.0.1:{ports[1]}"
        self.index, self.next, self.replays, self.lost = Index(), 0, 0, False

    def close(self):
        self.context.destroy(linger=0)

    def take(self, number, payload):
        if number < self.next:
            return
        seconds, events, rank = msgpack.unpackb(payload, strict_map_key=False)
        assert isinstance(seconds, float) and rank == 0 and events
        self.lost |= number > self.next
        self.next = number + 1
        if self.lost and "AllBlocksCleared" not in (events[0] if isinstance(events[0], list) else events[0]["type"]):
            return
        self.lost = False
        for event in events:
            self.index.apply(event)

    def replay(self):
        self.replays += 1
        request = self.context.socket(zmq.DEALER)
        request.setsockopt(zmq.RCVTIMEO, 20_000)
        request.connect(self.replay_endpoint)
        request.send_multipart([b"", self.next.to_bytes(8, "big")])
        while True:
            empty, topic, number, payload = request.recv_multipart()
            number = int.from_bytes(number, "big")
            if number == END:
                assert (empty, topic, payload) == (b"", b"", b"")
                return request.close(linger=0)
            assert topic == TOPIC.encode()
            self.take(number, payload)

    def receive(self, wait_ms=0):
        """Applies a message if one comes; whether one did."""
        if not self.sub.poll(wait_ms):
            return False
        _, number, payload = self.sub.recv_multipart()
        number = int.from_bytes(number, "big")
        if number > self.next:
            self.replay()
        self.take(number, payload)
        return True

    def settle(self, server):
        """The index, once all that the server has told is in it and the server has nothing more to tell."""
        quiet = 0
        deadline = time.monotonic() + 60
        while quiet < 4:
            assert time.monotonic() < deadline, f"at {self.next}, lost: {self.lost}"
            while self.receive():
                quiet = 0
            if self.next < server.metric("spillway:kv_event_batches_total"):
                quiet = 0
                if not self.receive(wait_ms=200):
                    self.replay()
            elif not self.lost:
                quiet += 1
                time.sleep(0.1)
        return self.index


def prompts(count, seed, shared_pages=3, pages=(2, 9)):
    """Token ids: a few beginnings, and an end of its own for each."""
    rng = random.Random(seed)
    beginnings = [[rng.randrange(300, 2000) for _ in range(shared_pages * PAGE)] for _ in range(3)]
    return [beginnings[i % 3] + [rng.randrange(300, 2000) for _ in range(rng.randrange(pages[0] * PAGE, pages[1] * PAGE))]
            for i in range(count)]


def ask(server, prompt, **fields):
    """cached_tokens of the answer."""
    status, _, text = server.request("POST", "/v1/completions", {
        "model": "m", "prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields})
    assert status == 200, text[:300]
    return json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def ask_all(server, asked, at_once=4):
    waiting = list(asked)
    failures = []

    def work():
        with contextlib.suppress(IndexError):
            while True:
                try:
                    ask(server, waiting.pop(0))
                except (AssertionError, OSError) as error:
                    failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    return threads, failures


class EventsTest(unittest.TestCase):
    def setUp(self):
        self.ports = serving.free_port(), serving.free_port()

    @contextlib.contextmanager
    def serve(self, *options, **fields):
        """(server, subscriber that was there from the beginning)."""
        with contextlib.closing(Subscriber(self.ports)) as subscriber, serving.Server(
                serving.LONGNEEDLE, "--served-model-name", "m", "--device", "cpu", "--page-size", str(PAGE), "--max-model-len", "1024",
                *config(self.ports, **fields), *options) as server:
            yield server, subscriber

    def ask_and_read(self, server, subscriber, asked):
        threads, failures = ask_all(server, asked)
        while any(thread.is_alive() for thread in threads):
            subscriber.receive(wait_ms=50)
        self.assertEqual(failures, [])
        return subscriber.settle(server)

    def check_predictions(self, server, subscriber, asked, whole_blocks):
        """Each prompt again: the index says how much of it is cached."""
        found = 0
        for prompt in asked:
            predicted = subscriber.settle(server).cached(prompt)
            predicted = min(predicted, (len(prompt) - 1) // PAGE)  # the last token is always computed
            cached = ask(server, prompt)
            if whole_blocks:
                self.assertEqual(cached, predicted * PAGE)
            else:  # without a host tier the head of a further block can be copied
                self.assertIn(cached, range(predicted * PAGE, (predicted + 1) * PAGE))
            found += predicted
        self.assertGreater(found, 0)

    def test_device_alone(self):
        with self.serve("--preset", "dense", "--device-memory", "40MiB") as (server, subscriber):
            asked = prompts(40, seed=1)
            index = self.ask_and_read(server, subscriber, asked)
            self.assertEqual(index.told, {"GPU"})
            self.assertGreater(index.seen["BlockRemoved"], 0, "nothing was evicted")
            self.check_predictions(server, subscriber, asked[-12:], whole_blocks=False)
            self.assertEqual(server.metric("spillway:kv_events_restated_total"), 0)

    def test_host_and_disk_and_a_restart(self):
        with tempfile.TemporaryDirectory() as folder:
            tiers = ["--preset", "full", "--budget", "512", "--device-memory", "48MiB", "--host-memory", "12MiB", "--disk-path",
                     folder + "/disk", "--disk-memory", "40MiB"]
            asked = prompts(60, seed=2)
            with self.serve(*tiers) as (server, subscriber):
                index = self.ask_and_read(server, subscriber, asked)
                self.assertEqual(index.told, {"GPU", "CPU", "DISK"})
                self.assertGreater(index.seen["BlockRemoved"], 0)
                self.check_predictions(server, subscriber, asked[-12:], whole_blocks=True)
                known = set(subscriber.settle(server).media)
            with self.serve(*tiers) as (server, subscriber):
                again = subscriber.settle(server)
                self.assertEqual(again.told, {"DISK"})
                self.assertLessEqual(set(again.media), known)  # with what a server that ends saves
                self.assertGreater(len(again.media), 0)
                self.check_predictions(server, subscriber, asked[-12:], whole_blocks=True)

    def test_late_and_lossy_subscribers_end_up_with_the_same_index(self):
        with self.serve("--preset", "dense", "--device-memory", "40MiB", buffer_steps=1000) as (server, subscriber):
            index = self.ask_and_read(server, subscriber, prompts(20, seed=3))
            with contextlib.closing(Subscriber(self.ports)) as late:
                late.replay()
                self.assertEqual(late.settle(server).content(), index.content())
                self.assertEqual(server.metric("spillway:kv_events_restated_total"), 0)
        with self.serve("--preset", "dense", "--device-memory", "40MiB", buffer_steps=3, format="array") as (server, subscriber):
            self.ask_and_read(server, subscriber, prompts(20, seed=3))
            with contextlib.closing(Subscriber(self.ports)) as late:
                late.replay()
                self.assertEqual(late.settle(server).content(), subscriber.settle(server).content())
                self.assertGreater(len(late.index.media), 0)
                self.assertEqual(server.metric("spillway:kv_events_restated_total"), 1)

    def test_one_that_never_reads_holds_nobody_up(self):
        with self.serve("--preset", "dense", "--device-memory", "40MiB", hwm=1, buffer_steps=2) as (server, subscriber):
            with contextlib.closing(Subscriber(self.ports, read=False)):
                index = self.ask_and_read(server, subscriber, prompts(40, seed=4))
                self.assertGreater(index.seen["BlockStored"], 0)

    def test_a_reset_clears_all(self):
        with self.serve("--preset", "full", "--budget", "512") as (server, subscriber):
            asked = prompts(6, seed=5)
            self.assertGreater(len(self.ask_and_read(server, subscriber, asked).media), 0)
            cleared = subscriber.index.seen["AllBlocksCleared"]
            self.assertEqual(server.request("POST", "/reset_prefix_cache", {})[0], 200)
            index = subscriber.settle(server)
            self.assertEqual(index.content(), {})
            self.assertEqual(index.seen["AllBlocksCleared"], cleared + 1)
            self.assertEqual(ask(server, asked[0]), 0)
            self.assertGreater(len(subscriber.settle(server).media), 0)

    def test_salted_blocks_are_told_with_their_salt(self):
        with self.serve("--preset", "full", "--budget", "512") as (server, subscriber):
            prompt = prompts(1, seed=6)[0]
            ask(server, prompt, cache_salt="tenant")
            index = subscriber.settle(server)
            self.assertEqual(index.cached(prompt), 0)
            self.assertEqual(index.cached(prompt, salt="tenant"), len(prompt) // PAGE)
            self.assertEqual(ask(server, prompt), 0)
            index = subscriber.settle(server)
            self.assertEqual(index.cached(prompt), len(prompt) // PAGE)

    def test_what_is_wrong_is_said_before_serving(self):
        def error_of(*options, status=2):
            done = subprocess.run([serving.BINARY, "serve", serving.LONGNEEDLE, *options], capture_output=True, text=True, timeout=60)
            self.assertEqual(done.returncode, status, done.stderr)
            return done.stderr

        self.assertIn("there is no field \"topics\"", error_of("--kv-events-config", '{"topics":"a"}'))
        self.assertIn("hwm must be an integer", error_of(*config(self.ports, hwm="many")))
        context = zmq.Context()
        taken = context.socket(zmq.PUB)
        taken.bind(f"tcp://127.0.0.1:{self.ports[1]}")
        self.assertIn(f"replay_endpoint tcp://127.0.0.1:{self.ports[1]} cannot be bound", error_of(*config(self.ports), status=1))
        context.destroy(linger=0)


if __name__ == "__main__":
    unittest.main()
