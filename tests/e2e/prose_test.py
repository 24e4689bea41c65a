#!/usr/bin/env python3
"""A growing text, in headless Chromium: after every piece the page shows what it makes of the whole text so far.

Texts are drawn from pieces of every kind of markup, whole and cut, some far larger than a part may be; each is shown piece by
piece, every piece in one run, several of them in others, and compared after each with the text shown at once. The script and
the pieces are of this file alone: no model, no server but the one that the page comes from.
"""

import tempfile
import unittest

import browser
import serving

# Draws texts by a seed and grows them; returns the first difference as [shown, whole, text], or the number of comparisons.
GROW = r"""async ([seed, texts, scale]) => {
  const { prose, GrowingProse } = await import("/page/prose.js");
  let state = seed;
  const draw = (below) => { state = (Math.imul(state, 1664525) + 1013904223) >>> 0; return Math.floor((state / 4294967296) * below); };
  const pieces = ["<b>", "</script>", "<img src=x onerror=alert(1)>", "&lt;", "`", "``", "```", "````", "~~~", "```cpp", "```\n", "*", "**", "***", "_", "\n", "\n\n", "\n \n", "\r\n",
    "\n- ", "\n  * ", "\n1. ", "\n 12) ", "\n", "- ", "# ", "\n## ", "\n> ", ">", "\n| a | b |", "|", "\n|--|:-:|\n", "\n---\n", "\n***\n", " ", "\t", "word", "two words ", "a line of words.\n",
    "\ud83d\ude00", "\u2028", "\u0000", "12", ".", "\\|"];
  const long = ["x".repeat(5000), "word ".repeat(1500), "line of code\n".repeat(90), "\n".repeat(70), "\n- item".repeat(90), "\n3. item".repeat(70), "\n\ntext".repeat(70), "\ud83d\ude00".repeat(2500), "`a **b ".repeat(900), "\n| a | b |".repeat(30)];
  let compared = 0;
  for (let t = 0; t < texts; ++t) {
    const grown = document.createElement("div");
    const growing = new GrowingProse(grown);
    let text = "";
    for (let n = 4 + draw(60 * scale); n > 0; --n) {
      let piece = draw(12) === 0 ? long[draw(long.length)] : pieces[draw(pieces.length)];
      while (piece) {
        const size = draw(3) === 0 ? 1 + draw(3000) : piece.length;
        text += piece.slice(0, size);
        growing.append(piece.slice(0, size));
        piece = piece.slice(size);
        if (draw(4) === 0) continue;  // drawn with the next one
        growing.show();
        ++compared;
        const whole = document.createElement("div");
        whole.append(...prose(text));
        const shown = [...grown.childNodes].map((section) => section.innerHTML).join("");
        if (whole.innerHTML !== shown) return [shown, whole.innerHTML, text];
      }
    }
  }
  return compared;
}"""

# What is shown of a text, as markup.
SHOWN = """async (text) => {
  const { prose } = await import("/page/prose.js");
  const node = document.createElement("div");
  node.append(...prose(text));
  return node.innerHTML;
}"""

# The most that is read again, and the most children of a node, while a text grows by a piece so many times.
WORK = """async ([opening, piece, times]) => {
  const { GrowingProse } = await import("/page/prose.js");
  const node = document.createElement("div");
  const growing = new GrowingProse(node);
  growing.append(opening);
  let read = 0;
  for (let i = 0; i < times; ++i) {
    growing.append(piece);
    growing.show();
    read = Math.max(read, growing.rest.length);
  }
  return [read, Math.max(...[node, ...node.querySelectorAll("*")].map((n) => n.childNodes.length))];
}"""


@browser.needed()
class Prose(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.server = cls.enterClassContext(serving.Server(*serving.tiny_model(folder)))
        made = cls.enterClassContext(browser.browser())
        cls.page = browser.Watched(made, cls.server.url).open()

    def test_grows_to_what_the_whole_text_makes(self):
        compared = 0
        for seed, texts, scale in ((1, 400, 1), (2, 400, 1), (3, 30, 6)):
            found = self.page.evaluate(GROW, [seed, texts, scale])
            if isinstance(found, list):
                self.fail("grown:\n{}\nwhole:\n{}\nof {!r}".format(*found))
            compared += found
        self.assertGreater(compared, 10_000)

    def test_shows_each_kind_of_block(self):
        for text, shown in (
            ("a <b>\nc\n\nd", "<p>a &lt;b&gt;\nc</p><p>d</p>"),
            ("# Of *two*\ntext", '<p class="heading">Of <em>two</em></p><p>text</p>'),
            ("- one\n  - two\n3. **three**\n4. four", '<ul><li>one</li><li class="deep1">two</li></ul><ol start="3"><li><strong>three</strong></li><li>four</li></ol>'),
            ("```sh\n# no heading\n\n- `x`\n```\nafter", '<pre tabindex="0" aria-label="Code, sh"><code><span class="part"># no heading\n\n- `x`</span></code></pre><p>after</p>'),
            ("````\n```\n```` \n", '<pre tabindex="0" aria-label="Code"><code><span class="part">```</span></code></pre>'),
            ("| a | `b` |\n|---|:-:|\n| 1 | 2\\|3 |", '<table tabindex="0"><tr><th>a</th><th><code>b</code></th></tr><tr><td>1</td><td>2|3</td></tr></table>'),
            ("1. x\n" * 65 + "- y", "<ol>" + "<li>x</li>" * 64 + '</ol><ol class="more" start="65"><li>x</li></ol><ul><li>y</li></ul>'),
            ("> a\n> b\nc\n***\nd", "<blockquote>a\nb</blockquote><p>c</p><hr><p>d</p>"),
        ):
            self.assertEqual(self.page.evaluate(SHOWN, text), shown)

    def test_looks_at_no_more_than_the_end_again(self):
        for piece in ("word ", "word", "line\n", "- item\n", "| a | b |\n", "> said\n", "\n", "text\n\n", "1. **x\n", "`a **b *c ", "# Of\n", "---\n"):
            for opening in ("", "```\n"):
                read, children = self.page.evaluate(WORK, [opening, piece, 6000])
                self.assertLess(read, 10_000, opening + piece)
                self.assertLess(children, 1000, opening + piece)


if __name__ == "__main__":
    unittest.main()
