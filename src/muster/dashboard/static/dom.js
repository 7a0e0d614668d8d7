// Elements made of text only: nothing here parses HTML.

export const $ = (id) => document.getElementById(id);

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === false || value == null) continue;
    made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

export function svgPart(name, attributes = {}, text = undefined) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

// Replaces the children of an element only if they would differ, so that a selection by the mouse stays.
export function fill(parent, given) {
  const children = given.map((child) => (typeof child === "string" ? document.createTextNode(child) : child));
  const same = parent.childNodes.length === children.length && children.every((child, at) => child.isEqualNode(parent.childNodes[at]));
  if (!same) parent.replaceChildren(...children);
}

export async function get(path, query = {}) {
  const answer = await fetch(`${path}?${new URLSearchParams(query)}`, { signal: AbortSignal.timeout(10000) });
  const data = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(data.error), { status: answer.status });
  return data;
}

// A button that copies what `text` returns.
export function copyButton(text, label = "Copy") {
  const button = element("button", { type: "button", class: "small" }, label);
  button.addEventListener("click", () => copy(text(), button));
  return button;
}

export async function copy(text, button) {
  const label = button.dataset.label ?? (button.dataset.label = button.textContent);
  const done = await navigator.clipboard.writeText(text).then(() => true, () => copyBySelection(text));
  button.textContent = done ? "Copied" : "Not allowed";
  setTimeout(() => (button.textContent = label), 1500);
}

// Where the browser has no clipboard for scripts: under a name other than localhost, or without permission.
function copyBySelection(text) {
  const area = element("textarea", { class: "offscreen", readonly: true, "aria-hidden": "true" });
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  return done;
}
