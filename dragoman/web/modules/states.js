// Gates and states of recurrent layers over time, the equation of one unit with its numbers, and implicit attention.

import { el, figure, number, onState, put, readState, select, setState, tensor, toggle, whole } from "./core.js";
import { colourBar, heatmap } from "./heat.js";
import { lineChart } from "./chart.js";

const SIGNED = new Set(["candidate", "hidden state", "cell state"]);

export function drawStates(view) {
  const { cells, cross } = view.data;
  const cache = new Map();
  const read = (packed) => { if (!cache.has(packed)) cache.set(packed, tensor(packed)); return cache.get(packed); };
  const controls = el("div", { class: "controls" });
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const bar = el("div", {});
  const chosen = () => {
    const state = readState();
    const cell = cells[whole(state.cell, 0, 0, cells.length - 1)];
    const names = Object.keys(cell.values);
    const name = names.includes(state.value) ? state.value : names[names.length - 1];
    const time = Math.min(whole(state.time ?? state.step, 0, 0, 1e9), cell.axis.tokens.length - 1);
    const unit = whole(state.unit, 0, 0, cell.units.length - 1);
    return { cell, names, name, time, unit };
  };
  const limit = (cell, name) => (name === "cell state" ? Math.max(1, ...read(cell.values[name]).values.map(Math.abs)) : 1);
  const frame = figure({
    name: "states", title: "gates and states", under: bar,
    drawing: () => {
      const { cell, name, time, unit } = chosen();
      const values = read(cell.values[name]);
      const shown = readState().units === "all" ? cell.units.length : Math.min(24, cell.units.length);
      const signed = SIGNED.has(name);
      const top = limit(cell, name);
      bar.replaceChildren(colourBar(signed ? number(-top, 1) : "0", number(top, 1), signed));
      return heatmap({ rows: shown, columns: values.shape[1], at: (row, column) => values.at(row, column), rowLabels: cell.units.slice(0, shown).map((one) => `unit ${one}`), columnLabels: cell.axis.tokens,
        top, signed, marked: [unit < shown ? unit : null, time], square: false, label: `${name} of ${cell.name}`, columnTitle: cell.backward ? "read from right to left" : "read from left to right",
        pick: (row, column) => setState({ unit: row, time: column }), hover: (row, column) => { if (row !== null) say(row, column); else say(unit, time); } });
    },
    rows: () => {
      const { cell, name } = chosen();
      const values = read(cell.values[name]);
      return [["unit", ...cell.axis.tokens], cell.units.map((one, row) => [one, ...cell.axis.tokens.map((_, column) => values.at(row, column))]), { numeric: cell.axis.tokens.map((_, index) => index + 1) }];
    },
    data: () => chosen().cell,
  });
  const curves = figure({
    name: "unit", title: "one unit over time",
    drawing: () => {
      const { cell, names, time, unit } = chosen();
      return lineChart({ series: names.map((name) => ({ name, points: cell.axis.tokens.map((_, column) => [column, read(cell.values[name]).at(unit, column)]), dash: name === "candidate" ? "4 3" : null })),
        xTitle: "step", yTitle: `unit ${cell.units[unit]}`, marked: time, labels: cell.axis.tokens, label: "gates and states of one unit", height: 230 });
    },
    rows: () => {
      const { cell, names, unit } = chosen();
      return [["step", "token", ...names], cell.axis.tokens.map((token, column) => [column + 1, token, ...names.map((name) => read(cell.values[name]).at(unit, column))]), { numeric: [0, ...names.map((_, index) => index + 2)] }];
    },
    data: () => chosen().cell,
  });
  const legend = el("div", { class: "legend" });

  function say(unit, time) {
    const { cell } = chosen();
    const get = (name, at) => read(cell.values[name]).at(unit, at);
    const earlier = cell.backward ? time + 1 : time - 1;
    const started = earlier < 0 || earlier >= cell.axis.tokens.length;
    const previous = (name) => (started ? (name === "hidden state" ? tensor(cell.start).values[unit] : null) : get(name, earlier));
    readout.replaceChildren(el("strong", { dir: "auto" }, cell.axis.tokens[time] ?? ""), ` · unit ${cell.units[unit]} · ${cell.kind}`, el("div", { class: "sum" }, equation(cell, get, previous, time)));
  }
  const num = (value) => el("span", { class: "num" }, number(value, 3));
  function equation(cell, get, previous, t) {
    const names = cell.values;
    if (names["update gate"]) return ["h = u·h′ + (1−u)·ĥ = ", num(get("update gate", t)), " · ", num(previous("hidden state")), " + ", num(1 - get("update gate", t)), " · ", num(get("candidate", t)), " = ", num(get("hidden state", t))];
    if (names["cell state"]) {
      const forget = get("forget gate", t);
      const input = names["input gate"] ? get("input gate", t) : 1 - forget;
      return ["c = f·c′ + i·ĉ = ", num(forget), " · ", num(previous("cell state") ?? (forget ? (get("cell state", t) - input * get("candidate", t)) / forget : 0)), " + ", num(input), " · ", num(get("candidate", t)), " = ", num(get("cell state", t)),
        "\nh = o·tanh(c) = ", num(get("output gate", t)), " · ", num(Math.tanh(get("cell state", t))), " = ", num(get("hidden state", t))];
    }
    return ["h = tanh(W x + U h′ + b) = ", num(get("hidden state", t))];
  }

  const extra = el("div", {});
  function implicit(cell) {
    if (!cell.implicit) return [];
    const weights = read(cell.implicit);
    const columns = ["start", ...cell.axis.tokens];
    const own = (shape, at, rowLabels, columnLabels, title, name, packed) => figure({ name, title, drawing: () => heatmap({ rows: shape[0], columns: shape[1], at, rowLabels, columnLabels, top: 1, marked: [Math.min(chosen().time, shape[0] - 1), null], label: title,
      pick: (row) => setState({ time: row }) }), rows: () => [["", ...columnLabels], rowLabels.map((label, row) => [label, ...columnLabels.map((_, column) => at(row, column))]), { numeric: columnLabels.map((_, index) => index + 1) }], data: () => packed });
    const parts = [el("section", {}, el("h3", {}, "Implicit attention of the gates"), el("p", { class: "small soft" }, "Unrolled, a gated state is a weighted mean of all candidates so far and the start state. Each row is one step and sums to 1."),
      own(weights.shape, (row, column) => weights.at(row, column), cell.axis.tokens, columns, "implicit attention", "implicit-attention", cell.implicit))];
    if (cross) {
      const trained = read(cross.weights);
      parts.push(el("section", {}, el("h3", {}, "Trained attention of the same model"), el("p", { class: "small soft" }, "A trained attention chooses places freely; gates can only fade the past evenly for all places."),
        own(trained.shape, (row, column) => trained.at(row, column), Array.from({ length: trained.shape[0] }, (_, index) => `step ${index + 1}`), cross.columns.tokens, "trained attention", "trained-attention", cross)));
    }
    return [el("div", { class: "columns" }, parts)];
  }

  function update() {
    const { cell, names, name, time, unit } = chosen();
    put(controls, select("layer", cells.map((one, index) => [index, `${one.name} (${one.kind}${one.backward ? ", backward" : ""})`]), cells.indexOf(cell), (value) => setState({ cell: value, unit: null, time: null })),
      select("show", names.map((one) => [one, one]), name, (value) => setState({ value })),
      cell.units.length > 24 ? toggle(`more units`, readState().units === "all", (now) => setState({ units: now ? "all" : null })) : null,
      el("span", { class: "small soft" }, `${readState().units === "all" ? cell.units.length : Math.min(24, cell.units.length)} of ${cell.width} units, those that vary most first`));
    legend.replaceChildren(...names.map((one, index) => el("span", {}, el("i", { style: { background: `var(--s${index})` } }), one)));
    frame.draw();
    curves.draw();
    extra.replaceChildren(...implicit(cell));
    say(unit, time);
  }
  onState(update);
  update();
  return [controls, frame, readout, el("h3", {}, "One unit over time"), legend, curves, extra];
}
