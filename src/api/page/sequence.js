// One sequence: what it does, in words and numbers, and its pages as a strip.
import { element, setText } from "./dom.js";
import { bytes, count, percent, seconds, text } from "./format.js";
import { Strip } from "./strip.js";

const kStates = {
  waiting: "waits", reading: "comes back from disk", prefill: "reads its prompt", decode: "answers", put_back: "put back",
};

function doing(s) {
  if (s.state === "prefill") {
    const done = s.layers ? s.layers.done / s.layers.total : s.computed_tokens / s.prompt_tokens;
    return `reads its prompt, ${percent(done)}`;
  }
  if (s.state === "put_back") return "put back until its working set fits";
  if (s.state === "waiting") return `waits for ${text(seconds(s.age_s))}`;
  return kStates[s.state] || s.state;
}

function tokensOf(s) {
  const cached = s.cached_tokens > 0 ? ` (${count(s.cached_tokens)} from the cache)` : "";
  const answer = s.generated_tokens > 0 ? `, answer ${count(s.generated_tokens)}` : "";
  return `prompt ${count(s.prompt_tokens)}${cached}${answer}`;
}

function factsOf(s, tiers) {
  const facts = [];
  if (s.hit_ratio !== null) facts.push(`hits ${percent(s.hit_ratio)}`);
  if (s.working_set_bytes > 0) facts.push(`working set ${text(bytes(s.working_set_bytes))}`);
  if (tiers.host && s.device_bytes > 0) facts.push(`holds ${text(bytes(s.device_bytes))} of the device`);
  if (s.preemptions > 0) facts.push(`preempted ${count(s.preemptions)}×`);
  return facts.join(" · ");
}

function sum(digits) {
  let total = 0;
  for (let i = 0; i < digits.length; ++i) total += digits.charCodeAt(i) - 48;
  return total / 9;
}

function describe(s, tiers) {
  const { strip } = s;
  const about = (digits) => count(Math.min(strip.pages, sum(digits) * strip.pages_a_cell));
  const parts = [`${count(strip.pages)} pages`];
  if (strip.device_known !== "counts") parts.push(`about ${about(strip.device)} on the device`);
  if (tiers.host) parts.push(`about ${about(strip.host)} at home in host memory`);
  if (tiers.disk) parts.push(`about ${about(strip.disk)} on disk only`);
  if (strip.selected_known === "cells") parts.push(`about ${about(strip.selected)} attended to now`);
  return parts.join(", ");
}

// What the picture cannot show, said beside it.
function remark(s) {
  const { strip } = s;
  if (strip.device_known === "counts" && s.state === "decode") {
    return `${count(Math.min(s.rows, strip.pages))} of ${count(strip.pages)} pages fit its frames; which ones, the device decides by itself.`;
  }
  if (strip.selected_known === "all" && s.state === "decode") return "Attends to all its pages.";
  return "";
}

export function sequenceRow() {
  const state = element("span", { class: "doing" });
  const number = element("span", { class: "id" });
  const tokens = element("span", { class: "tokens" });
  const facts = element("p", { class: "facts" });
  const canvas = element("canvas", { role: "img" });
  const note = element("p", { class: "note" });
  const node = element("li", {}, element("p", { class: "head" }, number, state, tokens), element("div", { class: "strip" }, canvas), facts, note);
  const strip = new Strip(canvas);
  return {
    node,
    show(s, { tiers, sequences, page_tokens: pageTokens }, tokensMax) {
      node.dataset.state = s.state;
      setText(number, `№\u2009${s.id}`);
      setText(state, doing(s));
      setText(tokens, tokensOf(s));
      setText(facts, factsOf(s, tiers));
      setText(note, remark(s));
      facts.hidden = facts.textContent === "";
      note.hidden = note.textContent === "";
      const label = describe(s, tiers);
      if (canvas.getAttribute("aria-label") !== label) {
        canvas.setAttribute("aria-label", label);
        canvas.title = label;
      }
      const rowsShare = s.strip.pages > 0 ? Math.min(1, s.rows / s.strip.pages) : 0;
      strip.draw(s.strip, tiers, { share: (s.strip.pages * pageTokens) / tokensMax, rowsShare, among: sequences.length, active: s.state === "decode" });
    },
  };
}
