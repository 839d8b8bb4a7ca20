// Attention by layer and head over words or tokens, entropy of every head, and attribution beside it.

import { colour, el, figure, fitted, number, onState, percent, put, readState, select, setState, shortened, tensor, toggle, whole } from "./core.js";
import { colourBar, heatmap, pixels, shades } from "./heat.js";
import { bars } from "./chart.js";
import { merged, words, wordsHelp } from "./words.js";

export function drawAttention(view, data) {
  const { layers, attribution } = view.data;
  const out = [];
  if (layers.length) out.push(maps(layers, view.data));
  const deleted = new Map((data.views.find((one) => one.kind === "whatif")?.data.changes ?? []).filter((one) => one.kind === "head").map((one) => [one.place.join(" "), one.difference]));
  if (Object.keys(attribution).length) out.push(inputs(view.data));
  const heads = layers.reduce((sum, layer) => sum + layer.weights.shape[0], 0);
  return [heads > 1 ? glance(layers, deleted, view.data.measure) : null, el("div", { class: out.length > 1 ? "columns" : null }, out)].filter(Boolean);
}

const THUMB = 48; // pixels of a side; of long texts a pixel shows the largest weight of its cells

// All layers and heads as small pictures; one of them is chosen.
function glance(layers, deleted, measure) {
  const scale = () => shades(1);
  const box = el("section", { class: "glance" });
  const places = [];
  layers.forEach((layer, index) => {
    const weights = tensor(layer.weights);
    const [heads, rows, columns] = weights.shape;
    const [tall, wide] = [Math.min(rows, THUMB), Math.min(columns, THUMB)];
    const line = el("div", { class: "heads" });
    for (let head = 0; head < heads; head += 1) {
      const most = new Float32Array(tall * wide);
      const own = weights.row(head);
      for (let row = 0, place = 0; row < rows; row += 1) {
        const line = Math.floor((row * tall) / rows) * wide;
        for (let column = 0; column < columns; column += 1, place += 1) {
          const at = line + Math.floor((column * wide) / columns);
          most[at] = Math.max(most[at], Math.abs(own[place]));
        }
      }
      const change = deleted.get(`${index} ${head}`);
      const says = layer.summaries[head];
      const title = [`${layer.name}, head ${head + 1}`, says, change === undefined ? "" : `without it ${measure} changes by ${number(change, 2)}`].filter(Boolean).join("; ");
      const picture = el("img", { alt: "", width: 64, height: 64 });
      const button = el("button", { type: "button", title, "aria-label": title, onclick: () => setState({ layer: index, head: heads > 1 ? head : null, column: null }) }, picture, says ? el("span", { class: "small" }, says) : null,
        change === undefined ? null : el("span", { class: "small soft" }, `without: ${change > 0 ? "+" : ""}${number(change, 2)}`));
      places.push({ index, head, heads, button, draw: () => { const shade = scale(); picture.src = pixels(tall, wide, (row, column) => shade(most[row * wide + column])); } });
      line.append(button);
    }
    box.append(el("div", { class: "layer" }, el("span", { class: "small soft", dir: "auto" }, `${layer.name} (${layer.about})`), line));
  });
  const first = Math.max(0, layers.findLastIndex((layer) => layer.kind === "cross"));
  let theme = null;
  const update = () => {
    const state = readState();
    const layer = whole(state.layer, first, 0, layers.length - 1);
    const now = colour("heat-1"); // pictures have the colours of the theme
    for (const one of places) {
      if (theme !== now) one.draw();
      one.button.setAttribute("aria-pressed", String(one.index === layer && (one.heads === 1 || String(one.head) === state.head)));
    }
    theme = now;
  };
  onState(update);
  update();
  return el("div", {}, el("h3", {}, "All layers and heads"), el("p", { class: "small soft" }, `Pick a picture to see it large. The words under it say where the head looks with most of its weight; the number is the change of ${measure} without it.`), box);
}

function largest(matrix) {
  let most = 1e-9;
  for (let row = 0; row < matrix.rows; row += 1) for (let column = 0; column < matrix.columns; column += 1) most = Math.max(most, Math.abs(matrix.at(row, column)));
  return most;
}

function maps(layers, { earlier }) {
  const box = el("section", {});
  const first = Math.max(0, layers.findLastIndex((layer) => layer.kind === "cross"));
  const cache = new Map();

  function chosen() {
    const state = readState();
    const index = whole(state.layer, first, 0, layers.length - 1);
    const layer = layers[index];
    if (!cache.has(index)) cache.set(index, tensor(layer.weights));
    const weights = cache.get(index);
    const head = state.head === undefined || state.head === "mean" ? null : whole(state.head, 0, 0, weights.shape[0] - 1);
    const byWord = state.level === undefined ? wordsHelp(layer.rows, layer.columns) : state.level === "words";
    const [heads, rows, columns] = weights.shape;
    const at = head === null ? (row, column) => { let sum = 0; for (let one = 0; one < heads; one += 1) sum += weights.at(one, row, column); return sum / heads; }
      : (row, column) => weights.at(head, row, column);
    const matrix = byWord ? merged({ rows, columns, at }, layer.rows, layer.columns) : { rows, columns, at };
    return { index, layer, weights, head, byWord, matrix, rowLabels: byWord ? words(layer.rows) : layer.rows.tokens, columnLabels: byWord ? words(layer.columns) : layer.columns.tokens };
  }

  let hovered = null;
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const controls = el("div", { class: "controls" });
  const entropies = el("div", {});
  const colourBox = el("div", {});
  const frame = figure({
    name: "attention", title: "attention weights", under: colourBox,
    drawing: () => {
      const one = chosen();
      const step = whole(readState().step, 0, 0, one.layer.rows.tokens.length - 1);
      const row = Math.min(one.byWord ? one.layer.rows.word_of[step] ?? 0 : step, one.matrix.rows - 1);
      const column = readState().column === undefined ? null : whole(readState().column, 0, 0, one.matrix.columns - 1);
      say(one, row, column);
      const top = one.layer.sums_to_one ? 1 : largest(one.matrix);
      colourBox.replaceChildren(one.layer.sums_to_one ? colourBar("0", "1") : colourBar(number(-top, 2), number(top, 2), true));
      return heatmap({ ...one.matrix, rowLabels: one.rowLabels, columnLabels: one.columnLabels, top, signed: !one.layer.sums_to_one, marked: [row, column], label: `attention of ${one.layer.name}`,
        rowTitle: { cross: "output", decoder: earlier.replace("earlier ", ""), encoder: "input", pooling: "" }[one.layer.kind], columnTitle: one.layer.kind === "decoder" ? earlier : "input",
        hover: (r, c) => { hovered = r === null ? null : [r, c]; say(one, ...(hovered ?? [row, column])); },
        pick: (r, c) => setState({ step: one.byWord ? one.layer.rows.word_of.indexOf(r) : r, column: c }) });
    },
    rows: () => {
      const one = chosen();
      return [["", ...one.columnLabels], one.rowLabels.map((label, row) => [label, ...one.columnLabels.map((_, column) => one.matrix.at(row, column))]), { numeric: one.columnLabels.map((_, index) => index + 1) }];
    },
    data: () => layers[chosen().index],
  });

  function say(one, row, column) {
    if (row === null || row === undefined) return;
    const shares = one.layer.sums_to_one;
    const cells = one.columnLabels.map((name, index) => [one.matrix.at(row, index), name, index]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0]));
    const parts = [el("strong", { dir: "auto" }, one.rowLabels[row] ?? ""), shares ? " looks at " : " weighs "];
    cells.slice(0, 4).filter((cell) => Math.abs(cell[0]) > 0.005).forEach(([weight, name], index) => parts.push(index ? ", " : "", el("span", { dir: "auto" }, `“${name}”`), ` ${shares ? percent(weight) : number(weight, 3)}`));
    if (column !== null && column !== undefined) parts.push(" · ", el("span", { dir: "auto" }, one.columnLabels[column] ?? ""), `: ${number(one.matrix.at(row, column), 4)}`);
    const total = cells.reduce((sum, cell) => sum + cell[0], 0);
    readout.replaceChildren(el("div", {}, parts), sum(one, cells, total));
  }

  // The sum that the layer computes with these weights.
  function sum(one, cells, total) {
    const shown = cells.slice(0, 3);
    return el("div", { class: "sum" }, "context = ", shown.flatMap(([weight, name], index) => [index ? " + " : "", el("span", { class: "num" }, number(weight, 3)), ` · v(`, el("bdi", {}, shortened(name, 10)), ")"]),
      cells.length > 3 ? " + …" : "", `     Σ weights = ${number(total, 3)}`, one.layer.sums_to_one ? "" : "; these weights are learned numbers, which need not sum to 1 and may be negative");
  }

  function update() {
    const one = chosen();
    const heads = one.weights.shape[0];
    put(controls, 
      select("layer", layers.map((layer, index) => [index, `${layer.name} (${layer.about})`]), one.index, (value) => setState({ layer: value, head: null, column: null })),
      heads > 1 ? select("head", [["mean", "mean of all"], ...Array.from({ length: heads }, (_, head) => [head, `head ${head + 1}`])], one.head ?? "mean", (value) => setState({ head: value })) : null,
      wordsHelp(one.layer.rows, one.layer.columns) || one.byWord ? toggle("words", one.byWord, (now) => setState({ level: now ? "words" : "tokens", column: null })) : null);
    const entropy = one.layer.entropy ? tensor(one.layer.entropy) : null;
    if (!entropy) entropies.replaceChildren();
    else entropies.replaceChildren(el("h3", {}, "Entropy of each head"), el("p", { class: "small soft" }, `0 bits: it looks at one place; ${number(one.layer.max_entropy, 2)} bits: at all alike.${heads > 1 ? " Pick a head to see its map." : ""}`),
      fitted(() => bars({ rows: Array.from(entropy.values, (value, head) => ({ label: `head ${head + 1}`, value, text: `${number(value, 2)} bits`, marked: head === one.head })), high: one.layer.max_entropy, low: 0,
        pick: heads > 1 ? (head) => setState({ head: head === one.head ? "mean" : head }) : null, label: "entropy of each head" })));
    frame.draw();
  }
  onState(update);
  update();
  box.append(el("h3", {}, "Attention"), controls, frame, readout, entropies);
  return box;
}

function inputs({ attribution, source, target, prefix, measure, earlier }) {
  const names = { "input-x-gradient": "input × gradient", "integrated-gradients": "integrated gradients" };
  const methods = Object.keys(attribution);
  const cache = new Map();
  const controls = el("div", { class: "controls" });
  const readout = el("div", { class: "readout", "aria-live": "polite" });

  function chosen() {
    const state = readState();
    const method = methods.includes(state.method) ? state.method : methods[0];
    const sides = ["source", "prefix"].filter((side) => attribution[method][side]);
    const side = sides.includes(state.side) ? state.side : sides[0];
    const key = `${method} ${side}`;
    if (side && !cache.has(key)) cache.set(key, tensor(attribution[method][side]));
    const columnsAxis = side === "source" ? source : prefix;
    const byWord = state.level === undefined ? wordsHelp(target, columnsAxis) : state.level === "words";
    const values = cache.get(key);
    const [rows, columns] = values.shape;
    const fits = rows === target.tokens.length;
    const rowAxis = fits ? target : { tokens: Array.from({ length: rows }, (_, i) => `${i + 1}`), words: Array.from({ length: rows }, (_, i) => `${i + 1}`), word_of: Array.from({ length: rows }, (_, i) => i) };
    const matrix = { rows, columns, at: (row, column) => values.at(row, column) };
    return { method, sides, side, byWord, rowAxis, columnsAxis, matrix: byWord ? merged(matrix, rowAxis, columnsAxis) : matrix,
      rowLabels: byWord ? words(rowAxis) : rowAxis.tokens, columnLabels: byWord ? words(columnsAxis) : columnsAxis.tokens };
  }

  const bar = el("div", {});
  const frame = figure({
    name: "attribution", title: "attribution", under: bar,
    drawing: () => {
      const one = chosen();
      const step = whole(readState().step, 0, 0, one.rowAxis.tokens.length - 1);
      const row = one.byWord ? one.rowAxis.word_of[step] ?? 0 : step;
      const top = largest(one.matrix);
      bar.replaceChildren(colourBar(number(-top, 1), number(top, 1), true));
      const say = (r) => {
        const cells = one.columnLabels.map((name, index) => [one.matrix.at(r, index), name]).sort((a, b) => Math.abs(b[0]) - Math.abs(a[0])).slice(0, 4);
        readout.replaceChildren(`${measure} of `, el("strong", { dir: "auto" }, one.rowLabels[r] ?? ""), " gets ", ...cells.flatMap(([value, name], index) => [index ? ", " : "", `${value >= 0 ? "+" : ""}${number(value, 2)} from `, el("span", { dir: "auto" }, name)]));
      };
      say(row);
      return heatmap({ ...one.matrix, rowLabels: one.rowLabels, columnLabels: one.columnLabels, top, signed: true, marked: [row, null], label: names[one.method],
        rowTitle: "output", columnTitle: one.side === "source" ? "input" : earlier, hover: (r) => say(r ?? row), pick: (r) => setState({ step: one.byWord ? one.rowAxis.word_of.indexOf(r) : r }) });
    },
    rows: () => {
      const one = chosen();
      return [["", ...one.columnLabels], one.rowLabels.map((label, row) => [label, ...one.columnLabels.map((_, column) => one.matrix.at(row, column))]), { numeric: one.columnLabels.map((_, index) => index + 1) }];
    },
    data: () => ({ method: chosen().method, ...attribution[chosen().method] }),
  });

  function update() {
    const one = chosen();
    put(controls, 
      methods.length > 1 ? select("method", methods.map((method) => [method, names[method]]), one.method, (value) => setState({ method: value })) : null,
      one.sides.length > 1 ? select("of", one.sides.map((side) => [side, side === "source" ? `input ${source.unit}s` : earlier]), one.side, (value) => setState({ side: value })) : null);
    frame.draw();
  }
  onState(update);
  update();
  return el("section", {}, el("h3", {}, "What moved the output"), controls, frame, readout);
}
