// An answer's text as paragraphs, lists, code and emphasis. What models write is text: every piece
// becomes a text node of an element that is made here, so nothing in it can become markup.
import { element } from "./dom.js";

const kInline = /(`+)([^`]|[^`][\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|\*([^\s*](?:[^*\n]*?[^\s*])?)\*/g;

function inline(text) {
  const out = [];
  let end = 0;
  for (const match of text.matchAll(kInline)) {
    out.push(text.slice(end, match.index));
    if (match[2] !== undefined) out.push(element("code", {}, match[2]));
    else if (match[3] !== undefined) out.push(element("strong", {}, match[3]));
    else out.push(element("em", {}, match[4]));
    end = match.index + match[0].length;
  }
  out.push(text.slice(end));
  return out.filter((piece) => piece !== "");
}

const kItem = /^\s*(?:[-*+]|(\d{1,3})[.)])\s+(.*)$/;
const kHeading = /^(#{1,6})\s+(.*)$/;
const kFence = /^\s*(```+|~~~+)\s*(\S*)/;

// Lines from `at` on that belong to one block: { block, next }.
function takeFence(lines, at, fence) {
  let next = at + 1;
  while (next < lines.length && !lines[next].trim().startsWith(fence[1])) ++next;
  const code = element("code", {}, lines.slice(at + 1, next).join("\n"));
  return { block: element("pre", { tabindex: "0", "aria-label": fence[2] ? `Code, ${fence[2]}` : "Code" }, code), next: next + 1 };
}

function takeList(lines, at, first) {
  const list = element(first[1] === undefined ? "ul" : "ol");
  if (first[1] !== undefined) list.start = Number(first[1]);
  let next = at;
  for (let item; next < lines.length && (item = kItem.exec(lines[next])); ++next) {
    list.append(element("li", {}, ...inline(item[2])));
  }
  return { block: list, next };
}

function takeParagraph(lines, at) {
  let next = at;
  const begins = (line) => line.trim() === "" || kItem.test(line) || kHeading.test(line) || kFence.test(line);
  while (next < lines.length && (next === at || !begins(lines[next]))) ++next;
  return { block: element("p", {}, ...inline(lines.slice(at, next).join("\n"))), next };
}

function takeBlock(lines, at) {
  const line = lines[at];
  const fence = kFence.exec(line);
  if (fence) return takeFence(lines, at, fence);
  const heading = kHeading.exec(line);
  if (heading) return { block: element("p", { class: "heading" }, ...inline(heading[2])), next: at + 1 };
  const item = kItem.exec(line);
  if (item) return takeList(lines, at, item);
  return takeParagraph(lines, at);
}

export function prose(text) {
  const lines = text.split("\n");
  const blocks = [];
  for (let at = 0; at < lines.length;) {
    if (lines[at].trim() === "") {
      ++at;
      continue;
    }
    const { block, next } = takeBlock(lines, at);
    blocks.push(block);
    at = next;
  }
  return blocks;
}

// Shows a growing text: finished blocks stay as they are, only the last one is made again.
export class GrowingProse {
  constructor(node) {
    this.node = node;
    this.text = "";
    this.settled = 0;  // characters of the blocks that will not change
    this.open = [];    // nodes of the rest
  }

  append(piece) {
    this.text += piece;
    const rest = this.text.slice(this.settled);
    const cut = lastBreak(rest);
    this.open.forEach((node) => node.remove());
    if (cut > 0) {
      this.node.append(...prose(rest.slice(0, cut)));
      this.settled += cut;
    }
    this.open = prose(rest.slice(cut));
    this.node.append(...this.open);
  }
}

// Behind the last empty line that is outside of code and after which no list goes on.
function lastBreak(text) {
  let fence = null;
  let cut = 0;
  let at = 0;
  for (const line of text.split("\n")) {
    const end = at + line.length + 1;
    const mark = kFence.exec(line);
    if (fence !== null) {
      if (line.trim().startsWith(fence)) fence = null;
    } else if (mark) {
      fence = mark[1];
    } else if (line.trim() === "" && end <= text.length) {
      cut = end;
    }
    at = end;
  }
  return cut;
}
