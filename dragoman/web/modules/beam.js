// Beam search as a tree: kept, finished and pruned branches, and what would have followed a pruned one.

import { el, figure, number, onState, percent, put, readState, select, setState, shortened, shown, svg, whole } from "./core.js";

const COLUMN = 126;
const ROW = 30;
const NUMBERS = [["normalised", "score"], ["score", "Σ log p"]]; // of a branch: the score divides the sum by its length
const FATES = { kept: "kept", complete: "finished" };

// A server sets this to a function (node, prefix) → promise of a continuation, so that the search itself goes on.
let continueSearch = null;

export function setContinueSearch(call) {
  continueSearch = call;
}

export function drawBeam(view) {
  const { nodes, continuations, beam } = view.data;
  const byNumber = new Map(nodes.map((node) => [node.number, node]));
  const finished = nodes.filter((node) => node.fate === "complete").sort((a, b) => b.normalised - a.normalised);
  const alive = ancestors(finished, byNumber);
  const levels = [["finished", "finished outputs"], ["kept", "all kept branches"], ["all", "pruned branches too"]];
  const usual = nodes.length <= 90 ? "all" : nodes.length <= 400 ? "kept" : "finished";
  const level = () => (levels.some(([key]) => key === readState().branches) ? readState().branches : usual);
  const shownNumber = () => (readState().number === "score" ? "score" : "normalised");
  const zoom = () => whole(readState().zoom, 100, 40, 200);
  const selected = () => byNumber.get(Number.parseInt(readState().node ?? "", 10)) ?? finished[0] ?? nodes[0];
  const visible = (node) => node.number === 0 || level() === "all" || alive.has(node.number) || (level() === "kept" && FATES[node.fate]) || chain(selected(), byNumber).has(node.number);
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const waiting = new Set(); // nodes whose search goes on
  const controls = el("div", { class: "controls" });
  const frame = figure({
    name: "beam", title: "beam search tree",
    drawing: () => tree(nodes, visible, selected(), byNumber, finished[0], zoom() / 100, shownNumber()),
    rows: () => [["node", "parent", "step", "token", "log p", "Σ log p", "score", "fate"], nodes.map((node) => [node.number, node.parent, node.step, shown(node.piece), node.log_probability, node.score, node.normalised, FATES[node.fate] ?? node.fate]), { numeric: [0, 1, 2, 4, 5, 6] }],
    data: () => view.data,
  });

  Object.assign(frame.querySelector(".drawing").style, { maxHeight: "70vh", overflow: "auto" }); // the readout stays in sight

  function say() {
    const node = selected();
    if (!node) return;
    const path = [...chain(node, byNumber)].map((number) => byNumber.get(number)).filter(Boolean).sort((a, b) => a.step - b.step);
    const text = path.map((one) => shown(one.piece)).join(" ");
    const sums = path.length <= 8 ? path.map((one) => number(one.log_probability, 2)).join(" + ") : `${path.slice(0, 3).map((one) => number(one.log_probability, 2)).join(" + ")} + … + ${number(node.log_probability, 2)}`;
    const fate = FATES[node.fate] ?? `pruned: ${node.fate}`;
    readout.replaceChildren(
      el("div", {}, el("strong", { dir: "auto" }, text), ` · ${fate}`),
      el("div", { class: "sum" }, "Σ log p = ", sums, " = ", el("span", { class: "num" }, number(node.score, 3)), `     score = ${number(node.normalised, 3)}     p(this token) = ${percent(Math.exp(node.log_probability))}`));
    const known = continuations[node.number];
    const best = finished[0];
    const tell = (found) => readout.append(found.problem ? el("div", { class: "bad" }, found.problem) : el("div", { class: "continued" }, "It would have gone on: ", el("strong", { dir: "auto" }, found.text), ` · score ${number(found.score, 3)}`,
      best ? el("span", { class: found.score > best.normalised ? "bad" : "soft" }, found.score > best.normalised ? ` — better than the best finished output (${number(best.normalised, 3)}): a search error` : ` — below the best finished output (${number(best.normalised, 3)})`) : ""));
    if (known) tell(known);
    else if (continueSearch && node.number && !FATES[node.fate]) {
      const line = el("div", { class: "soft" }, "Searching on from here …");
      readout.append(line);
      if (waiting.has(node.number)) return;
      waiting.add(node.number);
      continueSearch(node, path.filter((one) => one.number).map((one) => one.token)).then((found) => { continuations[node.number] = found; }, (error) => { continuations[node.number] = { problem: error.message }; })
        .finally(() => { waiting.delete(node.number); if (selected() === node) say(); });
    }
  }

  function update() {
    put(controls, select("show", levels, level(), (value) => setState({ branches: value })),
      select("numbers", NUMBERS, shownNumber(), (value) => setState({ number: value })),
      el("button", { type: "button", "aria-label": "smaller", onclick: () => setState({ zoom: Math.max(40, zoom() - 20) }) }, "−"),
      el("button", { type: "button", "aria-label": "larger", onclick: () => setState({ zoom: Math.min(200, zoom() + 20) }) }, "+"),
      el("span", { class: "small soft" }, `beam ${beam} · ${nodes.length.toLocaleString("en")} candidates · ${finished.length} finished`));
    const scroll = frame.querySelector(".drawing");
    const { scrollLeft, scrollTop } = scroll;
    const active = document.activeElement?.dataset?.node;
    frame.draw();
    scroll.scrollTo(scrollLeft, scrollTop);
    if (active) frame.querySelector(`[data-node="${active}"]`)?.focus({ preventScroll: true });
    say();
  }
  onState(update);
  update();
  const best = el("ol", { class: "small" }, finished.slice(0, 8).map((node) => el("li", {}, el("button", { type: "button", class: "word", onclick: () => setState({ node: node.number }) },
    el("bdi", {}, [...chain(node, byNumber)].map((number) => byNumber.get(number)).sort((a, b) => a.step - b.step).map((one) => shown(one.piece)).join(" "))), ` ${number(node.normalised, 3)}`)));
  return [controls, readout, frame, el("div", { class: "legend" }, el("span", {}, swatch("var(--accent)"), "kept"), el("span", {}, swatch("var(--good)"), "finished"), el("span", {}, swatch("var(--line)"), "pruned")), el("h3", {}, "Finished outputs"), best];
}

function swatch(fill) {
  return el("i", { style: { background: fill } });
}

function chain(node, byNumber) {
  const found = new Set();
  for (let one = node; one; one = byNumber.get(one.parent)) found.add(one.number);
  return found;
}

function ancestors(nodes, byNumber) {
  const found = new Set();
  for (const node of nodes) for (let one = node; one && !found.has(one.number); one = byNumber.get(one.parent)) found.add(one.number);
  return found;
}

function tree(nodes, visible, selected, byNumber, best, zoom, key) {
  const children = new Map();
  const hidden = new Map();
  for (const node of nodes) {
    if (visible(node)) children.set(node.parent, [...(children.get(node.parent) ?? []), node]);
    else hidden.set(node.parent, (hidden.get(node.parent) ?? 0) + 1);
  }
  const places = new Map();
  let line = 0;
  // An explicit stack: a search of many steps would overflow a recursion.
  const stack = [{ number: 0, step: 0, done: false }];
  while (stack.length) {
    const top = stack[stack.length - 1];
    const own = (children.get(top.number) ?? []).sort((a, b) => b.score - a.score);
    if (!top.done) {
      top.done = true;
      for (const child of [...own].reverse()) stack.push({ number: child.number, step: child.step, done: false });
      if (own.length) continue;
    }
    stack.pop();
    const lines = own.map((child) => places.get(child.number).line);
    places.set(top.number, { step: top.step, line: lines.length ? lines[0] : line++ });
  }
  const steps = Math.max(0, ...[...places.values()].map((place) => place.step));
  const width = (steps + 1) * COLUMN + 30;
  const height = Math.max(1, line) * ROW + 26;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width: width * zoom, height: height * zoom, role: "group", "aria-label": "beam search tree" });
  const marked = chain(selected, byNumber);
  const bestPath = best ? chain(best, byNumber) : new Set();
  const at = (number) => { const place = places.get(number); return [place.step * COLUMN + 8, place.line * ROW + 24]; };
  for (let step = 1; step <= steps; step += 1) picture.append(svg("text", { x: step * COLUMN + 8, y: 10, class: "axis" }, `${step}`));
  for (const [parent, own] of children) {
    for (const node of own) {
      const [x1, y1] = at(parent);
      const [x2, y2] = at(node.number);
      const from = x1 + (parent ? COLUMN - 20 : 22);
      picture.append(svg("path", { d: `M${from} ${y1} C ${(from + x2) / 2} ${y1}, ${(from + x2) / 2} ${y2}, ${x2} ${y2}`, fill: "none",
        stroke: marked.has(node.number) ? "var(--ink)" : FATES[node.fate] ? "var(--accent)" : "var(--line)", "stroke-width": bestPath.has(node.number) || marked.has(node.number) ? 2.6 : 1.2 }));
    }
  }
  picture.append(svg("circle", { cx: 18, cy: at(0)[1], r: 9, fill: "var(--card)", stroke: "var(--soft)" }), svg("text", { x: 18, y: at(0)[1] + 1, "text-anchor": "middle", "dominant-baseline": "central", class: "axis" }, "∅"));
  for (const node of nodes) {
    if (!places.has(node.number)) continue;
    const [x, y] = at(node.number);
    const done = node.fate === "complete";
    const kept = FATES[node.fate];
    const go = () => setState({ node: node.number });
    const more = hidden.get(node.number);
    picture.append(svg("g", { tabindex: "0", role: "button", "data-node": node.number, "aria-label": `${shown(node.piece)}, score ${number(node.normalised)}, ${kept ?? `pruned: ${node.fate}`}`, onclick: go,
      onkeydown: (event) => {
        if (event.key === "Enter" || event.key === " ") { event.preventDefault(); go(); }
        const near = { ArrowLeft: node.parent, ArrowRight: (children.get(node.number) ?? [])[0]?.number, ArrowUp: sibling(children, node, -1), ArrowDown: sibling(children, node, 1) }[event.key];
        if (event.key.startsWith("Arrow")) { event.preventDefault(); event.stopPropagation(); }
        if (near) picture.querySelector(`[data-node="${near}"]`)?.focus();
      } },
      svg("rect", { x, y: y - 11, width: COLUMN - 20, height: 22, rx: 6, fill: node.number === selected?.number ? "var(--accent-soft)" : "var(--card)", stroke: done ? "var(--good)" : kept ? "var(--accent)" : "var(--line)", "stroke-width": done ? 2 : 1.2 }),
      svg("text", { x: x + 6, y: y + 1, "dominant-baseline": "central", class: kept ? "" : "axis" }, shortened(done ? "■ end" : node.piece, 7)),
      svg("text", { x: x + COLUMN - 25, y: y + 1, "text-anchor": "end", "dominant-baseline": "central", class: "axis", style: { "font-size": "10.5px" } }, number(Math.abs(node[key]) < 0.005 ? 0 : node[key], 2)),
      svg("title", {}, `${shown(node.piece)}: log p ${number(node.log_probability)}, Σ ${number(node.score)}, score ${number(node.normalised)} · ${kept ?? `pruned: ${node.fate}`}`)));
    if (more) picture.append(svg("text", { x: x + COLUMN - 18, y: y - 7, class: "axis", style: { "font-size": "10px" } }, `+${more}`));
  }
  return picture;
}

function sibling(children, node, by) {
  const own = children.get(node.parent) ?? [];
  return own[own.findIndex((one) => one.number === node.number) + by]?.number;
}
