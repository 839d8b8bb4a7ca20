// The receptive field of every layer: which inputs can change one position of its output.

import { el, figure, number, onState, shown, tensor } from "./core.js";
import { heatmap } from "./heat.js";

export function drawReceptive(view) {
  const { layers, position, sizes, axis } = view.data;
  const influence = tensor(view.data.influence);
  const rowOf = (row) => layers.length - 1 - row; // the first layer stands below
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const say = (row) => readout.replaceChildren(el("strong", {}, layers[row]), `: position ${position + 1} (`, el("bdi", {}, shown(axis.tokens[position])), `) reads ${sizes[row]} of ${axis.tokens.length} inputs`);
  const frame = figure({
    name: "receptive-field", title: "receptive field",
    drawing: () => heatmap({ rows: layers.length, columns: axis.tokens.length, at: (row, column) => { const value = influence.at(rowOf(row), column); return value > 0 ? 0.2 + 0.8 * value : 0; },
      rowLabels: layers.map((_, row) => `${layers[rowOf(row)]}: ${sizes[rowOf(row)]}`), columnLabels: axis.tokens.map(shown), top: 1, marked: [null, position], label: "inputs that each layer reads", hover: (row) => say(row === null ? layers.length - 1 : rowOf(row)) }),
    rows: () => [["layer", "inputs", ...axis.tokens.map(shown)], layers.map((name, row) => [name, sizes[row], ...Array.from(influence.row(row), (value) => number(value, 4))]), { numeric: [1, ...axis.tokens.map((_, index) => index + 2)] }],
    data: () => view.data,
  });
  onState(() => frame.draw());
  say(layers.length - 1);
  return [frame, readout];
}
