// The conversation: sends it with fetch, shows the answer as it comes, can be stopped.
import { byId, element, setText } from "./dom.js";
import { count, seconds, short, text } from "./format.js";
import { GrowingProse } from "./prose.js";
import { events, request, ServerError } from "./server.js";
import { settings } from "./settings.js";

let messages = [];       // what is sent: { role, content }; of a new chat another one
let attachment = null;   // { name, text }
let running = null;      // AbortController of the answer that is being made
let modelOf = () => null;

const log = byId("log");
const input = byId("message");

const isAtEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 48;
function keepAtEnd(change) {
  const follows = isAtEnd();
  change();
  if (follows) log.scrollTop = log.scrollHeight;
}

// Draws what came at most once a frame, and so that drawing takes a fifth of the time at most: a fast and long answer leaves time to
// scroll and to press Stop. Nothing is drawn while nobody can see it.
class Pace {
  constructor(draw) {
    this.draw = draw;
    this.pause = 0;
    this.isDue = false;
  }

  ask() {
    if (this.isDue) return;
    this.isDue = true;
    setTimeout(() => requestAnimationFrame(() => this.now()), this.pause);
  }

  now() {
    this.isDue = false;
    const began = performance.now();
    this.draw();
    this.pause = 4 * (performance.now() - began);
  }
}

// Lets the browser do other things once in kTurn, however fast an answer comes.
const kTurn = 10;  // ms
const channel = new MessageChannel();
class Turns {
  constructor() {
    this.began = performance.now();
  }

  async rest() {
    if (performance.now() - this.began < kTurn) return;
    await new Promise((done) => {
      channel.port1.onmessage = done;  // timers would wait for seconds in a hidden tab
      channel.port2.postMessage(null);
    });
    this.began = performance.now();
  }
}

// A call of a tool, as it is made.
class Call {
  constructor() {
    this.name = element("span");
    this.text = document.createTextNode("");
    this.rest = "";
    this.node = element("div", { class: "call" }, element("p", {}, "Calls ", this.name),
      element("pre", { tabindex: "0", "aria-label": "Arguments" }, element("code", {}, this.text)));
  }

  take(part) {
    if (part?.name) this.name.append(part.name);
    this.rest += part?.arguments ?? "";
  }

  show() {
    if (this.rest) this.text.appendData(this.rest);
    this.rest = "";
  }
}

function copyButton(content) {
  const button = element("button", { type: "button", class: "quiet", onclick: async () => {
    try {
      await navigator.clipboard.writeText(content);
      setText(button, "Copied");
    } catch {
      setText(button, "Not allowed");
    }
  } }, "Copy");
  return button;
}

// One answer on the page. take() notes what came, show() draws it.
class Answer {
  constructor() {
    this.body = element("div", { class: "body" });
    this.facts = element("p", { class: "facts" }, element("span", { class: "thinking" }, "Waiting for the first token"));
    this.foot = element("div", { class: "foot" }, this.facts);
    this.node = element("article", { class: "turn answer", "aria-label": "Answer", "aria-busy": "true" }, this.body, this.foot);
    this.prose = null;
    this.reasoning = null;
    this.calls = new Map();
    this.content = "";
    this.started = performance.now();
    this.firstToken = null;
    this.usage = null;
    this.reason = null;
  }

  take(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (!choice) return;
    const delta = choice.delta || {};
    const thought = delta.reasoning ?? delta.reasoning_content;
    if (thought) this.addReasoning(thought);
    if (delta.content) this.addContent(delta.content);
    for (const call of delta.tool_calls || []) this.addCall(call);
    if (choice.finish_reason) this.reason = choice.finish_reason;
  }

  noteToken() {
    if (this.firstToken !== null) return;
    this.firstToken = performance.now();
    this.facts.replaceChildren();
  }

  show() {
    this.reasoning?.prose.show();
    this.prose?.show();
    for (const call of this.calls.values()) call.show();
  }

  addContent(piece) {
    this.noteToken();
    this.content += piece;
    if (!this.prose) {
      const node = element("div", { class: "prose" });
      this.body.append(node);
      this.prose = new GrowingProse(node);
      if (this.reasoning) {
        this.reasoning.box.open = false;
        this.reasoning.prose.end();
      }
    }
    this.prose.append(piece);
  }

  addReasoning(piece) {
    this.noteToken();
    if (!this.reasoning) {
      const node = element("div", { class: "prose" });
      const box = element("details", { class: "reasoning", open: true }, element("summary", {}, "Reasoning"), node);
      this.body.append(box);
      this.reasoning = { box, prose: new GrowingProse(node) };
    }
    this.reasoning.prose.append(piece);
  }

  addCall(call) {
    this.noteToken();
    let shown = this.calls.get(call.index);
    if (!shown) {
      shown = new Call();
      this.calls.set(call.index, shown);
      this.body.append(shown.node);
    }
    shown.take(call.function);
  }

  end(note) {
    this.show();
    this.reasoning?.prose.end();
    this.prose?.end();
    this.node.removeAttribute("aria-busy");
    const parts = [];
    if (note) parts.push(note);
    if (this.reason === "length") parts.push("cut at its token limit");
    if (this.usage) {
      const made = this.usage.completion_tokens;
      parts.push(`${count(made)} tokens`);
      const duration = (performance.now() - (this.firstToken ?? this.started)) / 1000;
      const rate = (made - 1) / duration;
      if (made > 1 && duration > 0) parts.push(`${rate < 1000 ? short(rate) : count(rate)} tokens/s`);
    }
    if (this.firstToken !== null) {
      parts.push(`first token after ${text(seconds((this.firstToken - this.started) / 1000))}`);
    }
    const cached = this.usage?.prompt_tokens_details?.cached_tokens;
    if (this.usage) {
      parts.push(`prompt ${count(this.usage.prompt_tokens)} tokens${cached ? `, ${count(cached)} from the cache` : ""}`);
    }
    setText(this.facts, parts.join(" · "));
    if (this.content && navigator.clipboard) this.foot.append(copyButton(this.content));
  }
}

function showQuestion(content, file) {
  const node = element("article", { class: "turn question", "aria-label": "You" });
  if (file) node.append(element("p", { class: "chip" }, `${file.name}, ${count(file.text.length)} characters`));
  if (content) node.append(element("div", { class: "plain" }, content));
  log.append(node);
}

function requestBody() {
  const { temperature, maxTokens, system } = settings();
  const body = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
    temperature,
  };
  if (modelOf()) body.model = modelOf();
  if (maxTokens) body.max_tokens = maxTokens;
  return JSON.stringify(body);
}

async function stream(answer, signal) {
  const pace = new Pace(() => keepAtEnd(() => answer.show()));
  const turns = new Turns();
  const response = await request("/v1/chat/completions", {
    method: "POST", body: requestBody(), headers: { "content-type": "application/json" }, signal });
  for await (const data of events(response)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(0, chunk.error.message);
    answer.take(chunk);
    pace.ask();
    await turns.rest();
  }
  if (answer.reason === null) throw new ServerError(0, "The connection ended before the answer did.");
}

const sayWhy = (error) => (error instanceof ServerError ? error.message : "The server cannot be reached.");

function setRunning(controller) {
  running = controller;
  byId("stop").hidden = controller === null;
  byId("send").hidden = controller !== null;
  byId("new-chat").hidden = messages.length === 0;
}

async function answerIt() {
  const answer = new Answer();
  const conversation = messages;
  log.append(answer.node);
  log.scrollTop = log.scrollHeight;
  const controller = new AbortController();
  setRunning(controller);
  let note = null;
  try {
    await stream(answer, controller.signal);
    setText(byId("announce"), "The answer is complete.");
  } catch (error) {
    note = controller.signal.aborted ? "stopped" : null;
    if (note === null) showError(answer, sayWhy(error));
    setText(byId("announce"), note ? "Stopped." : "The answer failed.");
  }
  conversation.push({ role: "assistant", content: answer.content });
  keepAtEnd(() => answer.end(note));
  const hadFocus = document.activeElement === byId("stop");
  setRunning(null);
  if (hadFocus) input.focus();
}

// The question stays, so that it can be sent again.
function showError(answer, why) {
  const again = element("button", { type: "button", class: "quiet", onclick: () => {
    if (running) return;
    answer.node.remove();
    while (messages.length > 0 && messages.at(-1).role !== "user") messages.pop();
    answerIt();
  } }, "Send again");
  answer.body.append(element("p", { class: "failed", role: "alert" }, element("span", {}, why), again));
}

function send() {
  const content = input.value.trim();
  if (running || (!content && !attachment)) return;
  byId("welcome").hidden = true;
  log.querySelectorAll(".failed button").forEach((again) => again.remove());  // they are for the last question
  showQuestion(content, attachment);
  messages.push({ role: "user", content: attachment ? `${attachment.text}\n\n${content}` : content });
  input.value = "";
  resize();
  setAttachment(null);
  answerIt();
}

function resize() {
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight + 2, 200)}px`;
}

function setAttachment(file) {
  attachment = file;
  byId("attached").hidden = file === null;
  if (file) setText(byId("attached-text"), `${file.name}, ${count(file.text.length)} characters`);
  byId("file").value = "";
}

function startOver() {
  running?.abort();
  messages = [];
  log.querySelectorAll(".turn").forEach((turn) => turn.remove());
  byId("welcome").hidden = false;
  byId("new-chat").hidden = true;
  input.focus();
}

// `model` gives the name to ask for, or null.
export function startChat(model) {
  modelOf = model;
  byId("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      send();
    }
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape" && !document.querySelector("dialog[open]")) running?.abort();
  });
  input.addEventListener("input", resize);
  byId("stop").addEventListener("click", () => running?.abort());
  byId("new-chat").addEventListener("click", startOver);
  byId("detach").addEventListener("click", () => setAttachment(null));
  byId("file").addEventListener("change", async (event) => {
    const file = event.target.files[0];
    if (file) setAttachment({ name: file.name, text: await file.text() });
    input.focus();
  });
  for (const starter of byId("starters").querySelectorAll("button")) {
    starter.addEventListener("click", () => {
      input.value = starter.textContent;
      send();
    });
  }
}
