// Parts that all views share: messages, copying, history, the code of a request.

import { el } from "/web/modules/core.js";
import { asCode, lastExchange } from "/static/api.js";

let timer = 0;

export function toast(text, bad = false) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.className = bad ? "shown wrong" : "shown";
  clearTimeout(timer);
  timer = setTimeout(() => { box.className = ""; }, bad ? 6000 : 1800);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without a secure context browsers have no clipboard
    const area = el("textarea", { class: "hidden-visually" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

export function icon(name) {
  const shapes = {
    copy: "M8 8V5.500A1.500 1.500 0 0 1 9.500 4h9A1.500 1.500 0 0 1 20 5.500v9a1.500 1.500 0 0 1-1.500 1.500H16M5.500 8h9A1.500 1.500 0 0 1 16 9.500v9a1.500 1.500 0 0 1-1.500 1.500h-9A1.500 1.500 0 0 1 4 18.500v-9A1.500 1.500 0 0 1 5.500 8z",
    swap: "M7 7h12l-3.500-3.500M17 17H5l3.500 3.500", close: "M6 6l12 12M18 6L6 18", eye: "M2.500 12S6 5.500 12 5.500 21.500 12 21.500 12 18 18.500 12 18.500 2.500 12 2.500 12zM12 9.200a2.800 2.800 0 1 1 0 5.600 2.800 2.800 0 0 1 0-5.600z",
    file: "M12 16V5m0 0L8 9m4-4l4 4M5 15v3.500A1.500 1.500 0 0 0 6.500 20h11a1.500 1.500 0 0 0 1.500-1.500V15", stop: "M7 7h10v10H7z",
  };
  const holder = el("span", { class: "icon", "aria-hidden": "true" });
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("viewBox", "0 0 24 24");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", shapes[name]);
  picture.append(path);
  holder.append(picture);
  return holder;
}

export function iconButton(name, label, click) {
  return el("button", { type: "button", class: "round", "aria-label": label, title: label, onclick: click }, icon(name));
}

// What the model could not read of an input.
export function unknownText(output) {
  const names = output?.unknown ?? [];
  const shown = names.slice(0, 12).map((one) => (one.trim() ? `“${one}”` : "space")).join(", ");
  return names.length ? `Not in the training data, so read as unknown: ${shown}${names.length > 12 ? ", …" : ""}` : "";
}

// The last request and its answer, as code to copy.
export function codeBox() {
  const shown = el("pre", { class: "code", tabindex: "0", "aria-label": "code" });
  const kinds = [["curl", "curl"], ["python", "Python"], ["response", "Answer"]];
  let kind = "curl";
  const draw = () => { shown.textContent = asCode(lastExchange(), kind); };
  const tabs = el("div", { class: "segments", role: "group", "aria-label": "Form of the code" });
  for (const [key, name] of kinds) {
    tabs.append(el("button", { type: "button", "aria-pressed": String(key === kind), onclick: (event) => {
      kind = key;
      for (const one of tabs.children) one.setAttribute("aria-pressed", String(one === event.currentTarget));
      draw();
    } }, name));
  }
  const details = el("details", { class: "fold" }, el("summary", {}, "Code of this request"),
    el("div", { class: "fold-tools" }, tabs, iconButton("copy", "Copy the code", () => copy(shown.textContent))), shown);
  details.addEventListener("toggle", draw);
  return { node: details, draw: () => { if (details.open) draw(); } };
}

const KEY = "dragoman-history";
const MOST = 50;

export function remember(entry) {
  const all = history();
  const same = all.findIndex((one) => one.model === entry.model && (entry.input.startsWith(one.input) || one.input.startsWith(entry.input)) && Date.now() - one.time < 60_000);
  if (same >= 0) all.splice(same, 1);
  all.unshift({ ...entry, time: Date.now() });
  try { localStorage.setItem(KEY, JSON.stringify(all.slice(0, MOST))); } catch { /* full: the history is a comfort */ }
}

export function history() {
  try { return JSON.parse(localStorage.getItem(KEY) ?? "[]"); } catch { return []; }
}

// What was asked before, kept in this browser alone.
export function historyBox(open) {
  const list = el("ul", { class: "plain" });
  const draw = () => {
    const all = history();
    list.replaceChildren(...(all.length ? all.map((one) => el("li", {}, el("button", { type: "button", class: "entry", onclick: () => open(one) },
      el("span", { class: "clip", dir: "auto" }, one.input), el("span", { class: "clip soft", dir: "auto" }, one.output), el("span", { class: "small soft" }, one.model)))) : [el("li", { class: "soft" }, "Nothing yet.")]));
  };
  const clear = el("button", { type: "button", class: "quiet", onclick: () => { localStorage.removeItem(KEY); draw(); } }, "Clear");
  const details = el("details", { class: "fold" }, el("summary", {}, "History"), el("p", { class: "small soft" }, "Kept in this browser alone. ", clear), list);
  details.addEventListener("toggle", draw);
  return { node: details, draw: () => { if (details.open) draw(); } };
}

export function later(milliseconds, action) {
  let waiting = 0;
  return (...values) => { clearTimeout(waiting); waiting = setTimeout(() => action(...values), milliseconds); };
}
