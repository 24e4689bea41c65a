"""Headless Chromium for tests of the page: Debian's browser, driven by playwright from the package index."""

import contextlib
import os
import shutil
import unittest

try:
    from playwright import sync_api
except ImportError:
    sync_api = None

CHROMIUM = shutil.which("chromium")


def needed():
    return unittest.skipIf(sync_api is None or CHROMIUM is None,
                           "needs Debian's chromium (tools/setup) and the Python package playwright (tests/e2e/requirements.txt)")


@contextlib.contextmanager
def browser():
    with sync_api.sync_playwright() as play:
        # Tests run as root in containers, where the browser's own sandbox cannot be had.
        made = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"] if os.geteuid() == 0 else [])
        try:
            yield made
        finally:
            made.close()


class Watched:
    """A page in a context of its own that keeps what it asked for and complained about."""

    def __init__(self, made, url, width=1280, height=800, **context):
        self.context = made.new_context(viewport={"width": width, "height": height}, **context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(180_000)  # of a slow machine with other work
        self.url = url
        self.requests, self.complaints = [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text) if message.type in ("error", "warning") else None)
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def open(self):
        self.page.goto(self.url + "/")
        return self.page

    def asked_for(self, path):
        return sum(url == self.url + path for url in self.requests)

    def foreign(self):
        return [url for url in self.requests if not url.startswith((self.url + "/", "data:"))]


# (ratio, text) of every visible piece of text, as WCAG 2 counts contrast: its colour, opacities of all elements above it applied,
# against the first opaque ground below it.
CONTRASTS = """() => {
  const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (colour) => {
    probe.clearRect(0, 0, 1, 1);
    probe.fillStyle = colour;
    probe.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = probe.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, ground, alpha) => top.slice(0, 3).map((v, i) => v * alpha + ground[i] * (1 - alpha));
  const light = (rgb) => {
    const [r, g, b] = rgb.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (node) => {
    for (let at = node; at; at = at.parentElement) {
      const colour = rgba(getComputedStyle(at).backgroundColor);
      if (colour[3] > 0.99) return colour.slice(0, 3);
      if (colour[3] > 0) return over(colour, ground(at.parentElement), colour[3]);
    }
    return rgba(getComputedStyle(document.documentElement).backgroundColor).slice(0, 3);
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].filter((c) => c.nodeType === 3).map((c) => c.textContent.trim()).join(" ").trim();
    const text = own || node.placeholder || node.value;
    if (!text || !node.checkVisibility({ visibilityProperty: true }) || node.closest(".hidden") || node.tagName === "OPTION") continue;
    const below = ground(node);
    const style = own || !node.placeholder || node.value ? getComputedStyle(node) : getComputedStyle(node, "::placeholder");
    let alpha = rgba(style.color)[3];
    for (let at = node; at; at = at.parentElement) alpha *= Number(getComputedStyle(at).opacity);
    const lights = [light(over(rgba(style.color), below, alpha)), light(below)].sort((a, b) => b - a);
    found.push([(lights[0] + 0.05) / (lights[1] + 0.05), String(text).slice(0, 40)]);
  }
  return found;
}"""
