// An answer's text as paragraphs, lists, tables, code and emphasis. What models write is text: every
// piece becomes a text node of an element that is made here, so nothing in it can become markup.
//
// Text that grows is drawn again and again, so the work of a drawing is bounded: a text is cut into
// parts of a bounded size (a paragraph, an item, a row, some lines of code), each of which depends on
// the kind of block that it stands in and on its own lines, and on nothing before.
import { element } from "./dom.js";

const kPartMax = 4096;      // characters of a part, about
const kCodeLines = 64;      // of a part
const kBlankLinesMax = 500; // of a part of code that ends with them
const kRowsMax = 64;        // of a list or table in one element
const kBlocksMax = 64;      // of a section

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

const kFence = /^\s*(```+|~~~+)\s*(?:([^`\s][^`]*))?$/;
const kHeading = /^(#{1,6})\s+(.*)$/s;
const kRule = /^\s*([-*_])(?:\s*\1){2,}\s*$/;
const kItem = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+(.*)$/s;
const kRow = /^\s*\|(.*)\|\s*$/s;
const kRowsRule = /^[\s:|]*-[\s:|-]*$/;
const kQuote = /^\s*>\s?(.*)$/s;
const kBlocks = [kFence, kHeading, kRule, kItem, kRow, kQuote];

const closes = (line, fence) => {
  const mark = line.trim();
  return mark.startsWith(fence) && mark === fence[0].repeat(mark.length);
};

// Lines as { text, begin, goesOn: of a line that was too long and cut before this }.
function linesOf(text, goesOn) {
  const lines = [];
  let begin = 0;
  for (const line of text.split("\n")) {
    let from = 0;
    while (line.length - from > kPartMax) {
      const space = line.slice(from, from + kPartMax).lastIndexOf(" ");
      const whole = /[\ud800-\udbff]/.test(line[from + kPartMax - 1]) ? kPartMax - 1 : kPartMax;  // characters, not halves of them
      const to = from + (space >= 0 ? space + 1 : whole);
      lines.push({ text: line.slice(from, to), begin: begin + from, goesOn });
      from = to;
      goesOn = true;
    }
    lines.push({ text: line.slice(from), begin: begin + from, goesOn });
    begin += line.length + 1;
    goesOn = false;
  }
  return lines;
}

// Makes blocks of lines: { node, inner, parts }, of which an empty line has no node. A part is { nodes, begin, joins: a block that
// was there before it; open, goesOn: what the reader was in }, and where one begins another reader can go on.
class Reader {
  constructor(text, { open, joins, goesOn }) {
    this.lines = linesOf(text, goesOn);
    this.blocks = joins ? [{ joins, parts: [] }] : [];
    this.at = 0;
    this.open = open;  // the block that the line before belongs to, { fence } or { tag } and of lists and tables { start, count }; or null
    while (this.at < this.lines.length) this.take();
  }

  block(open, node, inner = node) {
    this.open = open;
    this.blocks.push({ node, inner, joins: false, parts: [] });
  }

  // A part of the newest block, of so many lines from here on.
  part(nodes, lines = 1) {
    const block = this.blocks.at(-1);
    const { begin, goesOn } = this.lines[this.at];
    block.parts.push({ nodes, begin, goesOn, joins: block.joins || block.parts.length > 0, open: this.before });
    block.inner?.append(...nodes);
    this.at += lines;
  }

  take() {
    const { text, goesOn } = this.lines[this.at];
    this.before = this.open;
    if (this.open?.fence) return this.takeCode();
    if (goesOn) return this.takeText("p", "more");
    if (text.trim() === "") return this.takeBlank();
    let match;
    if ((match = kFence.exec(text))) return this.takeFence(match);
    if ((match = kHeading.exec(text))) return this.takeLone(element("p", { class: "heading" }), inline(match[2]));
    if (kRule.test(text)) return this.takeLone(element("hr"), []);
    if ((match = kItem.exec(text))) return this.takeItem(match);
    if ((match = kRow.exec(text))) return this.takeRow(match[1]);
    return this.takeText(kQuote.test(text) ? "blockquote" : "p");
  }

  takeBlank() {
    this.block(null);
    this.part([]);
  }

  takeLone(node, nodes) {
    this.block(null, node);
    this.part(nodes);
  }

  // Lines up to one that begins something else, or to a part's size.
  takeText(tag, more = this.open?.tag === tag ? "more" : null) {
    const isQuote = tag === "blockquote";
    const ends = (text) => text.trim() === "" || (isQuote ? !kQuote.test(text) : kBlocks.some((kind) => kind.test(text)));
    const texts = [];
    for (let size = 0, next = this.at; next < this.lines.length; ++next) {
      const { text, goesOn } = this.lines[next];
      size += text.length + 1;
      if (texts.length > 0 && (goesOn || size > kPartMax || ends(text))) break;
      texts.push(isQuote ? kQuote.exec(text)[1] : text);
    }
    this.block({ tag }, element(tag, { class: more }));
    this.part(inline(texts.join("\n")), texts.length);
  }

  takeFence([, fence, about]) {
    const code = element("code");
    this.block({ fence }, element("pre", { tabindex: "0", "aria-label": about ? `Code, ${about.split(/\s/)[0]}` : "Code" }, code), code);
    this.part([]);
  }

  // Blocks, since a browser lays out each of them by itself. A part does not end with an empty line if it can: it would not be seen.
  takeCode() {
    const texts = [];
    let size = 0;
    for (let next = this.at; next < this.lines.length; ++next) {
      const { text, goesOn } = this.lines[next];
      if (!goesOn && closes(text, this.open.fence)) break;
      const isFull = texts.length >= kCodeLines || size + text.length > kPartMax;
      if (texts.length > 0 && isFull && (texts.at(-1).trim() !== "" || texts.length >= kBlankLinesMax)) break;
      texts.push(text);
      size += text.length + 1;
    }
    if (texts.length > 0) this.part([element("span", { class: "part" }, texts.join("\n"))], texts.length);
    else {
      this.open = null;
      ++this.at;
    }
  }

  takeItem([, indent, number, text]) {
    const tag = number === undefined ? "ul" : "ol";
    this.openRows(tag, number === undefined ? 1 : Number(number));
    const depth = Math.min(3, Math.floor(indent.replaceAll("\t", "    ").length / 2));
    this.row(element("li", { class: depth > 0 ? `deep${depth}` : null }, ...inline(text)));
  }

  takeRow(cells) {
    const isFirst = this.open?.tag !== "table";
    if (!isFirst && kRowsRule.test(cells)) return this.part([]);
    this.openRows("table", 1);
    const made = cells.split(/(?<!\\)\|/).map((cell) => element(isFirst ? "th" : "td", {}, ...inline(cell.trim().replaceAll("\\|", "|"))));
    this.row(element("tr", {}, ...made));
  }

  // A list or table is there to take one more; a long one goes on in another.
  openRows(tag, number) {
    const goesOn = this.open?.tag === tag;
    if (goesOn && this.open.count < kRowsMax) return;
    const start = goesOn ? this.open.start + this.open.count : number;
    this.block({ tag, start, count: 0 }, element(tag, { class: goesOn ? "more" : null, start: tag === "ol" && start !== 1 ? start : null, tabindex: tag === "table" ? "0" : null }));
  }

  row(node) {
    this.part([node]);
    this.open = { ...this.open, count: this.open.count + 1 };
  }
}

const kStart = { open: null, joins: false, goesOn: false };

export function prose(text) {
  return new Reader(text, kStart).blocks.flatMap((block) => block.node ?? []);
}

// Shows a growing text in sections of `node`: what cannot change any more stays as it is, the rest grows in place,
// so that what is selected or scrolled in it stays so. append() only notes; show() draws what was noted.
// Sections and the other bounds keep a browser from looking at everything when something is added.
export class GrowingProse {
  constructor(node) {
    this.node = node;
    this.section = null;   // the last one
    this.rest = "";        // text of parts that may still change
    this.start = kStart;   // where it begins
    this.blocks = 0;       // of the section before it; one that it joins is not counted
    this.nodes = 0;        // of the block that it joins, before it
    this.addSection();
  }

  append(piece) {
    this.rest += piece;
  }

  show() {
    const { blocks, lines } = new Reader(this.rest, this.start);
    let at = this.blocks;
    if (this.start.joins) {
      const joined = this.section.childNodes[at++];
      grow(joined.tagName === "PRE" ? joined.firstChild : joined, blocks[0].parts.flatMap((part) => part.nodes), this.nodes);
    }
    grow(this.section, blocks.flatMap((block) => block.node ?? []), at);
    this.settle(blocks, lines.at(-1).begin);
    if (this.blocks >= kBlocksMax) this.addSection();
  }

  end() {
    this.show();
    this.section.removeAttribute("class");
  }

  // The new section takes what may still change.
  addSection() {
    const rest = this.section ? [...this.section.childNodes].slice(this.blocks) : [];
    this.section?.removeAttribute("class");
    this.section = element("div", { class: "growing" }, ...rest);
    this.node.append(this.section);
    this.blocks = 0;
  }

  // The text begins with the last part that begins with a whole line: those before it cannot change.
  settle(blocks, lastLine) {
    const b = blocks.findLastIndex((block) => block.parts.length > 0 && block.parts[0].begin < lastLine);
    if (b < 0) return;
    const { parts, joins } = blocks[b];
    const p = parts.findLastIndex((part) => part.begin < lastLine);
    const nodesBefore = joins ? this.nodes : 0;
    this.nodes = parts[p].joins ? parts.slice(0, p).reduce((sum, part) => sum + part.nodes.length, nodesBefore) : 0;
    this.blocks += blocks.slice(0, b).filter((block) => block.node || block.joins).length;
    this.start = parts[p];
    this.rest = this.rest.slice(parts[p].begin);
  }
}

// Makes the children of `node` from `at` on like `made`, changing only what differs.
function grow(node, made, at = 0) {
  for (const child of made) {
    const old = node.childNodes[at++];
    if (!old) node.append(child);
    else if (old.nodeType === Node.TEXT_NODE && child.nodeType === Node.TEXT_NODE) growText(old, child.data);
    else if (old.cloneNode().isEqualNode(child.cloneNode())) grow(old, [...child.childNodes]);
    else old.replaceWith(child);
  }
  while (node.childNodes.length > at) node.lastChild.remove();
}

function growText(node, text) {
  if (node.data === text) return;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}
