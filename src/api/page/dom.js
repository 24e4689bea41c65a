// Elements without markup: whatever comes from outside becomes text nodes and nothing else.

export const byId = (id) => document.getElementById(id);

// element("p", { class: "x", onclick: f }, "text", child, ...)
export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

const kSvg = "http://www.w3.org/2000/svg";
export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(kSvg, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// Writes only what has changed: screen readers and selections stay undisturbed.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
