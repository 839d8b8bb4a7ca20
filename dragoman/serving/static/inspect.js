// The page of one text: fetch the numbers of an inspection and draw them with the shared views, again after every change.

import { setContinueSearch } from "/web/modules/beam.js";
import { el, put, select, toggle } from "/web/modules/core.js";
import { showInspection } from "/web/modules/inspect.js";
import { later } from "/web/modules/panels.js";
import { call, get } from "/static/api.js";

const root = document.getElementById("root");
const query = new URLSearchParams(location.search);
// What is asked for: all of it stands in the address.
const asked = Object.fromEntries(["q", "model", "output", "tag", "beside", "positions"].map((name) => [name, query.get(name) ?? ""]));
const UNTRAINED = "before training", NO_POSITIONS = "without positions"; // in place of the name of another run
const first = asked.q;
let models = [], shown = null, chosen = null, running = null, tabs = null;

function request(extra = {}) {
  const body = { input: asked.q, numbers: "packed", positions: asked.positions !== "off" };
  if (tabs) body.views = [openView()];
  for (const name of ["model", "output", "tag"]) if (asked[name]) body[name] = asked[name];
  return { ...body, ...extra };
}

function besideRequest() {
  if (asked.beside === UNTRAINED) return request({ untrained: true });
  if (asked.beside === NO_POSITIONS) return request({ positions: false });
  return request({ model: asked.beside });
}

// A click on a pruned node of the beam tree goes on with the search from there.
setContinueSearch((node, tokens) => {
  const { input, model, tag } = request();
  return call("/v1/inspect/continue", { input, model, tag, tokens });
});

function openView() {
  const kind = new URLSearchParams(location.hash.slice(1)).get("view");
  return tabs.some((view) => view.kind === kind) ? kind : "overview";
}

// The first answer has all views; those after a change have the open one, so that they come fast.
async function draw() {
  running?.abort();
  const { signal } = (running = new AbortController());
  const parameters = new URLSearchParams(Object.entries(asked).filter(([, value]) => value));
  history.replaceState(null, "", `?${parameters}${location.hash}`);
  document.body.setAttribute("aria-busy", "true");
  try {
    if (!asked.q.trim()) throw new Error("Write a text to look at.");
    const body = request();
    const data = await call("/v1/inspect", body, { signal });
    if (asked.beside) data.beside = await call("/v1/inspect", besideRequest(), { signal });
    if (tabs) Object.assign(data, { pending: tabs, load: draw, asked: body.views[0] });
    else tabs = data.views.map(({ kind, title, about }) => ({ kind, title, about }));
    shown = data;
    showInspection(data, root);
    document.title = `Dragoman: inside ${data.title}`;
  } catch (error) {
    if (error.name === "AbortError") return;
    put(root, el("p", { class: "waiting bad" }, error.message));
  }
  document.body.removeAttribute("aria-busy");
  controls();
}

const area = el("textarea", { class: "field", dir: "auto", rows: 2, "aria-label": "input" });
area.value = asked.q;
const soon = later(350, () => change({ q: area.value.replaceAll("\n", " ") }));
area.addEventListener("input", soon);
const words = el("div", { class: "words", role: "group", "aria-label": "words to move or delete" });
const tools = el("div", { class: "controls" });
document.getElementById("live").append(el("label", { class: "small soft" }, "Input", area), words, tools);

function change(changes) {
  Object.assign(asked, changes);
  if (area.value !== asked.q) area.value = asked.q;
  draw();
}

// The parts of the input that can be moved: letters of a single word, else words.
function parts() {
  const letters = shown?.source?.unit === "letter";
  return { items: letters ? [...asked.q] : asked.q.split(/\s+/).filter(Boolean), joint: letters ? "" : " " };
}

function moved(edit) {
  const { items, joint } = parts();
  chosen = edit(items);
  change({ q: items.join(joint) });
}

function controls() {
  const { items } = parts();
  if (chosen !== null && chosen >= items.length) chosen = items.length - 1;
  put(words, items.map((text, index) => el("button", { type: "button", class: "word", dir: "auto", "aria-pressed": String(index === chosen), onclick: () => { chosen = index === chosen ? null : index; controls(); } }, text)));
  const at = chosen;
  const button = (label, off, action) => el("button", { type: "button", disabled: off, onclick: action }, label);
  const swap = (by) => moved((all) => { [all[at], all[at + by]] = [all[at + by], all[at]]; return at + by; });
  const located = tabs?.some((view) => view.kind === "positions");
  const others = models.filter((one) => one.id !== (asked.model || models[0]?.id) && one.input === "text").map((one) => [one.id, one.id]);
  put(tools,
    button("◀ Swap", at === null || at === 0, () => swap(-1)), button("Swap ▶", at === null || at === items.length - 1, () => swap(1)),
    button("Delete", at === null || items.length < 2, () => moved((all) => { all.splice(at, 1); return Math.min(at, all.length - 1); })),
    button("Original", asked.q === first, () => change({ q: first })),
    located ? toggle("positions off", asked.positions === "off", (off) => change({ positions: off ? "off" : "" })) : null,
    shown?.source ? toggle("keep this output", Boolean(asked.output), (keep) => change({ output: keep ? shown.target.text : "" })) : null,
    select("beside", [["", "nothing"], [UNTRAINED, UNTRAINED], ...(located ? [[NO_POSITIONS, NO_POSITIONS]] : []), ...others], asked.beside, (value) => change({ beside: value })));
}

controls();
try { models = (await get("/v1/models")).data; } catch { /* the page works without the others */ }
await draw();
