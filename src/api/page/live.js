// The live view: asks for the server's state while it can be seen, and shows where pages are.
import { byId, element, setText } from "./dom.js";
import { bytes, bytesOf, count, percent, rate, scaled, seconds, short, text } from "./format.js";
import { Spark } from "./spark.js";
import { sequenceRow } from "./sequence.js";
import { Strip } from "./strip.js";

// Figures: label, and from a state { value, unit, more }.
const kNone = { value: "–", unit: "" };

function latency(percentiles) {
  if (!percentiles) return { ...kNone, more: ["not measured yet"] };
  const { value, unit } = seconds(percentiles.p50);
  return { value, unit: `${unit} median`, more: [`p90 ${text(seconds(percentiles.p90))}`, `p99 ${text(seconds(percentiles.p99))}`] };
}

function batch({ prompts, decodes, running, waiting }) {
  const parts = [];
  if (decodes) parts.push(`${decodes} answer${decodes > 1 ? "s" : ""}`);
  if (prompts) parts.push(`${prompts} prompt${prompts > 1 ? "s" : ""}`);
  return { value: count(running), unit: running === 1 ? "sequence" : "sequences", more: [parts.join(", ") || "no step runs", waiting ? `${count(waiting)} waiting` : "nobody waits"] };
}

function hits(rates) {
  const more = ["of pages attended to"];
  if (rates?.hit_ratio === null || rates?.hit_ratio === undefined) return { ...kNone, more };
  const [value, unit] = percent(rates.hit_ratio).split(" ");
  return { value, unit, more };
}

function speed(tokens, more) {
  const { value, unit } = scaled(tokens ?? 0, ["", "k", "M"], 1000);
  return { value, unit: `${unit} tokens/s`.trim(), more: [more] };
}

function computed(rates) {
  const cached = rates?.prefix_hit_ratio;
  return speed(rates?.rows, cached === null || cached === undefined ? "prompts and answers" : `prompts cached: ${percent(cached)}`);
}

const kFigures = [
  { label: "Generated", spark: "ink", value: (s) => s.rates?.generated_tokens, show: (s) => speed(s.rates?.generated_tokens, "all answers") },
  { label: "Computed", spark: "ink", value: (s) => s.rates?.rows, show: (s) => computed(s.rates) },
  { label: "First token", show: (s) => latency(s.latency.ttft_s) },
  { label: "Between tokens", show: (s) => latency(s.latency.itl_s) },
  { label: "In the batch", show: (s) => batch(s.batch) },
  { label: "Hits on the device", show: (s) => hits(s.rates) },
];

function makeFigures(node) {
  return kFigures.map((figure) => {
    const value = element("span", { class: "value" }, "–");
    const unit = element("span", { class: "unit" });
    const spark = figure.spark ? new Spark(figure.spark) : null;
    const more = (spark ? [0] : [0, 1]).map(() => element("p", { class: "more" }));
    node.append(element("div", { class: "figure" }, element("h3", {}, figure.label),
      element("p", { class: "number" }, value, " ", unit), ...more, spark?.node));
    return (state, isTick) => {
      const shown = figure.show(state);
      setText(value, shown.value);
      setText(unit, shown.unit);
      more.forEach((line, i) => setText(line, shown.more[i] || ""));
      if (spark && isTick) spark.push(figure.value(state));
    };
  });
}

// A tier: its bar, the share in use, the share that is only cached.
class Tier {
  constructor(name, label) {
    this.name = name;
    this.used = element("div", { class: "used" });
    this.cached = element("div", { class: "cached" });
    this.mark = element("div", { class: "mark" });
    this.bar = element("div", { class: "gauge", role: "meter", "aria-label": label, "aria-valuemin": "0", "aria-valuemax": "100" }, this.used, this.cached, this.mark);
    this.amount = element("span", { class: "amount" });
    this.note = element("span", { class: `note${name === "device" ? " working" : ""}` });
    this.node = element("div", { class: `tier ${name}` }, element("div", { class: "what" }, element("h4", {}, label), this.note, this.amount), this.bar);
  }

  show(tier, workingSet) {
    this.node.hidden = !tier;
    if (!tier) return;
    const total = Math.max(1, tier.total_bytes);
    const held = tier.used_bytes + tier.cached_bytes;
    this.used.style.width = `${(tier.used_bytes / total) * 100}%`;
    this.cached.style.width = `${(tier.cached_bytes / total) * 100}%`;
    this.bar.setAttribute("aria-valuenow", Math.round((held / total) * 100));
    const amount = bytesOf(held, tier.total_bytes);
    this.bar.setAttribute("aria-valuetext", amount);
    setText(this.amount, amount);
    setText(this.note, this.noteOf(tier, workingSet));
    const marked = workingSet && workingSet.bytes > 0;
    this.mark.hidden = !marked;
    if (marked) this.mark.style.width = `${Math.min(100, (workingSet.bytes / workingSet.limit_bytes) * 100)}%`;
  }

  noteOf(tier, workingSet) {
    if (workingSet) return workingSet.bytes > 0 ? `working sets ${bytesOf(workingSet.bytes, workingSet.limit_bytes)}` : "";
    return tier.cached_bytes > 0 ? `${text(bytes(tier.cached_bytes))} of it cached` : "";
  }
}

// What goes up and down between two tiers.
class Link {
  constructor(tone, up, down) {
    this.up = this.direction("up", up, tone);
    this.down = this.direction("down", down, tone);
    this.node = element("div", { class: "link" }, this.up.node, this.down.node);
  }

  direction(way, label, tone) {
    const value = element("span", { class: "amount" });
    const spark = new Spark(tone);
    const arrow = element("span", { class: "arrow", "aria-hidden": "true" }, way === "up" ? "↑" : "↓");
    return { value, spark, node: element("p", { class: way }, arrow, element("span", { class: "label" }, label), spark.node, value) };
  }

  show(up, down, isTick) {
    for (const [direction, value] of [[this.up, up], [this.down, down]]) {
      setText(direction.value, text(rate(value ?? 0)));
      direction.node.classList.toggle("still", !(value > 0));
      if (isTick) direction.spark.push(value);
    }
  }
}

class Tiers {
  constructor(node) {
    this.device = new Tier("device", "Device");
    this.host = new Tier("host", "Host memory");
    this.disk = new Tier("disk", "Disk");
    this.near = new Link("device", "loaded", "saved");
    this.far = new Link("disk", "read", "written");
    this.none = element("p", { class: "more" }, "This server keeps all pages on the device. With --preset full it has tiers below it.");
    node.append(this.device.node, this.near.node, this.host.node, this.far.node, this.disk.node, this.none);
  }

  show({ tiers, rates, working_set: workingSet }, isTick) {
    this.device.show(tiers.device, workingSet);
    this.host.show(tiers.host, null);
    this.disk.show(tiers.disk, null);
    this.near.node.hidden = !tiers.host;
    this.far.node.hidden = !tiers.disk;
    this.none.hidden = Boolean(tiers.host);
    this.near.show(rates?.load_bytes, rates?.save_bytes, isTick);
    this.far.show(rates?.disk_read_bytes, rates?.disk_write_bytes, isTick);
  }
}

function legend(tiers) {
  const key = (tone, label) => element("span", { class: "key" }, element("span", { class: `swatch ${tone}`, "aria-hidden": "true" }), label);
  return [key("selected", "attended to now"), key("device", "on the device"),
    tiers.host ? key("host", "home in host memory") : null, tiers.disk ? key("disk", "on disk only") : null].filter(Boolean);
}

// Ticks along the common axis: at most five, at round numbers of tokens.
function axisTicks(tokens) {
  let step = 1;
  while (tokens / step > 5) step *= step.toString().startsWith("2") ? 2.5 : 2;
  const ticks = [];
  for (let at = step; at <= tokens * 0.94; at += step) ticks.push(at);
  return ticks;
}

class Sequences {
  constructor() {
    this.list = byId("sequences");
    this.rows = new Map();
    this.emptyStrip = new Strip(byId("empty-strip"));
    this.hasTiers = "";
  }

  show(state) {
    const { sequences, tiers } = state;
    const tokens = Math.max(1, ...sequences.map((s) => s.strip.pages * state.page_tokens));
    const kept = new Set(sequences.map((s) => s.id));
    for (const [id, row] of this.rows) {
      if (kept.has(id)) continue;
      row.node.remove();
      this.rows.delete(id);
    }
    sequences.forEach((sequence, i) => {
      let row = this.rows.get(sequence.id);
      if (!row) this.rows.set(sequence.id, (row = sequenceRow()));
      if (this.list.children[i] !== row.node) this.list.insertBefore(row.node, this.list.children[i] ?? null);
      row.show(sequence, state, tokens);
    });
    this.showAxis(sequences.length > 0 ? tokens : 0);
    this.showLegend(tiers);
    byId("empty").hidden = sequences.length > 0;
    if (sequences.length === 0) this.emptyStrip.draw(null, tiers, { share: 1, rowsShare: 0, among: 1 });
    byId("more").hidden = state.sequences_left_out === 0;
    setText(byId("more"), `and ${count(state.sequences_left_out)} more`);
  }

  showLegend(tiers) {
    const now = `${Boolean(tiers.host)}${Boolean(tiers.disk)}`;
    if (now === this.hasTiers) return;
    this.hasTiers = now;
    byId("legend").replaceChildren(...legend(tiers));
  }

  showAxis(tokens) {
    const axis = byId("axis");
    axis.hidden = tokens === 0;
    if (this.axisTokens === tokens || tokens === 0) return;
    this.axisTokens = tokens;
    axis.replaceChildren(element("span", { class: "sink" }, "sink"), ...axisTicks(tokens).map((at) => {
      const tick = element("span", {}, at >= 1000 ? `${short(at / 1000).replace(/\.?0+$/, "")}k` : count(at));
      tick.style.left = `${(at / tokens) * 100}%`;
      return tick;
    }), element("span", { class: "unit" }, "tokens"));
  }
}

export class LiveView {
  constructor() {
    this.figures = makeFigures(byId("figures"));
    this.tiers = new Tiers(byId("tiers"));
    this.sequences = new Sequences();
    this.lastTick = 0;
    byId("live").dataset.state = "waiting";
  }

  // Charts go on by two values a second, whatever the pace of states.
  show(state) {
    const now = performance.now();
    const isTick = now - this.lastTick >= 480;
    if (isTick) this.lastTick = now;
    byId("live").dataset.state = "shown";
    this.figures.forEach((figure) => figure(state, isTick));
    this.tiers.show(state, isTick);
    this.sequences.show(state);
  }

  lose() {
    if (byId("live").dataset.state === "shown") byId("live").dataset.state = "lost";
  }
}
