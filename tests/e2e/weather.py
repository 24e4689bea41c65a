"""A conversation after which SmolLM2, greedy, calls a tool: it has done so three times before."""

import json

QUESTION = "What is the weather in {}?"
DESCRIPTION = "Weather of a city"
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "description": DESCRIPTION, "parameters": PARAMETERS}}
PAST = ("Oslo", "Rome", "Lima")


def messages(city="Paris"):
    """In the shape of OpenAI's chats; the last one asks for `city`."""
    said = []
    for past in PAST:
        call = {"id": "call-" + past, "type": "function", "function": {"name": "get_weather", "arguments": json.dumps({"city": past})}}
        said += [{"role": "user", "content": QUESTION.format(past)}, {"role": "assistant", "content": None, "tool_calls": [call]},
                 {"role": "tool", "tool_call_id": call["id"], "content": "sunny"},
                 {"role": "assistant", "content": f"It is sunny in {past}."}]
    return said + [{"role": "user", "content": QUESTION.format(city)}]


def anthropic_messages(city="Paris"):
    """The same in Anthropic's shape."""
    said = []
    for past in PAST:
        call = {"type": "tool_use", "id": "call-" + past, "name": "get_weather", "input": {"city": past}}
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "sunny"}
        said += [{"role": "user", "content": QUESTION.format(past)}, {"role": "assistant", "content": [call]},
                 {"role": "user", "content": [result]}, {"role": "assistant", "content": f"It is sunny in {past}."}]
    return said + [{"role": "user", "content": QUESTION.format(city)}]
