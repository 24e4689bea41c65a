#!/usr/bin/env python3
"""Renders chat templates with Python's Jinja, for chat_template_golden_test.

usage: make_chat_template_golden.py TEMPLATES_DIR

Reads the templates of TEMPLATES_DIR (what `tools/fixtures templates` fetches; they carry their models' licences and are not
committed) and our own in tests/data/templates, and writes under tests/golden/data:

  chat_conversations.json         the conversations: name -> context
  chat_template_golden.json       template -> conversation -> "sha256 of the rendering" or "error"
  chat_template_own_golden.json   our own templates: the renderings in full

Needs jinja2 3.1 and nothing else. The environment is what Hugging Face documents for chat templates: an immutable sandbox,
trim_blocks and lstrip_blocks, break and continue, a pass-through `generation` tag, raise_exception, strftime_now (here: at a
fixed time, in UTC) and a tojson that is json.dumps without HTML escapes.
"""

import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).resolve().parent
NOW = 1_733_000_000  # 2024-11-30 20:53:20 UTC


class Generation(Extension):
    """{% generation %}: marks what the assistant says; renders as its body, with a scope of its own."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_pass", [])
        return nodes.CallBlock(call, [], [], body).set_lineno(line)

    @staticmethod
    def _pass(caller):
        return caller()


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def strftime_now(form):
    return datetime.datetime.fromtimestamp(NOW, datetime.timezone.utc).replace(tzinfo=None).strftime(form)


def environment():
    env = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    env.filters["tojson"] = to_json
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


def function(name, description, properties, required):
    parameters = {"type": "object", "properties": properties, "required": required}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


WEATHER = function(
    "get_weather",
    "Current weather of a city.",
    {
        "city": {"type": "string", "description": "Name, e.g. \"Zürich\" or 'Köln'"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": "integer", "minimum": 0, "maximum": 14},
    },
    ["city"],
)
BOOKING = function(
    "book",
    "Books a trip.\nSeveral legs are possible.",
    {
        "legs": {
            "type": "array",
            "description": "in order",
            "items": {
                "type": "object",
                "properties": {
                    "from": {"type": "string"},
                    "to": {"type": ["string", "null"]},
                    "price": {"anyOf": [{"type": "number"}, {"type": "null"}], "description": "most < 99.5 & more > 1e-7"},
                },
                "required": ["from", "to"],
            },
        },
        "options": {"type": "object", "properties": {"window": {"type": "boolean"}}, "additionalProperties": False},
        "scale": {"type": "number", "default": 1.5},
    },
    ["legs", "options"],
)
PLAIN_TOOL = function("now", "Tells the time.", {}, [])


def call(identifier, name, arguments):
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    user = {"role": "user", "content": "Hello there!"}
    system = {"role": "system", "content": "You are terse."}
    answer = {"role": "assistant", "content": "Hi."}
    more = {"role": "user", "content": "And <b>now</b>?"}
    tool_turn = [
        {"role": "user", "content": "Weather in Zürich?"},
        {"role": "assistant", "content": "", "tool_calls": [call("call00001", "get_weather", {"city": "Zürich", "days": 2})]},
        {"role": "tool", "name": "get_weather", "tool_call_id": "call00001", "content": "{\"temp\": 21.5}"},
    ]
    two_calls = [
        {"role": "user", "content": "Weather in both?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                call("abcdefgh1", "get_weather", {"city": "A \"quoted\" one", "unit": None, "days": True}),
                call("abcdefgh2", "book", {"legs": [{"from": "A", "to": None, "price": 1e-7}], "options": {"window": False}}),
            ],
        },
        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefgh1", "content": "rain"},
        {"role": "tool", "name": "book", "tool_call_id": "abcdefgh2", "content": "booked"},
        {"role": "assistant", "content": "Rain; booked."},
        {"role": "user", "content": "Thanks"},
    ]
    thinking = [
        user,
        {"role": "assistant", "content": "<think>\nLet me see.\n</think>\n\nFour.", "reasoning_content": "It is 2 + 2."},
        {"role": "user", "content": "Sure?"},
        {"role": "assistant", "content": "Yes.", "reasoning_content": "Counted again.\nTwice.", "thinking": "Hm."},
        {"role": "user", "content": "Good."},
    ]
    parts = [{"type": "text", "text": "Part one."}, {"type": "text", "text": "Part two."}]
    image = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
    odd = "  Grüße, “世界” 👋🏽\n\ttab 'single' \"double\" \\back {{ braces }} {% tag %} <|im_end|> \x7f &amp; \u2028end  "
    documents = [{"title": "One", "text": "First text."}, {"title": "Two", "text": "Second\ntext.", "doc_id": 7}]
    cases = {
        "plain": {"messages": [user]},
        "no_prompt": {"messages": [user, answer], "add_generation_prompt": False},
        "system": {"messages": [system, user]},
        "turns": {"messages": [system, user, answer, more]},
        "turns_no_system": {"messages": [user, answer, more, answer, user]},
        "odd_text": {"messages": [{"role": "system", "content": odd}, {"role": "user", "content": odd}, {"role": "assistant", "content": odd}, more]},
        "empty": {"messages": [{"role": "system", "content": ""}, {"role": "user", "content": ""}]},
        "two_users": {"messages": [user, more]},
        "assistant_first": {"messages": [answer, user]},
        "system_later": {"messages": [user, system, answer, more]},
        "developer": {"messages": [{"role": "developer", "content": "Obey."}, user]},
        "tools": {"messages": [system, user], "tools": [WEATHER, BOOKING, PLAIN_TOOL]},
        "tools_no_system": {"messages": [user], "tools": [WEATHER]},
        "tool_turn": {"messages": tool_turn, "tools": [WEATHER]},
        "tool_turn_system": {"messages": [system] + tool_turn + [{"role": "assistant", "content": "Warm."}, more], "tools": [WEATHER, PLAIN_TOOL]},
        "two_calls": {"messages": two_calls, "tools": [WEATHER, BOOKING]},
        "two_calls_no_tools": {"messages": [system] + two_calls},
        "text_arguments": {"messages": [user, {"role": "assistant", "content": "Calling.", "tool_calls": [call("123456789", "now", "{\"zone\": \"UTC\"}")]}, {"role": "tool", "content": "12:00", "tool_call_id": "123456789"}], "tools": [PLAIN_TOOL]},
        "thinking": {"messages": thinking},
        "thinking_on": {"messages": thinking, "enable_thinking": True, "thinking": True},
        "thinking_off": {"messages": [user], "enable_thinking": False, "thinking": False},
        "effort": {"messages": [system, user], "reasoning_effort": "high", "enable_thinking": True},
        "parts": {"messages": [{"role": "system", "content": parts[:1]}, {"role": "user", "content": parts}]},
        "parts_answer": {"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": parts}, more]},
        "image": {"messages": [{"role": "user", "content": image}]},
        "documents": {"messages": [system, user], "documents": documents},
        "continued": {"messages": [user, {"role": "assistant", "content": "Sure, "}], "continue_final_message": True},
        "date": {"messages": [user], "date_string": "01 Jan 2025", "today": "2025-01-01"},
        "none": {"messages": []},
    }
    defaults = {"tools": None, "documents": None, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>",
                "unk_token": "<unk>", "pad_token": "<pad>"}
    return {name: {**defaults, **case} for name, case in cases.items()}


def render(env, source, context):
    """The text, or None when Jinja refuses. What Python prints with an address cannot be compared: also None."""
    try:
        return env.from_string(source).render(**context)
    except Exception:  # a template's error has many types
        return None


def renderings(folder, cases):
    env = environment()
    result = {}
    for path in sorted(folder.glob("*.jinja")):
        source = path.read_bytes().decode("utf-8")
        result[path.name] = {name: render(env, source, context) for name, context in cases.items()}
    return result


def digest(text):
    return "error" if text is None else hashlib.sha256(text.encode("utf-8")).hexdigest()


def write(name, data):
    text = json.dumps(data, ensure_ascii=False, indent=1) + "\n"
    (HERE / "data" / name).write_text(text, encoding="utf-8")


def main():
    cases = conversations()
    (HERE / "data").mkdir(exist_ok=True)
    write("chat_conversations.json", cases)
    foreign = renderings(pathlib.Path(sys.argv[1]), cases)
    write("chat_template_golden.json", {name: {case: digest(text) for case, text in row.items()} for name, row in foreign.items()})
    write("chat_template_own_golden.json", renderings(HERE.parent / "data" / "templates", cases))
    if len(sys.argv) > 2:  # the renderings in full, to look into differences
        pathlib.Path(sys.argv[2]).write_text(json.dumps(foreign, ensure_ascii=False), encoding="utf-8")
    texts = [text for row in foreign.values() for text in row.values()]
    print(f"jinja2 {jinja2.__version__}: {len(foreign)} templates, {len(texts)} renderings, {texts.count(None)} refused")


if __name__ == "__main__":
    main()
