#!/usr/bin/env python3
"""Asks a running server one question about a document and prints the answer as it comes, then how fast it came.

    tools/ask.py URL DOCUMENT QUESTION            as a chat
    tools/ask.py URL --needle NEEDLES.jsonl       a planted fact and its question, as a plain completion (for base models)

Speaks the OpenAI protocol with the standard library alone, so it is also a small example of a client.
"""

import argparse
import http.client
import json
import re
import sys
import threading
import time
import urllib.parse

TIMEOUT_S = 600


def request(url, method, path, body=None):
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    payload = None if body is None else json.dumps(body).encode()
    connection.request(method, path, payload, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        sys.exit(f"ask: {method} {path} answered {response.status}: {response.read(2000).decode(errors='replace')}")
    return response


def events(response):
    """The JSON of each server-sent event, up to [DONE]."""
    for line in response:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        yield json.loads(data)
    sys.exit("ask: the stream ended before [DONE]; the server's log says why")


def text_of(event):
    if "error" in event:
        sys.exit(f"ask: the server reported an error: {event['error']}")
    if not event["choices"]:
        return ""
    choice = event["choices"][0]
    return choice["text"] if "text" in choice else choice["delta"].get("content") or ""


class Waiting(threading.Thread):
    """Shows on a terminal that the document is being read, second by second, until finish()."""

    def __init__(self, shown):
        super().__init__(daemon=True)
        self.shown, self.done = shown, threading.Event()

    def run(self):
        started = time.monotonic()
        while sys.stdout.isatty() and not self.done.wait(1):
            print(f"\r{self.shown}(reading the document, {time.monotonic() - started:.0f} s)", end="", flush=True)

    def finish(self):
        if not self.done.is_set():
            self.done.set()
            self.join()
            if sys.stdout.isatty():
                print("\r\033[K" + self.shown, end="", flush=True)


def ask(url, path, body):
    """Streams the answer to standard output; returns it with the usage and the times to the first and last token."""
    started = time.monotonic()
    answer, usage, first, last = "", {}, None, None
    print("answer:   ", end="", flush=True)
    waiting = Waiting("answer:   ")
    waiting.start()
    body |= {"stream": True, "stream_options": {"include_usage": True}, "temperature": 0}
    for event in events(request(url, "POST", path, body)):
        usage = event.get("usage") or usage
        text = text_of(event)
        if text:
            waiting.finish()
            last = time.monotonic() - started
            first = first or last
            answer += text
            print(text, end="", flush=True)
    waiting.finish()
    print()
    return answer, usage, first, last


def report(usage, first, last):
    prompt, generated = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    print(f"prompt {prompt} tokens, first token after {first:.2f} s ({prompt / first:.0f} tokens/s)")
    if generated > 1 and last > first:
        print(f"answer {generated} tokens, {(generated - 1) / (last - first):.1f} tokens/s after the first")


def metrics_of(url):
    """Sums of /metrics by name and label value: {"spillway:pages_selected_total": 9, "spillway:frame_rows own": 3, ...}."""
    sums = {}
    for name, labels, value in re.findall(r"^(\S+?)(?:\{([^}]*)\})? (\S+)$", request(url, "GET", "/metrics").read().decode(), re.M):
        own = [text for key, text in re.findall(r'(\w+)="([^"]*)"', labels) if key not in ("engine", "model_name")]
        key = " ".join([name, *own])
        sums[key] = sums.get(key, 0) + float(value)
    return sums


def report_moves(url):
    """What the server selected and moved so far. Ends with an error where a tier is on and nothing moved."""
    m = {name.removeprefix("spillway:"): value for name, value in metrics_of(url).items() if name.startswith("spillway:")}
    selected, missed = m["pages_selected_total"], m["pages_missed_total"]
    if not selected or not m["pages_saved_total"]:
        sys.exit("ask: nothing was selected or saved, though the document is larger than the device tier")
    mib = 2**20
    print(f"selected  {selected:.0f} pages in {m['selections_total made']:.0f} selections, out of {m['pages_scored_total']:.0f} scored")
    print(f"missed    {missed:.0f} of them ({100 * missed / selected:.1f} %): not on the device")
    print(f"moved     {m['transfer_bytes_total load'] / mib:.1f} MiB to the device, {m['transfer_bytes_total save'] / mib:.1f} MiB home; "
          f"{m['pages_evicted_total']:.0f} pages evicted")
    print(f"device    {m['device_bytes_peak'] / mib:.1f} MiB at most, prompt and answer")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("document", nargs="?")
    parser.add_argument("question", nargs="?")
    parser.add_argument("--needle", metavar="FILE", help="a file of tests/data/needles; its first document is asked")
    parser.add_argument("--expect", help="what the answer should hold; said if it does not")
    parser.add_argument("--moves", action="store_true", help="print what the server selected and moved")
    arguments = parser.parse_args()
    model = json.load(request(arguments.url, "GET", "/v1/models"))["data"][0]["id"]
    if arguments.needle:
        with open(arguments.needle, encoding="utf-8") as lines:
            document = json.loads(next(lines))
        item = next(item for item in document["items"] if item["kind"] == "secret")
        source, characters, question = arguments.needle, len(document["context"]), item["question"]
        arguments.expect = item["answer"].strip()
        path = "/v1/completions"
        body = {"prompt": document["context"] + "\n" + question, "max_tokens": 24, "stop": ["\n"]}
    elif arguments.document and arguments.question:
        source, question = arguments.document, arguments.question
        with open(source, encoding="utf-8") as file:
            text = file.read()
        characters = len(text)
        path = "/v1/chat/completions"
        content = f"Read this document.\n\n{text}\n\nQuestion: {question}"
        body = {"messages": [{"role": "user", "content": content}], "max_tokens": 64}
    else:
        parser.error("give a document and a question, or --needle")
    print(f"document: {source}, {characters} characters")
    print(f"question: {question}")
    answer, usage, first, last = ask(arguments.url, path, body | {"model": model})
    if first is None:
        sys.exit("ask: the answer is empty")
    report(usage, first, last)
    if arguments.moves:
        report_moves(arguments.url)
    if arguments.expect and arguments.expect not in answer:
        print(f"(The document says: {arguments.expect}. A small model is not always right.)")


if __name__ == "__main__":
    main()
