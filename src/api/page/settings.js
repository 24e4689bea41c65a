// What the chat sends beside the messages. Kept in this browser.
import { byId } from "./dom.js";

const kName = "spillway-settings";
const kDefaults = { temperature: 0.7, maxTokens: null, system: "" };
const kept = { ...kDefaults, ...read() };

function read() {
  try {
    return JSON.parse(localStorage.getItem(kName)) || {};
  } catch {
    return {};
  }
}

export const settings = () => kept;

function change(part) {
  Object.assign(kept, part);
  localStorage.setItem(kName, JSON.stringify(kept));
}

export function startSettings() {
  const number = byId("temperature");
  const range = byId("temperature-range");
  const maxTokens = byId("max-tokens");
  const system = byId("system");
  number.value = range.value = kept.temperature;
  maxTokens.value = kept.maxTokens ?? "";
  system.value = kept.system;
  const setTemperature = (from, to) => from.addEventListener("input", () => {
    to.value = from.value;
    if (from.value !== "" && from.checkValidity()) change({ temperature: Number(from.value) });
  });
  setTemperature(number, range);
  setTemperature(range, number);
  maxTokens.addEventListener("input", () => {
    const value = Number.parseInt(maxTokens.value, 10);
    change({ maxTokens: value > 0 ? value : null });
  });
  system.addEventListener("input", () => change({ system: system.value }));
  byId("settings").addEventListener("submit", (event) => event.preventDefault());
  const button = byId("open-settings");
  button.addEventListener("click", () => {
    const opens = byId("settings").hidden;
    byId("settings").hidden = !opens;
    button.setAttribute("aria-expanded", opens);
    if (opens) number.focus();
  });
}
