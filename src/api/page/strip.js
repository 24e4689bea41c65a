// A sequence's pages as a picture: along its context from left to right, one lane a tier, and above
// them what the last token attended to. What was attended to shortly before glows on for a moment,
// which is the working set made visible; not where motion is unwanted.

const kSelected = 7, kLane = 11, kDiskLane = 7, kGap = 3;  // heights, CSS pixels
const kFaint = 0.3;
const kFew = 4, kFewScale = 1.6;                            // so few sequences get more room
const kGlow = [1, 0.5, 0.3, 0.18, 0.1];                     // of the last pictures

export const reducedMotion = matchMedia("(prefers-reduced-motion: reduce)");

let palette = null;
export function colours() {
  if (palette) return palette;
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(`--${name}`).trim();
  palette = { device: of("device"), host: of("host"), disk: of("disk"), selected: of("selected"), track: of("track"), ink: of("muted") };
  return palette;
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { palette = null; });

// Lanes of the tiers that there are: { name, top, height }.
function lanesOf(tiers, size) {
  const lanes = [{ name: "device", height: kLane * size }];
  if (tiers.host) lanes.push({ name: "host", height: kLane * size });
  if (tiers.disk) lanes.push({ name: "disk", height: kDiskLane * size });
  let top = kSelected * size + kGap;
  for (const lane of lanes) {
    lane.top = top;
    top += lane.height + kGap;
  }
  return { lanes, height: top - kGap };
}

export class Strip {
  constructor(canvas) {
    this.canvas = canvas;
    this.past = [];  // selections, the youngest first
  }

  // `share`: how long the context is beside the longest one shown, (0, 1]. `rowsShare`: pages that
  // its rows of frames can hold. `among`: sequences shown. `active`: has rows in this step; what others
  // attended to last is drawn faintly.
  draw(strip, tiers, { share, rowsShare, among, active }) {
    const size = among <= kFew ? kFewScale : 1;
    const { lanes, height } = lanesOf(tiers, size);
    const scale = window.devicePixelRatio || 1;
    const full = this.canvas.parentElement.clientWidth;
    if (full === 0) return;
    const width = Math.max(Math.min(full, 12), Math.round(full * share));
    this.resize(width, height, scale);
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    const colour = colours();
    for (const lane of lanes) {
      context.globalAlpha = 1;
      context.fillStyle = colour.track;
      this.bar(context, 0, this.canvas.width, lane, scale);
    }
    if (!strip) return;
    for (const lane of lanes) this.lane(context, strip[lane.name], lane, colour[lane.name], scale);
    if (strip.device_known === "counts") this.hatch(context, lanes[0], colour.device, rowsShare, scale);
    this.selection(context, strip.selected, { height: kSelected * size, strength: active ? 1 : kFaint }, colour.selected, scale);
    if (strip.selected_known === "cells") this.sink(context, height, colour.ink, scale);
  }

  // The page that is always attended to: marked along its edge, through all lanes.
  sink(context, height, colour, scale) {
    context.fillStyle = colour;
    context.fillRect(0, 0, Math.max(1, Math.round(1.5 * scale)), Math.round(height * scale));
  }

  resize(width, height, scale) {
    const pixels = [Math.round(width * scale), Math.round(height * scale)];
    if (this.canvas.width === pixels[0] && this.canvas.height === pixels[1]) return;
    [this.canvas.width, this.canvas.height] = pixels;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  bar(context, left, right, { top, height }, scale) {
    context.fillRect(left, Math.round(top * scale), right - left, Math.round(height * scale));
  }

  // Left and right of a cell in device pixels: whole ones, so that edges are sharp.
  edges(cell, cells, scale) {
    const width = this.canvas.width;
    const left = Math.floor((cell * width) / cells);
    const right = Math.floor(((cell + 1) * width) / cells);
    const gap = width / cells >= 4 * scale ? Math.max(1, Math.round(scale)) : 0;
    return [left, Math.max(left + 1, right - gap)];
  }

  lane(context, digits, lane, colour, scale) {
    context.fillStyle = colour;
    for (let cell = 0; cell < digits.length; ++cell) {
      const share = digits.charCodeAt(cell) - 48;
      if (share === 0) continue;
      context.globalAlpha = 0.2 + (0.8 * share) / 9;
      this.bar(context, ...this.edges(cell, digits.length, scale), lane, scale);
    }
    context.globalAlpha = 1;
  }

  // Of a device that alone knows which pages it holds: how many they are, spread over the lane.
  hatch(context, { top, height }, colour, share, scale) {
    context.strokeStyle = colour;
    context.globalAlpha = Math.min(1, 0.25 + 0.75 * share);
    context.lineWidth = Math.max(1, scale);
    context.save();
    context.beginPath();
    context.rect(0, top * scale, this.canvas.width, height * scale);
    context.clip();
    context.beginPath();
    for (let x = -height * scale; x < this.canvas.width; x += 5 * scale) {
      context.moveTo(x, (top + height) * scale);
      context.lineTo(x + height * scale, top * scale);
    }
    context.stroke();
    context.restore();
    context.globalAlpha = 1;
  }

  selection(context, digits, { height, strength }, colour, scale) {
    const cells = digits.length;
    if (this.past[0] !== digits) this.past.unshift(digits);
    this.past.length = Math.min(this.past.length, reducedMotion.matches ? 1 : kGlow.length);
    const glow = new Float32Array(cells);
    this.past.forEach((past, age) => {
      if (past.length !== cells) return;  // cells stand for other pages now
      for (let cell = 0; cell < cells; ++cell) {
        const share = past.charCodeAt(cell) - 48;
        if (share > 0) glow[cell] = Math.max(glow[cell], kGlow[age] * (0.35 + (0.65 * share) / 9));
      }
    });
    context.fillStyle = colour;
    glow.forEach((alpha, cell) => {
      if (alpha === 0) return;
      context.globalAlpha = alpha * strength;
      this.bar(context, ...this.edges(cell, cells, scale), { top: 0, height }, scale);
    });
    context.globalAlpha = 1;
  }
}
