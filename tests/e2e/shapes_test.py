#!/usr/bin/env python3
"""One prompt through every API of a real server: the same tokens, and a cache that salts keep apart.

A prompt that was answered before is found in the prefix cache through whichever API it comes, since all make the same tokens of
it; with another cache_salt it must not be found through any, or one tenant could measure what another has asked.
"""

import json
import unittest

import serving

TEXT = "In the beginning God created the heaven and the earth. " * 12


class Shapes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(serving.Server(serving.LONGNEEDLE, "--served-model-name", "first", "second"))

    def post(self, path, **fields):
        status, _, text = self.server.request("POST", path, fields)
        self.assertEqual(status, 200, text)
        return json.loads(text)

    def cached(self, api, text, salt=None, model="first"):
        """(tokens of the prompt that were cached, tokens of the prompt)."""
        more = {"model": model, "temperature": 0, **({} if salt is None else {"cache_salt": salt})}
        messages = [{"role": "user", "content": text}]
        if api == "completions":
            usage = self.post("/v1/completions", prompt=text, max_tokens=1, **more)["usage"]
        elif api == "chat":
            usage = self.post("/v1/chat/completions", messages=messages, max_tokens=1, **more)["usage"]
        elif api == "responses":
            usage = self.post("/v1/responses", input=text, max_output_tokens=1, **more)["usage"]
            return usage["input_tokens_details"]["cached_tokens"], usage["input_tokens"]
        else:
            usage = self.post("/v1/messages", messages=messages, max_tokens=1, **more)["usage"]
            return usage["cache_read_input_tokens"], usage["cache_read_input_tokens"] + usage["input_tokens"]
        return usage["prompt_tokens_details"]["cached_tokens"], usage["prompt_tokens"]

    def test_equal_salts_share_and_others_do_not(self):
        for i, api in enumerate(("completions", "chat", "messages", "responses")):
            with self.subTest(api):
                text = f"{i}. {TEXT}"
                self.assertEqual(self.cached(api, text, "a")[0], 0)
                self.assertGreater(self.cached(api, text, "a")[0], 0)
                for other in ("b", "A", "a ", None, ""):
                    self.assertEqual(self.cached(api, text, other)[0], 0, other)
                    if other is None:  # "" is the same as absent
                        self.assertGreater(self.cached(api, text, "")[0], 0)
                        break
                self.assertGreater(self.cached(api, text, "a")[0], 0)

    def test_conversations_share_through_every_api(self):
        text = "x. " + TEXT
        sizes = {self.cached("chat", text)[1]}
        for api in ("messages", "responses", "chat"):
            cached, size = self.cached(api, text, model="second")
            sizes.add(size)
            self.assertGreater(cached, size - 64, api)
        self.assertEqual(len(sizes), 1, "one prompt, whatever the API")

    def test_rendered_is_counted_and_generated(self):
        messages = [{"role": "user", "content": "y. " + TEXT}]
        rendered = self.post("/v1/chat/completions/render", messages=messages, max_tokens=3)
        answer = self.post("/v1/chat/completions", messages=messages, max_tokens=3)
        counted = self.post("/v1/messages/count_tokens", messages=messages)
        self.assertEqual(len(rendered["token_ids"]), answer["usage"]["prompt_tokens"])
        self.assertEqual(counted, {"input_tokens": len(rendered["token_ids"])})
        text = self.post("/detokenize", tokens=rendered["token_ids"])["prompt"]
        self.assertIn(messages[0]["content"], text)
        prompts = self.post("/v1/completions/render", prompt=["a", text])
        self.assertEqual(len(prompts), 2)

    def test_each_name_is_served_and_the_first_shown(self):
        names = [card["id"] for card in json.loads(self.server.request("GET", "/v1/models")[2])["data"]]
        self.assertEqual(names, ["first", "second"])
        answer = self.post("/v1/completions", model="second", prompt="a", max_tokens=1)
        self.assertEqual(answer["model"], "first")
        status, _, text = self.server.request("POST", "/v1/completions", {"model": "third", "prompt": "a"})
        self.assertEqual((status, json.loads(text)["error"]["code"]), (404, "model_not_found"))


if __name__ == "__main__":
    unittest.main()
