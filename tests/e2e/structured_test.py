#!/usr/bin/env python3
"""Structured output of a running server: 50 random schemas, each answered at a high temperature; every answer that ended by itself must parse
and must validate by the jsonschema package, which knows nothing of the grammars that made it. Then expressions, choices, grammars and
json_object through the openai package, streamed and whole, with the fields that a mask meets (n, logprobs, bias, min_tokens), and errors.
"""

import json
import random
import re
import unittest

import serving

try:
    import jsonschema
    import openai
except ImportError:
    jsonschema = openai = None

SEED = 20260
SCHEMAS = 50
NAMES = ["a", "id", "name", "tag list", "über", "x-y", "n1", "\"q\""]


def random_leaf(draw):
    kind = draw.randrange(8)
    if kind == 0:
        return {"type": "string", "minLength": draw.randrange(4), "maxLength": draw.randrange(4, 12)}
    if kind == 1:
        low = draw.randrange(-50, 50)
        return {"type": "integer", "minimum": low, "maximum": low + draw.randrange(200)}
    if kind == 2:
        return {"type": "number", "minimum": -2.5, "exclusiveMaximum": draw.choice([0, 1.75, 1000])}
    if kind == 3:
        return {"enum": draw.sample(["red", "green", 3, None, True, "a \"b\"", 2.5, [1], {"k": "v"}], 3)}
    if kind == 4:
        return {"type": "string", "pattern": draw.choice([r"^[a-f]{2,4}$", r"^\d{3}-\d{2}$", r"^(ab|cd)+$"])}
    if kind == 5:
        return {"type": "string", "format": draw.choice(["date", "ipv4", "uuid"])}
    if kind == 6:
        return {"type": draw.choice([["boolean", "null"], "boolean", "null", ["integer", "string"]])}
    return {"const": draw.choice(["fixed", 7, False])}


def random_schema(draw, depth):
    kind = draw.randrange(5) if depth > 0 else 4
    if kind <= 1:
        names = draw.sample(NAMES, draw.randrange(1, 5))
        schema = {"type": "object", "properties": {name: random_schema(draw, depth - 1) for name in names}}
        schema["required"] = draw.sample(names, draw.randrange(len(names) + 1))
        if draw.randrange(2):
            schema["additionalProperties"] = False
        return schema
    if kind == 2:
        low = draw.randrange(3)
        return {"type": "array", "items": random_schema(draw, depth - 1), "minItems": low, "maxItems": low + draw.randrange(3)}
    if kind == 3:
        return {"anyOf": [random_schema(draw, depth - 1), random_leaf(draw)]}
    return random_leaf(draw)


def needs_packages():
    return unittest.skipIf(openai is None, "needs the Python packages openai and jsonschema: pip install -r tests/e2e/requirements.txt")


@needs_packages()
class StructuredOutput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(serving.Server(serving.LONGNEEDLE))
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=600)
        cls.name = cls.client.models.list().data[0].id

    def complete(self, constraint=None, response_format=None, **fields):
        extra = {"structured_outputs": constraint} if constraint else {"response_format": response_format}
        extra |= {name: fields.pop(name) for name in ("min_tokens",) if name in fields}  # not OpenAI's
        given = {"model": self.name, "prompt": "It is", "max_tokens": 300, "temperature": 1.5, "seed": SEED, **fields}
        return self.client.completions.create(**given, extra_body=extra)

    def test_random_schemas(self):
        draw, ended = random.Random(SEED), 0
        for i in range(SCHEMAS):
            schema = random_schema(draw, 3)
            with self.subTest(number=i, schema=json.dumps(schema)):
                answer = self.complete(
                    response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema, "strict": bool(i % 2)}}, seed=i)
                choice = answer.choices[0]
                if choice.finish_reason == "length":
                    continue
                self.assertEqual(choice.finish_reason, "stop")
                value = json.loads(choice.text)
                jsonschema.Draft202012Validator(schema).validate(value)
                ended += 1
        print(f"{ended} of {SCHEMAS} answers ended by themselves")
        self.assertGreater(ended, SCHEMAS // 2)

    def test_json_object(self):
        for seed in range(3):
            choice = self.complete(response_format={"type": "json_object"}, seed=seed, logit_bias={}, temperature=0.7).choices[0]
            if choice.finish_reason == "stop":
                self.assertIsInstance(json.loads(choice.text), dict)
            else:
                self.assertTrue(choice.text.startswith("{"))

    def test_expressions_choices_and_grammars(self):
        for pattern in (r"\d{3}-[a-f]{4}", r"(yes|no)( (yes|no)){2}"):
            choice = self.complete({"regex": pattern}).choices[0]
            self.assertEqual(choice.finish_reason, "stop")
            self.assertRegex(choice.text, re.compile(rf"\A(?:{pattern})\Z"))
        self.assertIn(self.complete({"choice": ["left", "right", "straight on"]}).choices[0].text, ["left", "right", "straight on"])
        sums = self.complete({"grammar": 'root ::= term ("+" term){3}\nterm ::= [0-9]{1,3}'}).choices[0]
        self.assertRegex(sums.text, r"\A\d{1,3}(\+\d{1,3}){3}\Z")

    def test_with_other_fields(self):
        answer = self.complete({"regex": "[ab]{12}"}, n=3, logprobs=2, min_tokens=40, presence_penalty=1.5)
        self.assertEqual(len({choice.index for choice in answer.choices}), 3)
        for choice in answer.choices:
            self.assertRegex(choice.text, r"\A[ab]{12}\Z")
            self.assertEqual(choice.finish_reason, "stop")
            self.assertEqual("".join(choice.logprobs.tokens), choice.text)
        whole = self.complete({"regex": "[a-z ]{40}"}, temperature=0).choices[0].text
        chunks = list(self.complete({"regex": "[a-z ]{40}"}, temperature=0, stream=True))
        self.assertEqual("".join(chunk.choices[0].text for chunk in chunks), whole)
        self.assertEqual(chunks[-1].choices[0].finish_reason, "stop")
        cut = self.complete({"regex": "[a-z]{200}"}, max_tokens=5).choices[0]
        self.assertEqual(cut.finish_reason, "length")

    def test_errors_name_the_field(self):
        refused = [({"regex": "(a"}, "structured_outputs"), ({"json": {"type": "array", "uniqueItems": True}}, "structured_outputs"),
                   ({"choice": "a"}, "structured_outputs.choice"), ({"regex": "a", "choice": ["b"]}, "structured_outputs")]
        for constraint, param in refused:
            with self.assertRaises(openai.BadRequestError) as caught:
                self.complete(constraint)
            self.assertEqual(caught.exception.param, param)
        with self.assertRaisesRegex(openai.BadRequestError, "uniqueItems"):
            self.complete({"json": {"type": "array", "uniqueItems": True}})


if __name__ == "__main__":
    unittest.main()
