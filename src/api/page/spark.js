// A small chart of the last minute: an area under a line, drawn anew as values come.
import { svg } from "./dom.js";

const kPoints = 120, kWidth = 120, kHeight = 26;

export class Spark {
  // `tone`: a class that gives the colour.
  constructor(tone) {
    this.values = [];
    this.area = svg("path", { class: "area" });
    this.line = svg("path", { class: "line" });
    const ground = svg("path", { class: "ground", d: `M0 ${kHeight - 0.5}H${kWidth}` });
    this.node = svg("svg", { class: `spark ${tone}`, viewBox: `0 0 ${kWidth} ${kHeight}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      ground, this.area, this.line);
  }

  push(value) {
    this.values.push(value ?? 0);
    if (this.values.length > kPoints) this.values.shift();
    const top = Math.max(...this.values, Number.MIN_VALUE);
    const left = kPoints - this.values.length;
    const points = this.values.map((v, i) => {
      const x = ((left + i) / (kPoints - 1)) * kWidth;
      return `${x.toFixed(1)} ${(kHeight - 1 - (v / top) * (kHeight - 3)).toFixed(1)}`;
    });
    const first = ((left / (kPoints - 1)) * kWidth).toFixed(1);
    this.line.setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
    this.area.setAttribute("d", points.length > 1 ? `M${first} ${kHeight}L${points.join("L")}L${kWidth} ${kHeight}Z` : "");
  }
}
