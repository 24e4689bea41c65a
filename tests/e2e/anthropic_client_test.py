#!/usr/bin/env python3
"""The anthropic package against a running server: messages whole and streamed, tools and their results, JSON schemas, counted tokens,
clients that leave, and errors as its exceptions."""

import asyncio
import json
import unittest

import serving
import weather

try:
    import anthropic
except ImportError:
    anthropic = None

TOOL = {"name": "get_weather", "description": weather.DESCRIPTION, "input_schema": weather.PARAMETERS}
ASKED = [{"role": "user", "content": "What is the capital of France?"}]


@unittest.skipIf(anthropic is None, "needs the Python package anthropic: pip install -r tests/e2e/requirements.txt")
class Anthropic(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        model = serving.smollm2()
        if model is None:
            raise unittest.SkipTest("needs the model smollm2, which could not be fetched from the package index")
        cls.server = cls.enterClassContext(serving.Server(model, "--api-key", "secret", "--served-model-name", "ours"))
        cls.client = anthropic.Anthropic(base_url=cls.server.url, api_key="secret", max_retries=0, timeout=300)

    def fields(self, messages, temperature=0, ignore_eos=False, **more):
        """What its methods take; the package knows no temperature and no ignore_eos."""
        return {"model": "ours", "max_tokens": 32, "messages": messages, **more,
                "extra_body": {"temperature": temperature, "ignore_eos": ignore_eos}}

    def ask(self, messages, **more):
        return self.client.messages.create(**self.fields(messages, **more))

    def test_streamed_is_whole(self):
        whole = self.ask(ASKED)
        self.assertEqual((whole.type, whole.role, whole.stop_reason), ("message", "assistant", "end_turn"))
        self.assertIn("Paris", whole.content[0].text)
        with self.client.messages.stream(**self.fields(ASKED)) as stream:  # puts the events together
            text = "".join(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual(text, whole.content[0].text)
        self.assertEqual((final.content[0].text, final.stop_reason), (text, whole.stop_reason))
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)

    def test_system_and_stop_sequences(self):
        whole = self.ask(ASKED, system=[{"type": "text", "text": "You are a geographer."}])
        stop = whole.content[0].text[4:8]
        stopped = self.ask(ASKED, system="You are a geographer.", stop_sequences=[stop])
        self.assertEqual((stopped.stop_reason, stopped.stop_sequence), ("stop_sequence", stop))
        self.assertEqual(stopped.content[0].text, whole.content[0].text[:whole.content[0].text.index(stop)])
        self.assertEqual(self.ask(ASKED, max_tokens=2).stop_reason, "max_tokens")

    def test_tools_are_called_and_their_results_read(self):
        messages = weather.anthropic_messages()
        answer = self.ask(messages, tools=[TOOL])
        self.assertEqual(answer.stop_reason, "tool_use")
        (call,) = [block for block in answer.content if block.type == "tool_use"]
        self.assertEqual((call.name, call.input), ("get_weather", {"city": "Paris"}))
        with self.client.messages.stream(**self.fields(messages, tools=[TOOL])) as stream:
            kinds = {event.type for event in stream}
            final = stream.get_final_message()
        self.assertIn("input_json", kinds)
        self.assertEqual((final.stop_reason, final.content[-1].input), ("tool_use", call.input))
        result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
        messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
        self.assertIn("sunny", self.ask(messages, tools=[TOOL]).content[0].text)

    def test_json_schema_whole_and_streamed(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "large": {"type": "boolean"}},
                  "required": ["city", "large"], "additionalProperties": False}
        asked = {"output_config": {"format": {"type": "json_schema", "schema": schema}}, "max_tokens": 64}
        whole = self.ask(ASKED, **asked)
        self.assertEqual(whole.stop_reason, "end_turn")
        answer = json.loads(whole.content[0].text)
        self.assertEqual({name: type(value) for name, value in answer.items()}, {"city": str, "large": bool})
        with self.client.messages.stream(**self.fields(ASKED, **asked)) as stream:
            self.assertEqual(stream.get_final_message().content[0].text, whole.content[0].text)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            self.ask(ASKED, output_config={"format": {"type": "json_schema", "schema": {"not": {}}}})
        self.assertIn("output_config.format", caught.exception.body["error"]["message"])

    def test_tokens_are_counted_as_used(self):
        counted = self.client.messages.count_tokens(model="ours", messages=ASKED)
        usage = self.ask(ASKED).usage
        self.assertEqual(counted.input_tokens, usage.input_tokens + (usage.cache_read_input_tokens or 0))

    def test_a_client_that_leaves_frees_everything(self):
        with self.client.messages.stream(**self.fields(ASKED, max_tokens=8000, ignore_eos=True)) as stream:
            for event in stream:
                if event.type == "text":
                    break
        self.server.wait_idle()

        async def cancel():
            client = anthropic.AsyncAnthropic(base_url=self.server.url, api_key="secret", max_retries=0)
            asked = asyncio.create_task(client.messages.create(**self.fields(ASKED, max_tokens=8000, ignore_eos=True)))
            while self.server.metric("vllm:num_requests_running") == 0:
                await asyncio.sleep(0.02)
            asked.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await asked
            await client.close()
        asyncio.run(cancel())
        self.server.wait_idle()

    def test_errors_are_its_exceptions(self):
        stranger = anthropic.Anthropic(base_url=self.server.url, api_key="guess", max_retries=0)
        with self.assertRaises(anthropic.AuthenticationError) as caught:
            stranger.messages.create(**self.fields(ASKED))
        self.assertEqual(caught.exception.body["error"]["type"], "authentication_error")
        for error, kind, more in ((anthropic.NotFoundError, "not_found_error", {"model": "theirs"}),
                                  (anthropic.BadRequestError, "invalid_request_error", {"max_tokens": 100_000_000}),
                                  (anthropic.BadRequestError, "invalid_request_error", {"temperature": -1})):
            with self.subTest(more), self.assertRaises(error) as caught:
                self.ask(ASKED, **more)
            self.assertEqual((caught.exception.body["type"], caught.exception.body["error"]["type"]), ("error", kind))


if __name__ == "__main__":
    unittest.main()
