// Parts that all views share: messages, copying, history, the code of a request.

import { el } from "/web/modules/core.js";
import { copy, iconButton } from "/web/modules/panels.js";
import { asCode, lastExchange } from "/static/api.js";

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
