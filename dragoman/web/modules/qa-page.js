// The report of checked translations in one file.

import { el, put, readData } from "./core.js";

const data = readData();
const several = data.files.length > 1;
const rows = el("tbody");
const shown = el("p", { class: "small soft", "aria-live": "polite" });
const hard = new Set(data.pairs.flatMap((pair) => pair.findings.filter((one) => one.hard).map((one) => one.kind)));
let chosen = "";

// With the name of the file where there are several, and without it where there is one.
function place(pair) {
  const inside = pair.place.startsWith(`${pair.file}:`) ? pair.place.slice(pair.file.length + 1).trim() : pair.place;
  return several ? `${pair.file}: ${inside}` : inside;
}

function draw() {
  const pairs = data.pairs.filter((pair) => !chosen || pair.findings.some((one) => one.kind === chosen));
  shown.textContent = `${pairs.length.toLocaleString("en")} shown${data.pairs.length < data.found ? ` of the first ${data.pairs.length.toLocaleString("en")}` : ""}`;
  put(rows, pairs.map((pair) => el("tr", {},
    el("td", { class: "small soft" }, place(pair)),
    el("td", { dir: "auto", class: "keep" }, pair.source), el("td", { dir: "auto", class: "keep" }, pair.output),
    el("td", {}, pair.findings.map((one) => el("div", { class: one.hard ? "bad" : "" }, el("strong", {}, one.kind), `: ${one.message}`))))));
}

const button = (kind, label) => el("button", { type: "button", "aria-pressed": String(kind === chosen), onclick: () => {
  chosen = kind;
  for (const [index, node] of [...controls.children].entries()) node.setAttribute("aria-pressed", String(kinds[index] === kind));
  draw();
} }, label);
const kinds = ["", ...Object.keys(data.counts)];
const controls = el("div", { class: "controls", role: "group", "aria-label": "Kind of finding" },
  kinds.map((kind) => button(kind, kind ? [el("span", { class: hard.has(kind) ? "bad" : "" }, kind), ` ${data.counts[kind].toLocaleString("en")}`] : "all")));

draw();
document.body.append(el("main", { class: "page" },
  el("header", { class: "masthead" }, el("div", {}, el("h1", {}, "Checked translations"),
    el("p", {}, `${data.found.toLocaleString("en")} of ${data.segments.toLocaleString("en")} segments have findings. Red kinds are mistakes; look at the others.`),
    el("p", { class: "small soft" }, data.files.join(", ")))),
  data.found ? [controls, shown, el("div", { class: "table-wrap tall" }, el("table", {}, el("thead", {}, el("tr", {}, ["Place", "Source", "Translation", "Findings"].map((name) => el("th", { scope: "col" }, name)))), rows))] : el("p", { class: "good" }, "Nothing was found.")));
