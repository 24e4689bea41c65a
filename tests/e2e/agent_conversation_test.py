#!/usr/bin/env python3
"""A coding agent's conversation, twenty turns of tool calls up to 30k tokens: each turn finds the whole prompt before it cached.

The conversation is recorded: what the assistant says and calls, and what its tools return (pages of a document of the 32k needle
set). Each turn sends all of it so far, as agents do, and asks for a few tokens. Past calls must be rendered to the very tokens
they were rendered to before, or the cache would lose everything behind the first difference: a turn may miss one page of the
prompt before it, no more. Tried with a template that knows tools, with reasoning between the calls, with one that does not, and
through the Messages API with a system block that is another one in each request. The model is tiny and random: what it answers
is not part of the conversation.
"""

import json
import tempfile
import unittest

import serving

PAGE_TOKENS = 32
WITH_TOOLS = str(serving.TOP / "tests/data/templates/think_switch.jinja")
TURNS = 20
TOOLS = [
    {"type": "function", "function": {
        "name": "read_file", "description": "Reads a part of a file.",
        "parameters": {"type": "object", "required": ["path", "offset"], "properties": {
            "path": {"type": "string"}, "offset": {"type": "integer"}, "limit": {"type": "integer"}}}}},
    {"type": "function", "function": {
        "name": "search", "description": "Searches files for a pattern; \u201cliteral\u201d text or a regular expression.",
        "parameters": {"type": "object", "required": ["pattern"], "properties": {
            "pattern": {"type": "string"}, "options": {"type": "object"}}}}},
]
QUESTION = "Which passages of notes.txt speak of keys? Read it page by page."


def document():
    with open(serving.TOP / "tests/data/needles/needles-32k.jsonl", encoding="utf-8") as lines:
        record = json.loads(next(lines))
    return max((value for value in record.values() if isinstance(value, str)), key=len)


def call(turn):
    """(name, arguments) of a turn: key order, nesting, numbers, escapes and characters beyond ASCII must survive."""
    if turn % 3 == 2:
        return "search", {"pattern": f"key \"{turn}\"\\s+\u00e9\n", "options": {"case": False, "limit": None, "weights": [0.5, turn]}}
    return "read_file", {"path": "notes.txt", "offset": turn * 1000, "limit": 1000}


def conversation(page_bytes):
    """The messages behind each turn: a list of lists of new messages."""
    text = document()
    turns = [[{"role": "system", "content": "You are an agent that reads files."}, {"role": "user", "content": QUESTION}]]
    for turn in range(TURNS):
        name, arguments = call(turn)
        calls = [(f"call_{turn}", name, arguments)]
        if turn % 5 == 4:
            calls.append((f"call_{turn}b", *call(turn + 1)))
        assistant = {"role": "assistant", "content": None if turn % 2 else f"Page {turn} next.",
                     "reasoning_content": f"The pages before {turn} are read." if turn % 4 == 0 else None,
                     "tool_calls": [{"id": i, "type": "function", "function": {"name": n, "arguments": json.dumps(a)}}
                                    for i, n, a in calls]}
        part = text[turn * page_bytes:(turn + 1) * page_bytes]
        results = [{"role": "tool", "tool_call_id": i, "content": part if n == 0 else "(nothing)"}
                   for n, (i, _, _) in enumerate(calls)]
        turns.append([assistant, *results])
    return turns


class Chat:
    """The conversation through /v1/chat/completions."""

    path = "/v1/chat/completions"

    def __init__(self):
        self.body = {"messages": [], "tools": TOOLS, "temperature": 0, "max_tokens": 4}

    def add(self, messages):
        self.body["messages"] += messages

    @staticmethod
    def usage(answer):
        """(prompt tokens, those of them that were cached)."""
        usage = answer["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]


class Messages:
    """The same through /v1/messages without the reasoning, with a system block that changes each time, as one agent sends it."""

    path = "/v1/messages"

    def __init__(self):
        self.body = {"messages": [], "max_tokens": 4, "temperature": 0, "tools": [
            {"name": tool["function"]["name"], "description": tool["function"]["description"],
             "input_schema": tool["function"]["parameters"]} for tool in TOOLS]}

    def add(self, messages):
        for message in messages:
            content = message["content"]
            if message["role"] == "system":
                self.system = content
            elif message["role"] == "user":
                self.body["messages"].append({"role": "user", "content": content})
            elif message["role"] == "assistant":
                blocks = [{"type": "text", "text": content}] if content else []
                blocks += [{"type": "tool_use", "id": call["id"], "name": call["function"]["name"],
                            "input": json.loads(call["function"]["arguments"])} for call in message["tool_calls"]]
                self.body["messages"].append({"role": "assistant", "content": blocks})
            else:
                block = {"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": content}
                if isinstance(self.body["messages"][-1]["content"], list) and self.body["messages"][-1]["role"] == "user":
                    self.body["messages"][-1]["content"].append(block)
                else:
                    self.body["messages"].append({"role": "user", "content": [block]})
        self.body["system"] = [{"type": "text", "text": f"x-anthropic-billing-header: cch={len(self.body['messages']):x};"},
                               {"type": "text", "text": self.system}]

    @staticmethod
    def usage(answer):
        """(prompt tokens, those of them that were cached); here input_tokens are those that were not."""
        usage = answer["usage"]
        return usage["input_tokens"] + usage["cache_read_input_tokens"], usage["cache_read_input_tokens"]


class AgentConversation(unittest.TestCase):
    def follow(self, client, *options):
        with tempfile.TemporaryDirectory() as folder, \
                serving.Server(*serving.tiny_model(folder, max_model_len=36000), *options) as server:
            before = 0
            for number, new in enumerate(conversation(page_bytes=5200)):
                client.add(new)
                status, _, body = server.request("POST", client.path, client.body)
                self.assertEqual(status, 200, body)
                prompt, cached = client.usage(json.loads(body))
                self.assertGreaterEqual(cached, before - PAGE_TOKENS, f"turn {number} of {prompt} tokens")
                self.assertGreater(prompt, before)
                before = prompt
            self.assertGreater(before, 30000)

    def test_chat_template_without_tools(self):
        self.follow(Chat())

    def test_chat_template_with_tools_and_reasoning(self):
        self.follow(Chat(), "--chat-template", WITH_TOOLS)

    def test_messages_template_with_tools(self):
        self.follow(Messages(), "--chat-template", WITH_TOOLS)


if __name__ == "__main__":
    unittest.main()
