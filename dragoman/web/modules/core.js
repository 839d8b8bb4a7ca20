// DOM helpers, page state in the URL hash, numbers, downloads, and the frame around every figure.

const SVG = "http://www.w3.org/2000/svg";

// Text from data only ever becomes text nodes and attribute values, so no markup in it can act.
function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, one] of Object.entries(value)) node.style.setProperty(key, one);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  node.append(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export function el(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

// Replace the content of a node; null and false stand for nothing.
export function put(node, ...children) {
  node.replaceChildren(...children.flat(9).filter((child) => child !== null && child !== undefined && child !== false));
}

export function readData() {
  return JSON.parse(document.getElementById("data").textContent);
}

// ---- numbers

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  const size = Math.abs(value);
  if (size >= 1e5 || size < 10 ** -digits) return value.toExponential(2).replace("-", "−").replace("e−", "e−");
  const text = size >= 1000 ? value.toLocaleString("en", { maximumFractionDigits: 1 }) : value.toFixed(digits);
  return text.replace("-", "−");
}

export function percent(value) {
  return `${(100 * value).toFixed(value >= 0.0995 || value === 0 ? 0 : value >= 0.00995 ? 1 : 2)} %`;
}

// A tensor of the data: {shape, f32: base64} → {shape, at(i, j, …), values}.
export function tensor(packed) {
  const listed = Array.isArray(packed); // of a kept .json: nested lists, null where a number is not finite
  const bytes = listed ? null : Uint8Array.from(atob(packed.f32), (character) => character.charCodeAt(0));
  const values = listed ? Float32Array.from(packed.flat(Infinity), (value) => value ?? NaN) : new Float32Array(bytes.buffer);
  const shapeOf = (value) => (Array.isArray(value) ? [value.length, ...shapeOf(value[0])] : []);
  const shape = listed ? shapeOf(packed) : packed.shape;
  const strides = shape.map((_, axis) => shape.slice(axis + 1).reduce((left, right) => left * right, 1));
  const at = (...index) => values[index.reduce((sum, one, axis) => sum + one * strides[axis], 0)];
  const row = (...index) => {
    const start = index.reduce((sum, one, axis) => sum + one * strides[axis], 0);
    return values.subarray(start, start + (strides[index.length - 1] ?? values.length));
  };
  return { shape, values, at, row };
}

// Data with every packed tensor as nested lists, for the JSON button.
export function unpacked(value) {
  if (Array.isArray(value)) return value.map(unpacked);
  if (value === null || typeof value !== "object") return value;
  if (typeof value.f32 === "string") {
    const { shape, values } = tensor(value);
    let flat = Array.from(values, (one) => Number(one.toPrecision(7)));
    for (const size of shape.slice(1).reverse()) {
      flat = Array.from({ length: flat.length / size }, (_, index) => flat.slice(index * size, (index + 1) * size));
    }
    return flat;
  }
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, unpacked(inner)]));
}

// ---- state in the URL hash, so that a link opens the same view

const listeners = new Set();

export function readState() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

export function setState(changes, { replace = true } = {}) {
  const parameters = new URLSearchParams(location.hash.slice(1));
  for (const [key, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") parameters.delete(key);
    else parameters.set(key, value);
  }
  const hash = `#${parameters}`;
  if (hash === location.hash) return;
  if (replace) history.replaceState(null, "", hash);
  else history.pushState(null, "", hash);
  notify();
}

export function notify() {
  const state = readState();
  for (const listener of [...listeners]) listener(state);
}

export function onState(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

export function forgetListeners() {
  listeners.clear();
}

// Draw into a place anew; what its last drawing listened to ends.
export function redraw(place, drawing) {
  for (const listener of place.listening ?? []) listeners.delete(listener);
  const before = new Set(listeners);
  put(place, drawing());
  place.listening = [...listeners].filter((one) => !before.has(one));
}

export function whole(text, fallback, low, high) {
  const value = Number.parseInt(text ?? "", 10);
  return Number.isInteger(value) ? Math.min(Math.max(value, low), high) : fallback;
}

// ---- colours of the theme

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

export function rgb(name) {
  return colour(name).split(/\s+/).map(Number);
}

export function mix(from, to, share) {
  const part = Math.min(Math.max(share, 0), 1);
  return from.map((one, index) => Math.round(one + (to[index] - one) * part));
}

export function css(three) {
  return `rgb(${three.join(" ")})`;
}

export const SERIES = ["s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7"];

// ---- controls

export function select(label, options, value, change) {
  const box = el("select", { onchange: () => change(box.value) });
  for (const [key, text] of options) box.append(el("option", { value: key, selected: String(key) === String(value) }, text));
  return el("label", {}, label, box);
}

export function slider(label, { low, high, step, value, show = (one) => number(one, 2) }, change) {
  const output = el("output", {}, show(value));
  const input = el("input", { type: "range", min: low, max: high, step, value, "aria-label": label });
  input.addEventListener("input", () => {
    output.textContent = show(Number(input.value));
    change(Number(input.value));
  });
  return el("label", { class: "wide" }, label, input, output);
}

export function toggle(label, pressed, change) {
  const button = el("button", { type: "button", "aria-pressed": String(pressed) }, label);
  button.addEventListener("click", () => {
    const now = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", String(now));
    change(now);
  });
  return button;
}

// ---- tables and downloads

export function table(head, rows, { numeric = [] } = {}) {
  const kind = (column) => ({ class: numeric.includes(column) ? "number" : null });
  return el("div", { class: "table-wrap", tabindex: "0", role: "region", "aria-label": "data table" },
    el("table", {},
      el("thead", {}, el("tr", {}, head.map((name, column) => el("th", { scope: "col", ...kind(column) }, name)))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, column) =>
        el("td", kind(column), typeof cell === "number" ? number(cell, 4) : cell)))))));
}

export function download(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = el("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-opacity", "fill-opacity", "opacity", "font-family", "font-size",
  "font-weight", "text-anchor", "dominant-baseline"];

// An SVG file that looks the same outside the page: computed styles become attributes.
export function svgText(picture) {
  const copy = picture.cloneNode(true);
  const from = [picture, ...picture.querySelectorAll("*")];
  const to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, index) => {
    const style = getComputedStyle(node);
    for (const name of KEPT) {
      const value = style.getPropertyValue(name);
      if (value) to[index].setAttribute(name, value);
    }
    for (const name of ["tabindex", "role", "class", "style", "aria-label"]) to[index].removeAttribute(name);
  });
  copy.setAttribute("xmlns", SVG);
  const { width, height } = picture.viewBox.baseVal;
  copy.prepend(svg("rect", { width, height, fill: colour("card") }));
  return `<?xml version="1.0" encoding="UTF-8"?>\n${new XMLSerializer().serializeToString(copy)}\n`;
}

let width = 0; // of the place that is drawn into now

// The width that a drawing may have.
export function room() {
  return Math.max(250, width || window.innerWidth - 80);
}

// A place that is as wide as its column; what is drawn into it is drawn anew when that width changes.
export function fitted(drawing) {
  const place = el("div", { class: "drawing" });
  let drawn = 0;
  place.draw = () => {
    drawn = place.clientWidth;
    width = drawn;
    place.replaceChildren(drawing());
    width = 0;
  };
  place.draw();
  new ResizeObserver(() => { if (place.clientWidth && Math.abs(place.clientWidth - drawn) > 8) place.draw(); }).observe(place);
  return place;
}

// The frame around a drawing: what belongs under it (a colour scale), tools to save it, and the table behind it.
// `rows()` gives [head, rows, options].
export function figure({ name, title, drawing, rows, data, under = null }) {
  const place = fitted(drawing);
  const below = el("div", {});
  const svgButton = el("button", { type: "button", onclick: () => {
    const picture = place.querySelector("svg");
    if (picture) download(`${name}.svg`, "image/svg+xml", svgText(picture));
  } }, "SVG");
  const tableButton = el("button", { type: "button", "aria-expanded": "false", onclick: () => {
    const open = tableButton.getAttribute("aria-expanded") !== "true";
    tableButton.setAttribute("aria-expanded", String(open));
    below.replaceChildren(...(open ? [table(...rows())] : []));
  } }, "Data table");
  if (under) under.classList.add("under");
  const frame = el("figure", { "aria-label": title }, place, under, el("div", { class: "figure-tools" },
    svgButton, el("button", { type: "button", onclick: () => download(`${name}.json`, "application/json", JSON.stringify(unpacked(data()))) }, "JSON"),
    rows && tableButton), below);
  frame.draw = () => {
    place.draw();
    svgButton.hidden = !place.querySelector("svg");
    if (tableButton.getAttribute("aria-expanded") === "true") below.replaceChildren(table(...rows()));
  };
  svgButton.hidden = !place.querySelector("svg");
  return frame;
}

// ---- words

export function shown(text) {
  return text === "" ? "∅" : text.replaceAll("\n", "⏎").replaceAll("\t", "⇥");
}

export function shortened(text, length = 18) {
  const characters = [...shown(text)];
  return characters.length <= length ? characters.join("") : `${characters.slice(0, length - 1).join("")}…`;
}

// Arrow keys move the focus among the elements of a group.
export function arrows(group, selector) {
  group.addEventListener("keydown", (event) => {
    const all = [...group.querySelectorAll(selector)];
    const index = all.indexOf(document.activeElement);
    const move = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -index, End: all.length - 1 - index }[event.key];
    if (index < 0 || move === undefined || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    event.stopPropagation();
    all[(index + move + all.length) % all.length].focus();
  });
}

// Show a tab of a row that scrolls sideways. `scrollIntoView` would also scroll the page, and the page around a frame.
export function showTab(tab) {
  const own = tab.getBoundingClientRect(), row = tab.parentElement.getBoundingClientRect();
  tab.parentElement.scrollLeft += Math.min(0, own.left - row.left) || Math.max(0, own.right - row.right);
}
