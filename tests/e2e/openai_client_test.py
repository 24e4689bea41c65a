#!/usr/bin/env python3
"""The openai package, as programs use it, against a running server: what it parses, raises and streams is what it should be.

Completions are asked of longneedle, chats of SmolLM2. Streamed and whole answers, and prompts as text and as token ids, must
give the same greedy text, which also shows that nothing is lost between the engine and the socket.
"""

import asyncio
import json
import unittest

import serving
import weather

try:
    import openai
except ImportError:
    openai = None

GENESIS = "In the beginning God created the heaven and the earth. And the earth was without form, and void;"


def needs_openai():
    return unittest.skipIf(openai is None, "needs the Python package openai: pip install -r tests/e2e/requirements.txt")


class WithServer(unittest.TestCase):
    model = serving.LONGNEEDLE
    options = ()

    @classmethod
    def setUpClass(cls):
        if cls.model is None:
            raise unittest.SkipTest("needs the model smollm2, which could not be fetched from the package index")
        cls.server = cls.enterClassContext(serving.Server(cls.model, *cls.options))
        cls.client = openai.OpenAI(base_url=cls.server.url + "/v1", api_key="none", max_retries=0, timeout=300)
        cls.name = cls.client.models.list().data[0].id

    def complete(self, **fields):
        return self.client.completions.create(**{"model": self.name, "temperature": 0, "max_tokens": 24, **fields})


@needs_openai()
class Completions(WithServer):
    def test_streamed_is_whole(self):
        whole = self.complete(prompt=GENESIS)
        self.assertEqual(whole.object, "text_completion")
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        self.assertEqual((whole.usage.completion_tokens, whole.choices[0].finish_reason), (24, "length"))
        chunks = list(self.complete(prompt=GENESIS, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].text for c in chunks if c.choices), whole.choices[0].text)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "length")
        self.assertEqual((chunks[-1].choices, chunks[-1].usage.completion_tokens), ([], 24))
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_prompt_as_text_ids_or_list(self):
        ids = json.loads(self.server.request("POST", "/tokenize", {"model": self.name, "prompt": GENESIS})[2])["tokens"]
        text = self.complete(prompt=GENESIS).choices[0].text
        self.assertEqual(self.complete(prompt=ids).choices[0].text, text)
        both = self.complete(prompt=[GENESIS, "And God said,"])
        self.assertEqual([c.index for c in both.choices], [0, 1])
        self.assertEqual(both.choices[0].text, text)
        detokenized = self.server.request("POST", "/detokenize", {"model": self.name, "tokens": ids})[2]
        self.assertEqual(json.loads(detokenized)["prompt"], GENESIS)

    def test_stop_string_ends_before_itself(self):
        text = self.complete(prompt=GENESIS).choices[0].text
        stop = text[5:9]
        stopped = self.complete(prompt=GENESIS, stop=[stop])
        self.assertEqual((stopped.choices[0].text, stopped.choices[0].finish_reason), (text[:text.index(stop)], "stop"))
        streamed = self.complete(prompt=GENESIS, stop=[stop], stream=True)
        self.assertEqual("".join(c.choices[0].text for c in streamed if c.choices), text[:text.index(stop)])

    def test_seed_and_n(self):
        first = self.complete(prompt=GENESIS, temperature=1, seed=7, n=2)
        again = self.complete(prompt=GENESIS, temperature=1, seed=7, n=2)
        self.assertEqual([c.text for c in first.choices], [c.text for c in again.choices])
        self.assertNotEqual(first.choices[0].text, first.choices[1].text)

    def test_logprobs_and_echo(self):
        scored = self.complete(prompt=GENESIS, max_tokens=2, logprobs=2, echo=True).choices[0]
        self.assertTrue(scored.text.startswith(GENESIS))
        self.assertIsNone(scored.logprobs.token_logprobs[0])
        self.assertTrue(all(value <= 0 for value in scored.logprobs.token_logprobs[1:]))
        self.assertEqual(len(scored.logprobs.tokens), len(scored.logprobs.token_logprobs))

    def test_cached_prefix_is_reported_and_changes_nothing(self):
        prompt = "\n".join([GENESIS] * 30)
        first, second = self.complete(prompt=prompt), self.complete(prompt=prompt)
        self.assertEqual(first.choices[0].text, second.choices[0].text)
        self.assertGreater(second.usage.prompt_tokens_details.cached_tokens, first.usage.prompt_tokens // 2)

    def test_a_client_that_leaves_frees_everything(self):
        stream = self.complete(prompt=GENESIS, max_tokens=20000, stream=True, extra_body={"ignore_eos": True})
        for _ in range(3):
            next(stream)
        self.assertEqual(self.server.metric("vllm:num_requests_running"), 1)
        stream.close()
        self.server.wait_idle()

    def test_errors(self):
        with self.assertRaises(openai.NotFoundError) as caught:
            self.complete(model="no-such-model", prompt="x")
        self.assertEqual(caught.exception.code, "model_not_found")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt="x", max_tokens=100_000_000)
        self.assertEqual(caught.exception.code, "context_length_exceeded")
        with self.assertRaises(openai.BadRequestError) as caught:
            self.complete(prompt="x", temperature=-1)
        self.assertEqual(caught.exception.param, "temperature")
        self.assertEqual(self.server.request("POST", "/v1/completions", "{")[0], 400)


@needs_openai()
class ApiKey(WithServer):
    options = ("--api-key", "secret", "--served-model-name", "ours")

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(serving.Server(cls.model, *cls.options))

    def test_asked_for_and_accepted(self):
        def client(key):
            return openai.OpenAI(base_url=self.server.url + "/v1", api_key=key, max_retries=0)
        with self.assertRaises(openai.AuthenticationError):
            client("guess").models.list()
        self.assertEqual(client("secret").models.list().data[0].id, "ours")
        self.assertEqual(client("secret").models.retrieve("ours").id, "ours")


@needs_openai()
class Chat(WithServer):
    @classmethod
    def setUpClass(cls):
        cls.model = serving.smollm2()
        super().setUpClass()

    def chat(self, content, **fields):
        fields = {"model": self.name, "temperature": 0, "max_completion_tokens": 32, **fields}
        return self.client.chat.completions.create(messages=[{"role": "user", "content": content}], **fields)

    def test_streamed_is_whole(self):
        whole = self.chat("What is the capital of France?")
        self.assertIn("Paris", whole.choices[0].message.content)
        self.assertEqual((whole.choices[0].message.role, whole.object), ("assistant", "chat.completion"))
        chunks = list(self.chat("What is the capital of France?", stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices),
                         whole.choices[0].message.content)
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    def test_content_as_parts(self):
        parts = [{"type": "text", "text": "What is the capital of France?"}]
        self.assertEqual(self.chat(parts).choices[0].message.content,
                         self.chat("What is the capital of France?").choices[0].message.content)

    def test_logprobs(self):
        choice = self.chat("Say yes.", max_completion_tokens=3, logprobs=True, top_logprobs=2).choices[0]
        self.assertEqual(len(choice.logprobs.content[0].top_logprobs), 2)
        self.assertEqual("".join(entry.token for entry in choice.logprobs.content), choice.message.content)

    def test_tools_are_called_whole_and_streamed(self):
        fields = {"model": self.name, "messages": weather.messages(), "tools": [weather.TOOL], "temperature": 0, "max_completion_tokens": 32}
        choice = self.client.chat.completions.create(**fields).choices[0]
        self.assertEqual((choice.finish_reason, choice.message.content), ("tool_calls", None))
        (call,) = choice.message.tool_calls
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Paris"}))
        with self.client.chat.completions.stream(**fields) as stream:  # puts calls together, and complains where it cannot
            events = [event.type for event in stream]
            streamed = stream.get_final_completion().choices[0]
        self.assertIn("tool_calls.function.arguments.delta", events)
        self.assertEqual(streamed.finish_reason, "tool_calls")
        self.assertEqual(streamed.message.tool_calls[0].function.arguments, call.function.arguments)
        fields["messages"] = [*weather.messages(), choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny"}]
        self.assertIn("sunny", self.client.chat.completions.create(**fields).choices[0].message.content)

    def test_json_schema_whole_and_streamed(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
                  "required": ["city", "large"], "additionalProperties": False}
        fields = {"model": self.name, "messages": [{"role": "user", "content": "Name the capital of France."}], "temperature": 0,
                  "max_completion_tokens": 64, "response_format": {"type": "json_schema", "json_schema": {
                      "name": "city", "schema": schema, "strict": True}}}
        choice = self.client.chat.completions.create(**fields).choices[0]
        self.assertEqual(choice.finish_reason, "stop")
        answer = json.loads(choice.message.content)
        self.assertEqual({name: type(value) for name, value in answer.items()}, {"city": str, "large": bool})
        with self.client.chat.completions.stream(**fields) as stream:
            streamed = stream.get_final_completion().choices[0]
        self.assertEqual((streamed.message.content, streamed.finish_reason), (choice.message.content, "stop"))

    def test_responses_follow_a_json_schema(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
                  "required": ["city", "large"], "additionalProperties": False}
        asked = {"format": {"type": "json_schema", "name": "city", "schema": schema, "strict": True}}
        fields = {"model": self.name, "input": "Name the capital of France.", "temperature": 0, "max_output_tokens": 64, "text": asked}
        whole = self.client.responses.create(**fields)
        self.assertEqual((whole.status, whole.text.format.type), ("completed", "json_schema"))
        answer = json.loads(whole.output_text)
        self.assertEqual({name: type(value) for name, value in answer.items()}, {"city": str, "large": bool})
        with self.client.responses.stream(**fields) as stream:
            self.assertEqual(stream.get_final_response().output_text, whole.output_text)

    def test_tools_that_must_be_called_are(self):
        fields = {"model": self.name, "messages": [{"role": "user", "content": "Good morning!"}], "tools": [weather.TOOL], "temperature": 0,
                  "max_completion_tokens": 64}
        for tool_choice in ("required", {"type": "function", "function": {"name": "get_weather"}}):
            with self.subTest(tool_choice):
                choice = self.client.chat.completions.create(**fields, tool_choice=tool_choice).choices[0]
                (call, *_) = choice.message.tool_calls
                self.assertEqual((call.function.name, list(json.loads(call.function.arguments))), ("get_weather", ["city"]))

    def test_tools_that_must_not_be_called_are_not(self):
        answer = self.client.chat.completions.create(model=self.name, messages=weather.messages(), tools=[weather.TOOL], tool_choice="none",
                                                     temperature=0, max_completion_tokens=32)
        self.assertIsNone(answer.choices[0].message.tool_calls)

    def test_a_cancelled_task_frees_everything(self):
        async def cancel():
            client = openai.AsyncOpenAI(base_url=self.server.url + "/v1", api_key="none", max_retries=0)
            asked = asyncio.create_task(client.chat.completions.create(
                model=self.name, messages=[{"role": "user", "content": "Count."}], max_completion_tokens=8000, extra_body={"ignore_eos": True}))
            while self.server.metric("vllm:num_requests_running") == 0:
                await asyncio.sleep(0.02)
            asked.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asked
            await client.close()
        asyncio.run(cancel())
        self.server.wait_idle()

    def test_a_document_of_thousands_of_tokens(self):
        text = (serving.TOP / "tools/data/ruth_and_jonah.txt").read_text(encoding="utf-8")
        answer = self.chat(f"Read this document.\n\n{text}\n\nQuestion: What is the name of Naomi's husband?")
        self.assertGreater(answer.usage.prompt_tokens, 5000)
        self.assertIn("Elimelech", answer.choices[0].message.content)


if __name__ == "__main__":
    unittest.main()
