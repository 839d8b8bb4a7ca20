// Inside attention: query, keys, products, softmax, values, output; and the Transformer layer by layer.

import { el, figure, fitted, number, onState, percent, put, readState, select, setState, shown, table, tensor, whole } from "./core.js";
import { colourBar, heatmap } from "./heat.js";
import { bars, colourOf, lineChart } from "./chart.js";

const count = (size) => Array.from({ length: size }, (_, index) => String(index + 1));

function extent(rows) {
  return Math.max(1e-9, ...rows.flatMap((row) => Array.from(row, Math.abs)));
}

// Vectors as rows of one heat map.
function strips(names, rows, label) {
  const labels = count(rows[0].length).map((text, place) => (rows[0].length > 64 && place % 10 ? " " : text));
  return heatmap({ square: false, rows: rows.length, columns: rows[0].length, at: (row, column) => rows[row][column], rowLabels: names, columnLabels: labels, top: extent(rows), signed: true, label, columnTitle: "dimension", cell: Math.max(6, Math.min(24, 600 / rows[0].length)) });
}

export function drawInside(view, data) {
  const { layers, left_out: leftOut } = view.data;
  const cache = new Map();
  const attention = data.views.find((one) => one.kind === "attention").data.layers; // has the weights
  const parts = (index) => {
    if (!cache.has(index)) cache.set(index, Object.fromEntries([["weights", tensor(attention.find((one) => one.name === layers[index].name).weights)], ...["query", "key", "value", "bias", "visible", "shares", "output", "score"].map((name) => [name, layers[index][name] ? tensor(layers[index][name]) : null])]));
    return cache.get(index);
  };
  // One term of the score: of q·k, or of vᵀ tanh(q + k).
  const term = (one, place, q, k) => (one.score ? one.score.values[place] * Math.tanh(q + k) : q * k);
  const formula = (layer) => (layer.score ? "vᵀ tanh(q + k)" : "q·k");
  function chosen() {
    const state = readState();
    const index = whole(state.inside, layers.length - 1, 0, layers.length - 1);
    const layer = layers[index];
    const one = parts(index);
    const [heads, rows, columns] = one.weights.shape;
    const head = whole(state.head, 0, 0, heads - 1);
    const row = whole(state.step, 0, 0, rows - 1);
    const query = one.query.row(head, row);
    const cells = Array.from({ length: columns }, (_, column) => {
      const key = one.key.row(head, column);
      const product = query.reduce((sum, value, place) => sum + term(one, place, value, key[place]), 0);
      const hidden = one.visible ? one.visible.at(row, column) === 0 : layer.causal && column > row;
      const bias = one.bias ? one.bias.at(head, row, column) : 0;
      return { product, scaled: product * layer.scale, bias, hidden, weight: one.weights.at(head, row, column) };
    });
    const strongest = cells.reduce((best, cell, place) => (cell.weight > cells[best].weight ? place : best), 0);
    const column = whole(state.column, strongest, 0, columns - 1);
    return { index, layer, one, head, heads, row, column, query, key: one.key.row(head, column), cells };
  }
  const controls = el("div", { class: "controls" });
  const product = figure({
    name: "query-key", title: "query times key",
    drawing: () => { const now = chosen(); const terms = now.query.map((value, place) => term(now.one, place, value, now.key[place])); return now.layer.score ? strips(["q = W s", "k = U h", "tanh(q + k)", "v", "v × tanh"], [now.query, now.key, now.query.map((value, place) => Math.tanh(value + now.key[place])), now.one.score.values, terms], "query, key and the terms of their score") : strips(["q", "k", "q × k"], [now.query, now.key, terms], "query, key and their products"); },
    rows: () => { const now = chosen(); return [["dimension", "q", "k", now.layer.score ? "v × tanh(q + k)" : "q × k"], Array.from(now.query, (value, place) => [place + 1, value, now.key[place], term(now.one, place, value, now.key[place])]), { numeric: [0, 1, 2, 3] }]; },
    data: () => { const { layer, head, row, column, query, key } = chosen(); return { layer: layer.name, head: head + 1, row, column, query: Array.from(query), key: Array.from(key) }; },
  });
  const sum = el("div", { class: "readout", "aria-live": "polite" });
  const steps = el("div", {});
  const context = figure({
    name: "context", title: "sum of the values",
    drawing: () => {
      const now = chosen();
      const order = now.cells.map((cell, place) => [cell.weight, place]).sort((a, b) => b[0] - a[0]).slice(0, 6);
      const scaled = order.map(([weight, place]) => now.one.value.row(now.head, place).map((value) => value * weight));
      return strips([...order.map(([weight, place]) => `${number(weight, 2)} · v(${shown(now.layer.columns.tokens[place])})`), "Σ weights · v"], [...scaled, total(now)], "weighted values and their sum");
    },
    rows: () => { const now = chosen(); return [["dimension", "Σ weights · v"], Array.from(total(now), (value, place) => [place + 1, value]), { numeric: [0, 1] }]; },
    data: () => { const now = chosen(); return { context: Array.from(total(now)), output: Array.from(now.one.output.row(now.row)) }; },
  });
  const mixed = el("div", {});
  function total(now) {
    const out = new Float64Array(now.one.value.shape[2]);
    now.cells.forEach((cell, place) => now.one.value.row(now.head, place).forEach((value, at) => { out[at] += cell.weight * value; }));
    return out;
  }
  function update() {
    const now = chosen();
    const { layer, cells, column, row } = now;
    const cell = cells[column];
    const name = (text) => el("strong", { dir: "auto" }, shown(text));
    put(controls, select("layer", layers.map((one, index) => [index, one.name]), now.index, (value) => setState({ inside: value, column: null })),
      now.heads > 1 ? select("head", count(now.heads).map((text, index) => [index, `head ${text}`]), now.head, (value) => setState({ head: value })) : null,
      select("from", layer.rows.tokens.map((text, index) => [index, `${index + 1} ${shown(text)}`]), row, (value) => setState({ step: value })),
      select("to", layer.columns.tokens.map((text, index) => [index, `${index + 1} ${shown(text)}`]), column, (value) => setState({ column: value })));
    product.draw();
    put(sum, el("div", {}, "q of ", name(layer.rows.tokens[row]), ", k of ", name(layer.columns.tokens[column])),
      el("div", { class: "sum" }, `${formula(layer)} = `, el("span", { class: "num" }, number(cell.product, 3)), layer.scale === 1 ? "" : [`   × ${number(layer.scale, 4)} = `, el("span", { class: "num" }, number(cell.scaled, 3))],
        now.one.bias ? ["   + bias ", el("span", { class: "num" }, number(cell.bias, 3))] : "", cell.hidden ? "   masked" : "", "   softmax → ", el("span", { class: "num" }, number(cell.weight, 4))));
    const top = Math.max(...cells.filter((one) => !one.hidden).map((one) => one.scaled + one.bias));
    const head = ["column", formula(layer), `× ${number(layer.scale, 4)}`, ...(now.one.bias ? ["+ bias"] : []), "exp(score − largest)", "weight"];
    put(steps, table(head, cells.map((one, place) => [layer.columns.tokens[place], one.product, one.scaled, ...(now.one.bias ? [one.bias] : []), one.hidden ? "masked" : Math.exp(one.scaled + one.bias - top), one.weight]), { numeric: head.slice(1).map((_, index) => index + 1) }));
    context.draw();
    const shares = now.one.shares;
    put(mixed, shares ? [el("h3", {}, "W^O mixes the heads"), el("p", { class: "small soft" }, "Length of what each head adds to the output of this position."),
      fitted(() => bars({ rows: count(now.heads).map((text, place) => ({ label: `head ${text}`, value: shares.at(place, row), marked: place === now.head })), low: 0, pick: (place) => setState({ head: place }), label: "share of each head" })),
      fitted(() => strips(["output"], [now.one.output.row(row)], "output of the layer"))] : null);
  }
  onState(update);
  update();
  // Every step at once: α, h and c = Σ α·h, in full.
  const every = el("details", {}, el("summary", {}, "All steps: α, h and c = Σ α·h"));
  every.addEventListener("toggle", () => fill());
  function fill() {
    if (!every.open) return;
    const { layer, one, head } = chosen();
    const context = tensor(layer.context);
    const [names, inputs] = [layer.rows.tokens.map(shown), layer.columns.tokens.map(shown)];
    const size = count(one.value.shape[2]);
    const grid = (title, first, across, down, row) => [el("h4", {}, title), table([first, ...across], down.map((name, place) => [name, ...Array.from(row(place), (value) => number(value, 4))]), { numeric: across.map((_, place) => place + 1) })];
    put(every, el("summary", {}, "All steps: α, h and c = Σ α·h"), grid("α: weights", "output", inputs, names, (row) => one.weights.row(head, row)), grid("h: values", "input", size, inputs, (row) => one.value.row(head, row)), grid("c = Σ α·h", "output", size, names, (row) => context.row(head, row)));
  }
  onState(fill);
  return [controls, el("h3", {}, "Query and key"), product, sum, el("h3", {}, "Scale, mask, softmax"), steps, el("h3", {}, "Values"), context, mixed, every,
    leftOut ? el("p", { class: "small soft" }, `The vectors of ${leftOut} more layers are left out, because the text is long.`) : null].filter(Boolean);
}

export function drawLens(view) {
  const { lens, norms, target } = view.data;
  const out = [];
  if (lens) {
    const chances = tensor(lens.chosen);
    const top = tensor(lens.probabilities);
    const [layers, steps] = chances.shape;
    const step = () => whole(readState().step, 0, 0, steps - 1);
    const grid = figure({
      name: "logit-lens", title: "logit lens",
      drawing: () => heatmap({ rows: layers, columns: steps, at: (row, column) => chances.at(layers - 1 - row, column), rowLabels: [...lens.layers].reverse(), columnLabels: target.tokens, top: 1, marked: [null, step()], label: "probability of the target after each layer", columnTitle: "target", pick: (row, column) => setState({ step: column }), square: false }),
      rows: () => [["after", ...target.tokens], lens.layers.map((name, layer) => [name, ...target.tokens.map((_, column) => chances.at(layer, column))]), { numeric: target.tokens.map((_, index) => index + 1) }],
      data: () => view.data,
    });
    const said = el("div", {});
    const update = () => {
      grid.draw();
      put(said, table(["after", "would say", "", "", "target"], lens.layers.map((name, layer) => [name, ...[0, 1, 2].map((place) => (lens.tokens[layer][step()][place] === undefined ? "" : el("span", {}, el("bdi", {}, shown(lens.tokens[layer][step()][place])), ` ${percent(top.at(layer, step(), place))}`))), percent(chances.at(layer, step()))]), { numeric: [4] }));
    };
    onState(update);
    update();
    out.push(el("h3", {}, "Logit lens"), el("p", { class: "small soft" }, "Probability of the target if the layers above were left out; the top row is the model itself."), grid, colourBar("0", "1"), said);
  }
  if (norms.length) {
    const stacks = [...new Set(norms.map((one) => one.name.split(".blocks.")[0]))];
    const stack = () => (stacks.includes(readState().stack) ? readState().stack : stacks[stacks.length - 1]);
    const own = () => norms.filter((one) => one.name.split(".blocks.")[0] === stack());
    const place = () => whole(readState().step, 0, 0, own()[0].axis.tokens.length - 1);
    const names = () => Object.keys(own()[0].parts);
    const controls = el("div", { class: "controls" });
    const frame = figure({
      name: "residual-norms", title: "lengths of vectors",
      drawing: () => lineChart({ series: names().map((part, index) => ({ name: part, points: own().map((one, layer) => [layer, one.parts[part] ? tensor(one.parts[part]).at(place()) : null]), colour: colourOf(index) })), categories: own().map((_, layer) => `layer ${layer + 1}`), xTitle: "", yTitle: "length", zero: true, label: "lengths of vectors by layer" }),
      rows: () => [["layer", ...names()], own().map((one) => [one.name, ...names().map((part) => (one.parts[part] ? tensor(one.parts[part]).at(place()) : ""))]), { numeric: names().map((_, index) => index + 1) }],
      data: () => norms,
    });
    const key = el("div", { class: "legend" });
    const update = () => {
      put(controls, stacks.length > 1 ? select("stack", stacks.map((one) => [one, one]), stack(), (value) => setState({ stack: value })) : null, el("span", { class: "small soft" }, "position: ", el("strong", { dir: "auto" }, shown(own()[0].axis.tokens[place()]))));
      put(key, names().map((part, index) => el("span", {}, el("i", { style: { background: colourOf(index) } }), part)));
      frame.draw();
    };
    onState(update);
    update();
    out.push(el("h3", {}, "Lengths of vectors"), el("p", { class: "small soft" }, "What goes into each block, what attention and feed-forward layers add, and what comes out."), controls, key, frame);
  }
  return out;
}
