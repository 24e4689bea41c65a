"""Documents that are more than the homes hold, asked about in turn, with a disk tier below: the load of the fault tests.

Answers are greedy and deterministic, so each has one right text, whatever was cached, evicted, read back or computed again.
"""

import json

import serving

# Homes for little more than one document of 2k tokens, frames for less.
OPTIONS = ["--preset", "full", "--budget", "512", "--deterministic", "--max-model-len", "2304", "--device-memory", "60MiB",
           "--host-memory", "28MiB", "--max-num-seqs", "4"]


def disk_options(folder, size="256MiB"):
    return [*OPTIONS, "--disk-path", str(folder), "--disk-memory", size]


def questions(documents, each):
    """`each` questions of as many documents, one document after another, round by round."""
    with open(serving.TOP / "tests/data/needles/needles-2k.jsonl", encoding="utf-8") as lines:
        sets = [json.loads(next(lines)) for _ in range(documents)]
    return [document["context"] + document["items"][i]["question"] for i in range(each) for document in sets]


def ask(server, question, tokens=12):
    """The answer's text; an OSError when the server goes away meanwhile."""
    status, _, text = server.request("POST", "/v1/completions", {
        "model": "longneedle-q8_0", "prompt": question, "max_tokens": tokens, "temperature": 0, "ignore_eos": True})
    if status != 200:
        raise AssertionError(f"status {status}: {text[:300]}")
    return json.loads(text)["choices"][0]["text"]


def right_answers(asked):
    """What a server without a disk tier says."""
    with serving.Server(serving.LONGNEEDLE, *OPTIONS) as server:
        return {question: ask(server, question) for question in asked}
