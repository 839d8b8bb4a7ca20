// The page of one example: views as tabs, one step that all views share, state in the URL hash.

import { arrows, el, forgetListeners, notify, onState, readData, readState, setState, shown, showTab, unpacked, whole } from "./core.js";
import { drawOverview } from "./overview.js";
import { drawAttention } from "./attention.js";
import { drawBeam } from "./beam.js";
import { drawStates } from "./states.js";
import { drawGradients } from "./gradients.js";
import { drawNext } from "./next.js";
import { drawLabels, drawSurprise } from "./labels.js";
import { drawMedia } from "./media.js";
import { drawLayers, drawOrder, drawPositions } from "./model.js";
import { drawReceptive } from "./receptive.js";
import { drawTables } from "./tables.js";
import { drawWhatIf } from "./whatif.js";
import { drawCtc } from "./ctc.js";
import { drawEmbeddings, drawTraining } from "./embeddings.js";
import { drawForcing } from "./forcing.js";
import { drawInside, drawLens } from "./inside.js";
import { drawEquations } from "./equations.js";
import { drawLexicon, drawPhrases, drawSeries } from "./classical.js";

const VIEWS = {
  overview: drawOverview, attention: drawAttention, beam: drawBeam, states: drawStates, gradients: drawGradients, next: drawNext, labels: drawLabels,
  surprise: drawSurprise, media: drawMedia, positions: drawPositions, receptive: drawReceptive, layers: drawLayers, tables: drawTables, whatif: drawWhatIf, inside: drawInside, equations: drawEquations, lens: drawLens, phrases: drawPhrases, lexicon: drawLexicon, series: drawSeries, forcing: drawForcing, ctc: drawCtc, order: drawOrder, embeddings: drawEmbeddings, training: drawTraining,
};

// A view without a drawing of its own, such as that of a plug-in, shows its numbers.
const drawNumbers = (view) => [el("pre", { class: "small" }, JSON.stringify(unpacked(view.data), null, 1))];

let shownPage = new AbortController(); // listeners of a page that is drawn anew end with it

function themeButton(signal) {
  const button = el("button", { type: "button", onclick: () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    notify();
  } }, "Light / dark");
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => notify(), { signal });
  return button;
}

// Draw the page of one example into `root`; a server passes its own data, and may call it again with other data.
export function showInspection(data, root) {
  const { beside } = data;
  const header = [el("h1", { dir: "auto" }, beside ? `${data.title} and ${beside.title}` : data.title), el("p", { class: "small soft" }, `${data.run.task} · ${[data.run.model, ...data.run.parts.map((part) => `${part.part}: ${part.kind}`)].join(" · ")}`),
    el("dl", { class: "text-pair" }, data.source ? [el("dt", {}, "input"), el("dd", { dir: "auto" }, data.source.text)] : null,
      [data, beside].filter(Boolean).flatMap((one) => [el("dt", { dir: "auto" }, beside ? one.title : one.target.name ?? "output"), el("dd", { dir: "auto" }, one.target.text || "(empty)")]))];
  const all = [...(data.pending ?? []), ...[data, beside].filter(Boolean).flatMap((one) => one.views)];
  const drawers = Object.fromEntries(all.map(({ kind }) => [kind, VIEWS[kind] ?? drawNumbers]));
  showViews(data, root, drawers, header, beside && beside.target.tokens.length > data.target.tokens.length ? beside.target.tokens : data.target.tokens);
}

// Any page of views: tabs, one panel, and where there are steps a bar that moves through them. With `data.beside` every
// view is drawn twice, and both follow one step, layer and head. `data.pending` has all tabs of a page whose server
// computed some views alone; `data.load` asks for the one that is open.
export function showViews(data, root, drawers, header, labels = []) {
  shownPage.abort();
  shownPage = new AbortController();
  const { signal } = shownPage;
  forgetListeners();
  const sides = [data, data.beside].filter(Boolean);
  const views = [...(data.pending ?? []), ...sides.flatMap((side) => side.views)].filter((view, index, all) => drawers[view.kind] && all.findIndex((one) => one.kind === view.kind) === index);
  const steps = labels.length;
  const panel = el("main", { role: "tabpanel", id: "view", class: "card", tabindex: "-1" });
  const tabs = el("nav", { role: "tablist", "aria-label": "views" });
  const current = () => views.find((view) => view.kind === readState().view) ?? views.find((view) => view.kind === data.first) ?? views[0];
  const open = (kind) => { setState({ view: kind }, { replace: false }); panel.focus({ preventScroll: true }); window.scrollTo({ top: 0 }); };
  for (const view of views) tabs.append(el("button", { type: "button", role: "tab", id: `tab-${view.kind}`, "aria-controls": "view", onclick: () => open(view.kind) }, view.title));
  arrows(tabs, '[role="tab"]');

  const range = el("input", { type: "range", min: 0, max: Math.max(0, steps - 1), value: 0, "aria-label": "step of the output" });
  range.addEventListener("input", () => setState({ step: range.value }));
  const label = el("output", {});
  const back = el("button", { type: "button", "aria-label": "previous step", onclick: () => move(-1) }, "◀");
  const ahead = el("button", { type: "button", "aria-label": "next step", onclick: () => move(1) }, "▶");
  const step = () => whole(readState().step, 0, 0, Math.max(0, steps - 1));
  const move = (by) => setState({ step: Math.min(Math.max(step() + by, 0), steps - 1) });
  document.addEventListener("keydown", (event) => {
    if (event.defaultPrevented || event.altKey || event.ctrlKey || event.metaKey) return;
    if (event.target instanceof Element && event.target.closest("input, select, textarea, [role=tablist], [role=application]")) return;
    if (event.key === "ArrowRight") move(1);
    else if (event.key === "ArrowLeft") move(-1);
    else return;
    event.preventDefault();
  }, { signal });

  const ownView = (side) => side.views.find((view) => view.kind === current().kind);
  const drawing = (side) => { const own = ownView(side); return own ? drawers[own.kind](own, side, open) : [el("p", { class: "soft" }, "This run has no such view of this text.")]; };

  let drawn = null;
  function update() {
    const view = current();
    for (const tab of tabs.children) {
      const chosen = tab.id === `tab-${view.kind}`;
      tab.setAttribute("aria-selected", String(chosen));
      tab.setAttribute("tabindex", chosen ? "0" : "-1");
    }
    range.value = step();
    label.replaceChildren(`step ${step() + 1} of ${steps}: `, el("strong", { dir: "auto" }, shown(labels[step()] ?? "")));
    if (drawn === view) return;
    drawn = view;
    panel.setAttribute("aria-labelledby", `tab-${view.kind}`);
    if (data.pending && view.kind !== data.asked && !sides.some((one) => ownView(one))) {
      panel.replaceChildren(el("p", { class: "waiting" }, "Looking inside …"));
      data.load();
      return;
    }
    forgetListeners();
    onState(update);
    const drawings = sides.map(drawing);
    panel.replaceChildren(el("h2", {}, view.title), el("p", { class: "soft" }, view.about), ...(data.beside ? [el("div", { class: "columns pair" }, drawings.map((one, index) => el("section", {}, el("h3", { class: "run-name", dir: "auto" }, sides[index].title), one)))] : drawings[0]));
    const tab = document.getElementById(`tab-${view.kind}`);
    if (tab) showTab(tab);
  }
  root.replaceChildren(
    el("div", { class: "page" },
      el("header", { class: "masthead" },
        el("div", {}, header),
        themeButton(signal)),
      sides.flatMap((one) => one.notes.map((note) => (data.beside ? `${one.title}: ${note}` : note))).map((note) => el("p", { class: "notice small" }, note)),
      tabs, panel),
    steps > 1 ? el("div", { class: "stepper" }, el("div", {}, back, range, ahead, label)) : "");
  onState(update);
  update();
  window.addEventListener("hashchange", () => notify(), { signal });
  window.addEventListener("popstate", () => notify(), { signal });
  let width = window.innerWidth;
  window.addEventListener("resize", () => { if (Math.abs(window.innerWidth - width) > 40) { width = window.innerWidth; notify(); } }, { signal });
}
