// Teacher forcing against free running: of one example, and of systems by position.

import { el, figure, number, onState, percent, readState, setState, shown, table, tensor, whole } from "./core.js";
import { colourOf, lineChart } from "./chart.js";
import { colourBar, heatmap } from "./heat.js";

export function drawForcing(view) {
  const { target, forced, free, errors } = view.data;
  const logs = tensor(view.data.log_probabilities).values;
  const spread = tensor(view.data.spread);
  const step = () => whole(readState().step, 0, 0, target.tokens.length - 1);
  const row = (tokens, right, marked = true) => el("div", { class: "words" }, tokens.map((token, index) => el("button", { type: "button", class: `word${marked && right && !right[index] ? " wrong" : ""}`, "aria-current": String(index === step()), onclick: () => setState({ step: index }) }, el("bdi", {}, shown(token)))));
  const words = el("div", {});
  const readout = el("div", { class: "readout" });
  const first = view.data.right_free.indexOf(false);
  const from = Math.min(first < 0 ? free.length : first, free.length);
  const top = Math.max(...spread.values.map(Math.abs), 1e-6);
  const bar = el("div", {}, colourBar(`−${number(top, 1)}`, `+${number(top, 1)}`, true));
  const map = figure({
    name: "error-spread", title: "how an error spreads", under: bar,
    drawing: () => heatmap({ rows: errors.length, columns: target.tokens.length, at: (r, c) => spread.at(r, c), rowLabels: errors.map((token, index) => `${shown(token)} for ${shown(target.tokens[index])}`), columnLabels: target.tokens, top, signed: true, marked: [step() < errors.length ? step() : null, null], rowTitle: "error", columnTitle: "right token", label: "change of log p after an error", pick: (r) => setState({ step: r }) }),
    rows: () => [["error", ...target.tokens.map(shown)], errors.map((token, index) => [`${index + 1}: ${shown(token)}`, ...spread.row(index)]), { numeric: target.tokens.map((_, index) => index + 1) }],
    data: () => view.data,
  });
  const update = () => {
    words.replaceChildren(el("h3", {}, "Right"), row(target.tokens), el("h3", {}, "After the right tokens"), row(forced, view.data.right_forced), el("h3", {}, "After its own tokens"), row(free, free.map((_, index) => view.data.right_free[index] ?? false)));
    readout.replaceChildren(el("div", {}, `step ${step() + 1}: the right token has p = ${number(Math.exp(logs[step()]), 3)} after the right ones. `,
      first < 0 && free.length === target.tokens.length ? "The free output has no error." : `The first error of the free output is at step ${from + 1}; ${percent(view.data.right_free.slice(from + 1).filter(Boolean).length / Math.max(1, target.tokens.length - from - 1))} of the tokens behind it are right, ${percent(view.data.right_forced.slice(from + 1).filter(Boolean).length / Math.max(1, target.tokens.length - from - 1))} after right inputs.`));
    map.draw();
  };
  onState(update);
  update();
  return [words, readout, el("h3", {}, "How an error spreads"), el("p", { class: "small soft" }, "Each row puts one wrong token, the most probable one, into the input. Red: the right token of the column is less probable after it."), errors.length ? map : el("p", {}, "The target is too short.")];
}

export function drawExposure(view) {
  const { systems } = view.data;
  const points = (one, name) => Array.from(tensor(one[name]).values, (value, place) => [name.startsWith("after") ? place : place + 1, 100 * value]);
  const chart = (name, title, xTitle, yTitle, ways, label) => figure({
    name, title,
    drawing: () => lineChart({ series: systems.flatMap((one, index) => ways.map((way, place) => ({ name: `${one.name}: ${way}`, points: points(one, way), colour: colourOf(index), dash: place ? "5 4" : undefined, dots: !place }))), xTitle, yTitle, zero: true, label }),
    rows: () => [["system", xTitle, ...ways], systems.flatMap((one) => points(one, ways[0]).map(([place], index) => [one.name, place, ...ways.map((way) => points(one, way)[index]?.[1] ?? "")])), { numeric: [1, ...ways.map((_, index) => index + 2)] }],
    data: () => view.data,
  });
  const frames = [chart("exposure", "accuracy by position", "position", "right tokens in %", ["forced", "free"], "accuracy with right and own inputs"),
    chart("error-starts", "first errors", "position", "outputs with their first error here, in %", ["starts"], "where the first error is"),
    chart("after-error", "after the first error", "tokens behind the first error", "right tokens in %", ["after_forced", "after_free"], "accuracy behind the first error")];
  const mean = (one, name) => { const counts = tensor(one.counts).values; const values = tensor(one[name]).values; return values.reduce((sum, value, place) => sum + value * counts[place], 0) / counts.reduce((sum, count) => sum + count, 0); };
  onState(() => frames.forEach((frame) => frame.draw()));
  return [el("div", { class: "legend" }, systems.map((one, index) => el("span", {}, el("i", { style: { background: colourOf(index) } }), one.name))), el("div", { class: "columns" },
    el("section", {}, el("h3", {}, "By position"), frames[0]), el("section", {}, el("h3", {}, "Where errors start"), frames[1]), el("section", {}, el("h3", {}, "How they spread"), el("p", { class: "small soft" }, "Behind the first error of the free output: solid with right inputs, dashed with own ones."), frames[2])),
    table(["system", "right with right inputs", "right with own inputs", "gap"], systems.map((one) => [one.name, percent(mean(one, "forced")), percent(mean(one, "free")), percent(mean(one, "forced") - mean(one, "free"))]), { numeric: [1, 2, 3] })];
}
