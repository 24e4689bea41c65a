#!/usr/bin/env python3
"""Writes corpus/output_parser: a byte that chooses formats, one that chooses cuts, then what a model of that format writes.

Run from anywhere; needs only Python. Inputs that a fuzzer found are added to the folder by hand, named after what broke.
"""

import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "output_parser"
NONE, HERMES, QWEN3_CODER, LLAMA3_JSON, MISTRAL = range(5)

TEXTS = {
    "plain": (NONE, 0, "Nothing to see. <tool_call>{}</tool_call>"),
    "hermes": (HERMES, 0, 'So:\n<tool_call>\n{"name": "f", "arguments": {"s": "a\\"}", "o": [1, {"x": null}]}}\n</tool_call>\n'
                          '<tool_call>{"arguments": {}, "name": "g"}</tool_call>'),
    "hermes_damaged": (HERMES, 0, '<tool_call><tool_call>{"name": "f", "arguments": {"s": ]} x</tool_call>'),
    "hermes_text_arguments": (HERMES, 0, '<tool_call>{"name": "f", "arguments": "{\\"s\\": 1}", "id": 7}</tool_call>'),
    "hermes_late_name": (HERMES, 0, '<tool_call>{"arguments": 12.5e3 , "name": "f"}'),
    "qwen3_coder": (QWEN3_CODER, 0, "<tool_call>\n<function=f>\n<parameter=s>\nline\n\nline\t\"q\"\n</parameter>\n<parameter=i>\n7\n"
                                    "</parameter>\n<parameter=o>\n{\"a\": 1}\n</parameter>\n</function>\n</tool_call>\n<function=g></function>"),
    "qwen3_coder_damaged": (QWEN3_CODER, 0, "<tool_call><function=f> <parameter=i>none</parameter> x </function>"),
    "llama3_json": (LLAMA3_JSON, 0, '<|python_tag|>{"name": "f", "parameters": {"s": "x"}}; {"name": "g", "parameters": {}}'),
    "llama3_json_other": (LLAMA3_JSON, 0, '{"name": "Bob", "age": 3}'),
    "mistral_array": (MISTRAL, 0, '[TOOL_CALLS] [{"name": "f", "arguments": {"s": "]"}}, {"name": "g", "arguments": {}}] end'),
    "mistral_names": (MISTRAL, 0, '[TOOL_CALLS]f[CALL_ID]abcdefghi[ARGS]{"s": 1}[TOOL_CALLS]g{}'),
    "mistral_damaged": (MISTRAL, 0, "[TOOL_CALLS]f[ARGS] [TOOL_CALLS] [{\"name\""),
    "reasoning_qwen3": (HERMES, 2, '\n<think>\na </thin\n\n</think>\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>'),
    "reasoning_deepseek_r1": (LLAMA3_JSON, 1, 'a\n</think>\n{"name": "g", "parameters": {}}'),
    "reasoning_open": (HERMES, 2 + 3, "half a thought"),
    "reasoning_closed": (HERMES, 2 + 6, "\n\nAnswer </think>"),
}


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (calls, reasoning, text) in TEXTS.items():
        (FOLDER / name).write_bytes(bytes([calls + 5 * reasoning, 2]) + text.encode())


main()
