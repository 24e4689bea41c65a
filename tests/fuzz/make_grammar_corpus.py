#!/usr/bin/env python3
"""Writes corpus/grammar: a schema, an expression, a grammar, a list of choices or a structural tag a file, behind the byte that says which
(grammar_fuzz.cc). Run from anywhere. Inputs that a fuzzer found are added to the folder by hand, named after what broke.
"""

import json
import pathlib

FOLDER = pathlib.Path(__file__).parent / "corpus" / "grammar"
SCHEMA, REGEX, EBNF, CHOICE, TAG = range(5)

PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1, "maxLength": 5}, "age": {"type": "integer", "minimum": 0}},
          "required": ["name"], "additionalProperties": False}
SCHEMAS = {
    "person": PERSON,
    "tree": {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {"next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}}}},
    "array": {"type": "array", "prefixItems": [{"const": 1}], "items": {"enum": ["a", {"b": []}]}, "minItems": 1, "maxItems": 4},
    "numbers": {"type": "object", "properties": {"a": {"type": "number", "minimum": -1.5, "exclusiveMaximum": 2}, "b": {"type": "integer", "multipleOf": 7}}},
    "strings": {"type": "object", "properties": {"p": {"type": "string", "pattern": "^[a-c]{2,3}$"}, "f": {"type": "string", "format": "date-time"}}},
    "keys": {"type": "object", "patternProperties": {"^x_": {"type": "boolean"}}, "additionalProperties": False, "minProperties": 1},
    "names": {"type": "object", "propertyNames": {"pattern": "^[a-z]+$"}, "additionalProperties": {"type": "null"}, "maxProperties": 2},
    "one_of": {"oneOf": [{"type": "string"}, {"type": "integer"}]},
    "all_of": {"allOf": [PERSON]},
    "types": {"type": ["string", "null", "array"], "maxLength": 3},
    "any": {},
    "never": False,
    "unsupported": {"type": "array", "uniqueItems": True},
}
REGEXES = {"plain": r"\d{3}-[a-f]+(x|yy)?", "classes": r"[^\s\w]{2}\x41\u00e9.", "anchors": "^a$|^b$", "open": "(a", "lazy": "a+?b*?", "look": "(?=a)b"}
GRAMMARS = {"nested": 'root ::= "(" root ")" | [0-9]', "rules": 'root ::= a b*\na ::= "x" | ""\nb ::= [a-z]{2,5}', "unknown": "root ::= nothing",
            "left": 'root ::= root "a" | "b"', "empty": 'root ::= ""', "comment": '# c\nroot ::= "\\n" # d'}
TAGS = {"call": {"type": "structural_tag", "format": {"type": "tags_with_separator", "at_least_one": True, "separator": "\n", "tags": [
    {"begin": "<call>", "content": {"type": "json_schema", "json_schema": PERSON}, "end": "</call>"}]}}}


def write(name, kind, text):
    (FOLDER / name).write_bytes(bytes([kind]) + text.encode())


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, schema in SCHEMAS.items():
        write(f"schema_{name}", SCHEMA, json.dumps(schema))
    write("schema_open", SCHEMA + 65, json.dumps(PERSON))
    write("schema_compact", SCHEMA + 130, json.dumps(PERSON))
    write("schema_broken", SCHEMA, '{"type":')
    write("schema_deep", SCHEMA, "[" * 2000)
    for name, text in REGEXES.items():
        write(f"regex_{name}", REGEX, text)
    write("regex_deep", REGEX, "(" * 90 + "a" + ")" * 90)
    for name, text in GRAMMARS.items():
        write(f"ebnf_{name}", EBNF, text)
    write("choice", CHOICE, 'two\nlines and "quotes"')
    for name, tag in TAGS.items():
        write(f"tag_{name}", TAG, json.dumps(tag))
