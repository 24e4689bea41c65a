#!/usr/bin/env python3
"""The page, as people use it, in headless Chromium against a running server: clicks, typing, keys, small screens.

longneedle under little device memory shows that the live view follows a long request through the tiers; what the chat makes of
reasoning, tool calls, markup and errors is shown by scripted answers, in the browser or on a stage before the server. Every test ends with nothing asked of
another origin and no complaint of the browser, but for those that the test is about.
"""

import contextlib
import http.client
import itertools
import json
import unittest

import browser
import serving
import stage

NEEDLES = serving.TOP / "tests/data/needles/needles-8k.jsonl"
SMALL = ["--preset", "full", "--budget", "512", "--max-model-len", "9216", "--device-memory", "80MiB"]
CHAT = "/v1/chat/completions"


# Looks at the one sequence, inside the page from before it begins, until its picture has changed often enough while it answers: what a
# test asks for from outside can be over when the question arrives.
WATCH = """async () => {
  const pictures = new Set();
  const states = new Set();
  const seen = { facts: "", label: "", host: "", loaded: "" };
  const textOf = (selector) => document.querySelector(selector)?.textContent ?? "";
  for (const end = Date.now() + 400000; Date.now() < end; await new Promise((done) => setTimeout(done, 40))) {
    const row = document.querySelector("#sequences li");
    if (!row && states.has("decode")) break;
    if (!row) continue;
    states.add(row.dataset.state);
    if (row.dataset.state !== "decode") continue;
    pictures.add(row.querySelector("canvas").toDataURL());
    const loaded = textOf(".link .up .amount");
    if (!loaded.startsWith("0")) seen.loaded = loaded;
    Object.assign(seen, { facts: row.querySelector(".facts").textContent, label: row.querySelector("canvas").getAttribute("aria-label"), host: textOf(".tier.host .amount") });
    if (pictures.size >= 3 && seen.loaded && seen.facts.includes("working set")) break;
  }
  return { pictures: pictures.size, states: [...states].join(" "), ...seen };
}"""


# Makes the page believe that it is hidden, or seen again; how often it has asked for something until then.
HIDE = """(hidden) => {
  Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
  document.dispatchEvent(new Event("visibilitychange"));
  return asked;
}"""

# Whether the last answer shows what the page makes of the whole text.
AS_A_WHOLE = """async (text) => {
  const { prose } = await import("/page/prose.js");
  const sections = [...document.querySelectorAll(".answer .prose")].at(-1).childNodes;
  const shown = [...sections].map((section) => section.innerHTML).join("");
  const node = document.createElement("div");
  node.append(...prose(text));
  if (shown === node.innerHTML) return "the same";
  const at = [...shown].findIndex((c, i) => c !== node.innerHTML[i]);
  return `at ${at}: ${shown.slice(at - 100, at + 100)} instead of ${node.innerHTML.slice(at - 100, at + 100)}`;
}"""


def document():
    with open(NEEDLES, encoding="utf-8") as lines:
        return json.loads(next(lines))["context"]


def chunks(*deltas, finish="stop"):
    events = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    events.append({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": len(deltas), "total_tokens": 5 + len(deltas)}})
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


class WithPage(unittest.TestCase):
    options = SMALL

    @classmethod
    def setUpClass(cls):
        cls.server = cls.enterClassContext(serving.Server(serving.LONGNEEDLE, *cls.options))
        cls.browser = cls.enterClassContext(browser.browser())

    def open(self, **context):
        return self.open_at(self.server.url, **context)

    def open_at(self, url, **context):
        self.watched = browser.Watched(self.browser, url, **context)
        self.addCleanup(self.watched.context.close)
        page = self.watched.open()
        page.wait_for_selector("body[data-status=serving]")
        return page

    def open_on_stage(self, **context):
        """A page whose chats are answered by the script of self.stage."""
        self.stage = self.enterContext(stage.Stage(self.server))
        return self.open_at(self.stage.url, **context)

    def script(self, page, body, status=200, content_type="text/event-stream"):
        """Answers chats in the browser; returns the bodies that were sent."""
        sent = []

        def answer(route):
            sent.append(route.request.post_data_json)
            route.fulfill(status=status, content_type=content_type, body=body)
        page.route("**" + CHAT, answer)
        return sent

    def wait_for(self, page, test, *arguments):
        """Until the function `test` holds in the page; says what the page shows where it never does."""
        try:
            page.wait_for_function(test, arg=list(arguments))
        except browser.sync_api.TimeoutError:
            self.fail(f"never came true: {test} of {arguments}\nthe page shows:\n{page.inner_text('body')}\nit complained: {self.watched.complaints}")

    def wait_for_answer(self, page, text):
        self.wait_for(page, "([text]) => [...document.querySelectorAll('.answer .body')].at(-1)?.textContent === text", text)

    def ask(self, page, text):
        page.fill("#message", text)
        page.click("#send")

    def check_quiet(self, allowed=()):
        self.assertEqual(self.watched.foreign(), [])
        self.assertEqual([c for c in self.watched.complaints if not any(a in c for a in allowed)], [])


@browser.needed()
class Chat(WithPage):
    def test_text_appears_as_it_is_made_and_stops_when_told(self):
        page = self.open_on_stage()
        self.stage.script = answer = stage.Prompter()
        self.ask(page, "What happened?")
        page.wait_for_selector("#stop:visible")
        self.assertTrue(page.locator("#send").is_hidden())
        said = ""
        for piece in ("And it ", "came to ", "pass that"):
            answer.say(stage.event({"content": piece}))
            said += piece
            self.wait_for_answer(page, said)  # while more is to come
        self.assertFalse(self.stage.left.is_set())
        page.click("#stop")
        page.wait_for_selector(".answer:not([aria-busy]) .facts:has-text('stopped')")
        self.assertTrue(self.stage.left.wait(120), "the request was not ended")
        self.wait_for_answer(page, said)
        self.assertTrue(page.locator("#send").is_visible())
        self.assertTrue(page.locator("#message").evaluate("node => node === document.activeElement"))
        self.stage.script = lambda: [stage.event({"content": "More."}), stage.ending(1)]
        self.ask(page, "And then?")
        self.wait_for_answer(page, "More.")
        self.assertEqual([m["content"] for m in self.stage.sent[1]["messages"]], ["What happened?", said, "And then?"])
        self.check_quiet()

    def test_a_very_long_and_fast_answer_leaves_time_to_stop_it(self):
        page = self.open_on_stage()
        pieces = ["word <b>x</b> of **a text** that `goes on`. "] * 6 + ["\n\n"] + ["- item *one*\n"] * 6 + ["```\n", *["  int x = y;\n"] * 6, "```\n", "one line of it all "]
        text = "".join(pieces)
        told = b"".join(stage.event({"content": piece}) for piece in pieces)
        times = 100_000 // len(pieces)
        self.stage.script = lambda: itertools.chain(itertools.repeat(told, times), [stage.ending(times * len(pieces))])
        self.ask(page, "All of it")
        page.wait_for_selector(".answer:not([aria-busy]) .facts:has-text('tokens/s')")
        self.assertEqual(page.evaluate(AS_A_WHOLE, text * times), "the same")
        self.stage.script = lambda: itertools.repeat(told)  # as fast as the page reads, and without end
        self.ask(page, "And more")
        for length in (100_000, 1_000_000):
            self.wait_for(page, "([length]) => [...document.querySelectorAll('.answer .body')].at(-1).textContent.length > length", length)
        page.click("#stop")
        page.wait_for_selector(".answer:not([aria-busy]) .facts:has-text('stopped')")
        self.assertTrue(self.stage.left.wait(120), "the request was not ended")
        page.click("#new-chat")
        self.check_quiet()

    def test_a_new_chat_ends_the_old_one(self):
        page = self.open_on_stage()
        self.stage.script = answer = stage.Prompter()
        self.ask(page, "One?")
        answer.say(stage.event({"content": "Old."}))
        self.wait_for_answer(page, "Old.")
        page.click("#new-chat")
        self.assertTrue(self.stage.left.wait(120), "the request was not ended")
        page.wait_for_selector("#send:visible")
        self.stage.script = lambda: [stage.event({"content": "New."}), stage.ending(1)]
        self.ask(page, "Two?")
        self.wait_for_answer(page, "New.")
        self.assertEqual([m["content"] for m in self.stage.sent[1]["messages"]], ["Two?"])
        self.assertEqual(page.locator(".turn").count(), 2)
        self.check_quiet()

    def test_an_answer_can_be_copied(self):
        page = self.open(permissions=["clipboard-read", "clipboard-write"])
        self.script(page, chunks({"reasoning_content": "So."}, {"content": "A **bold** one.\n"}))
        self.ask(page, "Say it")
        page.click(".answer button:has-text('Copy')")
        page.wait_for_selector(".answer button:has-text('Copied')")
        self.assertEqual(page.evaluate("navigator.clipboard.readText()"), "A **bold** one.\n")
        self.check_quiet()

    def test_what_models_write_stays_text(self):
        page = self.open()
        hostile = '<img src=x onerror="document.title=1"> **bold** `code <b>`\n\n```html\n<script>alert(1)</script>\n```\n\n1. one\n2. two'
        pieces = [hostile[i:i + 3] for i in range(0, len(hostile), 3)]
        self.script(page, chunks(*({"content": piece} for piece in pieces)))
        self.ask(page, "<u>hi</u>")
        page.wait_for_selector(".answer:not([aria-busy])")
        answer = page.locator(".answer .body")
        self.assertEqual(answer.locator("img, script, b, u").count(), 0)
        self.assertIn('<img src=x onerror="document.title=1">', answer.inner_text())
        self.assertEqual(answer.locator("strong").inner_text(), "bold")
        self.assertEqual(answer.locator("pre").inner_text(), "<script>alert(1)</script>")
        self.assertEqual(answer.locator("li").all_inner_texts(), ["one", "two"])
        self.assertEqual(page.locator(".question .plain").inner_text(), "<u>hi</u>")
        self.check_quiet()

    def test_reasoning_and_tool_calls_are_shown(self):
        page = self.open()
        call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "weather", "arguments": ""}}
        rest = [{"index": 0, "function": {"arguments": part}} for part in ('{"city": ', '"Paris"}')]
        self.script(page, chunks({"reasoning_content": "Think first."}, {"content": "Let me look."}, {"tool_calls": [call]},
                                 *({"tool_calls": [part]} for part in rest), finish="tool_calls"))
        self.ask(page, "What is the weather?")
        page.wait_for_selector(".answer:not([aria-busy])")
        page.click(".reasoning summary")
        self.assertIn("Think first.", page.locator(".reasoning").inner_text())
        self.assertIn("weather", page.locator(".call").inner_text())
        self.assertEqual(page.locator(".call pre").inner_text(), '{"city": "Paris"}')
        self.check_quiet()

    def test_settings_and_history_are_sent(self):
        page = self.open()
        sent = self.script(page, chunks({"content": "Yes."}))
        page.click("#open-settings")
        page.fill("#temperature", "0.3")
        page.fill("#max-tokens", "77")
        page.fill("#system", "Be brief.")
        self.ask(page, "One?")
        page.wait_for_selector(".answer:not([aria-busy])")
        self.ask(page, "Two?")
        page.wait_for_selector(".answer:nth-of-type(4):not([aria-busy])")
        self.assertEqual((sent[1]["temperature"], sent[1]["max_tokens"], sent[1]["stream"]), (0.3, 77, True))
        self.assertEqual([(m["role"], m["content"]) for m in sent[1]["messages"]],
                         [("system", "Be brief."), ("user", "One?"), ("assistant", "Yes."), ("user", "Two?")])
        page.click("#new-chat")
        self.assertEqual(page.locator(".turn").count(), 0)
        self.ask(page, "Three?")
        page.wait_for_selector(".answer:not([aria-busy])")
        self.assertEqual(len(sent[2]["messages"]), 2)

    def test_errors_are_said_and_can_be_tried_again(self):
        page = self.open()
        self.script(page, json.dumps({"error": {"message": "The queue is full."}}), 429, "application/json")
        self.ask(page, "One?")
        failed = page.locator(".failed")
        failed.wait_for()
        self.assertIn("The queue is full.", failed.inner_text())
        page.unroute("**" + CHAT)
        sent = self.script(page, chunks({"content": "Now it works."}))
        failed.get_by_role("button").click()
        page.wait_for_selector(".answer:has-text('Now it works.')")
        self.assertEqual(page.locator(".failed").count(), 0)
        self.assertEqual([m["content"] for m in sent[0]["messages"]], ["One?"])
        self.check_quiet(allowed=["429"])

    def test_only_the_last_question_can_be_sent_again(self):
        page = self.open()
        self.script(page, json.dumps({"error": {"message": "The queue is full."}}), 429, "application/json")
        self.ask(page, "One?")
        page.locator(".failed button").wait_for()
        page.unroute("**" + CHAT)
        self.script(page, chunks({"content": "Yes."}))
        self.ask(page, "Two?")
        page.wait_for_selector(".answer:not([aria-busy]):has-text('Yes.')")
        self.assertEqual(page.locator(".failed").count(), 1)
        self.assertEqual(page.locator(".failed button").count(), 0)
        self.check_quiet(allowed=["429"])

    def test_a_wide_table_scrolls_and_keeps_its_words_whole(self):
        page = self.open()
        cells = " | ".join(["undivided"] * 14)
        self.script(page, chunks({"content": f"| {cells} |\n|{'---|' * 14}\n| {cells} |"}))
        self.ask(page, "A table")
        page.wait_for_selector(".answer:not([aria-busy]) td")
        wide, lines = page.evaluate("""() => {
          const table = document.querySelector(".answer table");
          const range = document.createRange();
          range.selectNodeContents(table.querySelector("td"));
          return [table.scrollWidth > table.clientWidth, range.getClientRects().length];
        }""")
        self.assertEqual((wide, lines), (True, 1))
        self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), 1280)

    def test_an_attached_text_is_sent_before_the_message(self):
        page = self.open()
        sent = self.script(page, chunks({"content": "Read."}))
        page.set_input_files("#file", {"name": "long.txt", "mimeType": "text/plain", "buffer": b"A long text."})
        page.wait_for_selector("#attached:has-text('long.txt')")
        self.ask(page, "What is it?")
        page.wait_for_selector(".answer:not([aria-busy])")
        self.assertEqual(sent[0]["messages"][0]["content"], "A long text.\n\nWhat is it?")


@browser.needed()
class Live(WithPage):
    @contextlib.contextmanager
    def completion(self, prompt, max_tokens):
        """A request that runs until the end of the block, or of its tokens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 1, "ignore_eos": True, "stream": True}
        connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        try:
            yield
        finally:
            connection.close()

    def test_follows_a_long_request_through_the_tiers(self):
        page = self.open()
        page.wait_for_selector("#empty:visible")
        states = []
        page.on("response", lambda r: states.append(r) if r.url.endswith("/spillway/state") else None)
        text = document()
        self.assertGreater(len(text), 10_000)
        page.evaluate(f"() => {{ window.watching = ({WATCH})(); }}")
        with self.completion(text, 1000):
            seen = page.evaluate("watching")
        self.assertIn("prefill decode", seen["states"], seen)
        self.assertGreaterEqual(seen["pictures"], 3, f"the strip does not change: {seen}")
        self.assertRegex(seen["facts"], r"hits [0-9.]+ % · working set [0-9.]+ MiB")
        for words in ("pages", "on the device", "at home in host memory", "attended to now"):
            self.assertIn(words, seen["label"])
        self.assertRegex(seen["host"], r"^[0-9.]+ of [0-9.]+ MiB$")
        self.assertRegex(seen["loaded"], r"^[0-9.]+ [kMG]B/s$", f"no page was loaded: {seen}")
        page.wait_for_selector("#empty:visible")  # the client has left
        strips = [s["strip"] for r in states for s in r.json()["sequences"] if s["state"] == "decode"]
        some = [s for s in strips if s["device_known"] == "cells" and s["selected_known"] == "cells"]
        self.assertTrue(some, "tables were never looked up")
        self.assertTrue(any("0" in s["device"] for s in some), f"all pages were on the device: {some[-1]}")
        # A cell tells in ninths how many of its pages are attended to; one of those in the first is the sink.
        self.assertEqual([s for s in some if int(s["selected"][0]) * s["pages_a_cell"] < 9], [], "the sink is always attended to")
        self.check_quiet()

    def test_a_hidden_page_asks_for_nothing(self):
        self.watched = browser.Watched(self.browser, self.server.url)
        self.addCleanup(self.watched.context.close)
        page = self.watched.page
        page.clock.install()
        page.add_init_script("window.asked = 0; const ask = window.fetch; window.fetch = (...all) => { ++window.asked; return ask(...all); };")
        self.watched.open()
        self.wait_for(page, "() => asked > 3")
        before = page.evaluate(HIDE, True)
        for _ in range(30):
            page.clock.run_for(10_000)
        self.assertEqual(page.evaluate("asked"), before)
        page.evaluate(HIDE, False)
        self.wait_for(page, "([before]) => asked > before", before)

    def test_a_view_opened_during_another_look_does_not_wait(self):
        self.watched = browser.Watched(self.browser, self.server.url, width=400)
        self.addCleanup(self.watched.context.close)
        page = self.watched.page
        page.add_init_script("window.waits = []; const wait = setTimeout; window.setTimeout = (f, ms, ...all) => { waits.push(ms); return wait(f, ms, ...all); };")
        held = []
        page.route("**/ready", lambda route: held.append(route))
        with page.expect_request("**/ready"):
            self.watched.open()
        page.click("#show-live")
        self.assertEqual(page.evaluate("waits"), [])
        held[0].fulfill(status=200, content_type="application/json", body="{}")
        page.wait_for_selector(".figure:visible")
        self.assertLess(page.evaluate("waits[0]"), 1000, "the chat's pace is slow")

    def test_asks_at_most_five_times_a_second_and_not_unseen(self):
        page = self.open()
        times = "performance.getEntriesByType('resource').filter((e) => e.name.endsWith(path)).map((e) => e.startTime)"
        asked = f"([path, count]) => {times}.length >= count"
        self.wait_for(page, asked, "/spillway/state", 12)
        began = page.evaluate(f"(path) => {times}", "/spillway/state")
        for first, sixth in zip(began, began[5:]):  # by the page's clock, whose timers are never early
            self.assertGreaterEqual(sixth - first, 1000, began)
        page.set_viewport_size({"width": 400, "height": 800})  # only the chat is seen
        self.wait_for(page, asked, "/ready", 1)
        before = self.watched.asked_for("/spillway/state")
        self.wait_for(page, asked, "/ready", 2)
        self.assertEqual(self.watched.asked_for("/spillway/state"), before)
        page.click("#show-live")
        self.wait_for(page, asked, "/spillway/state", before + 1)
        self.check_quiet()

@browser.needed()
class Access(WithPage):
    def test_keyboard_alone(self):
        page = self.open_on_stage()
        self.stage.script = lambda: [stage.event({"content": "Yes."}), stage.ending(1)]
        reached = []
        for _ in range(12):
            page.keyboard.press("Tab")
            at = page.evaluate("""() => {
              const node = document.activeElement;
              const shown = node.matches(".file input") ? node.nextElementSibling : node;
              return [node.id || node.textContent.trim().slice(0, 20), getComputedStyle(shown).outlineStyle !== "none"];
            }""")
            self.assertTrue(at[1], f"focus cannot be seen on {at[0]}")
            reached.append(at[0])
            if at[0] == "message":
                break
        self.assertIn("open-settings", reached)
        self.assertEqual(reached[-1], "message", reached)
        page.keyboard.type("Hello")
        page.keyboard.press("Shift+Enter")
        page.keyboard.type("there")
        page.keyboard.press("Enter")
        page.wait_for_selector(".answer:not([aria-busy])")
        self.assertEqual(page.locator(".question .plain").inner_text(), "Hello\nthere")
        self.stage.script = stage.Prompter()  # says nothing
        page.keyboard.type("A long one")
        page.keyboard.press("Enter")
        page.wait_for_selector("#stop:visible")
        page.keyboard.press("Escape")
        page.wait_for_selector(".answer .facts:has-text('stopped')")
        self.assertTrue(self.stage.left.wait(120), "the request was not ended")
        self.check_quiet()

    def test_narrow_screens(self):
        for width in (320, 360, 768):
            page = self.open(width=width, height=740)
            for view in ("#show-live", "#show-chat"):
                page.click(view)
                page.wait_for_timeout(400)
                self.assertLessEqual(page.evaluate("document.documentElement.scrollWidth"), width)
                wide = page.evaluate("""() => [...document.querySelectorAll("main *")].filter((n) => n.checkVisibility()
                  && !n.closest(".hidden, .file input") && n.getBoundingClientRect().right > innerWidth + 1).map((n) => n.className || n.tagName)""")
                self.assertEqual(wide, [], f"{width} px, {view}")
            status = """(text) => { document.getElementById("status-text").textContent = text; return document.documentElement.scrollWidth; }"""
            self.assertLessEqual(page.evaluate(status, "In a step for 1000 s"), width)
            self.assertTrue(page.locator("#message").is_visible())
            self.check_quiet()

    def test_contrast(self):
        for scheme in ("light", "dark"):
            page = self.open(color_scheme=scheme)
            self.script(page, chunks({"reasoning": "So."}, {"content": "Some `code` and **more**."}))
            self.ask(page, "Hello")
            page.wait_for_selector(".answer:not([aria-busy])")
            page.click("#open-settings")
            page.wait_for_selector("#empty:visible")
            found = page.evaluate(browser.CONTRASTS)
            self.assertGreater(len(found), 30)
            weak = [(round(ratio, 2), text) for ratio, text in found if ratio < 4.5]
            self.assertEqual(weak, [], scheme)

    def test_reduced_motion(self):
        page = self.open(reduced_motion="reduce")
        moving = page.evaluate("""() => [...document.querySelectorAll("*")].filter((n) => {
          const s = getComputedStyle(n);
          return s.animationName !== "none" || s.transitionDuration.split(", ").some((d) => parseFloat(d) > 0);
        }).length""")
        self.assertEqual(moving, 0)


@browser.needed()
class Key(WithPage):
    options = ["--api-key", "secret"]

    def test_is_asked_for_until_it_is_right(self):
        self.watched = browser.Watched(self.browser, self.server.url)
        self.addCleanup(self.watched.context.close)
        page = self.watched.open()
        page.wait_for_selector("#key-dialog[open]")
        for _ in range(3):  # browsers let pages keep dialogs open once only
            page.keyboard.press("Escape")
        self.assertTrue(page.locator("#key-dialog").is_visible(), "nothing works without a key")
        page.fill("#key", "guess")
        page.keyboard.press("Enter")
        page.wait_for_selector("#key-wrong:visible")
        page.fill("#key", "secret")
        page.click("#key-dialog button")
        page.wait_for_selector("body[data-status=serving]")
        page.wait_for_selector(".figure:visible")
        page.reload()
        page.wait_for_selector("body[data-status=serving]")
        self.assertFalse(page.locator("#key-dialog").is_visible(), "the tab keeps it")
        self.assertEqual(page.evaluate("Object.values(localStorage).join().includes('secret')"), False)
        self.check_quiet(allowed=["401"])


@browser.needed()
class Reconnect(unittest.TestCase):
    def test_goes_on_when_the_server_comes_back(self):
        with browser.browser() as made, contextlib.ExitStack() as stack:
            with serving.Server(serving.LONGNEEDLE, *SMALL) as server:
                watched = browser.Watched(made, server.url)
                page = watched.open()
                page.wait_for_selector("body[data-status=serving]")
            page.wait_for_selector("body[data-status=lost]")
            self.assertIn("cannot be reached", page.locator("#notice").inner_text())
            stack.enter_context(serving.Server(serving.LONGNEEDLE, *SMALL, port=server.port))
            page.wait_for_selector("body[data-status=serving]")
            self.assertTrue(page.locator("#notice").is_hidden())
            self.assertEqual(watched.foreign(), [])
            watched.context.close()


if __name__ == "__main__":
    unittest.main()
