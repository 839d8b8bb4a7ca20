// Gradient flow: dependence on earlier states by distance, with bounds, and the loss of each output by state.

import { el, figure, number, onState, put, readState, select, setState, shown, tensor, whole } from "./core.js";
import { lineChart } from "./chart.js";
import { colourBar, heatmap } from "./heat.js";

export function drawGradients(view) {
  const { flows, target } = view.data;
  const chosen = () => whole(readState().flow, 0, 0, flows.length - 1);
  const controls = el("div", { class: "controls" });
  const series = () => flows.flatMap((flow, index) => {
    const points = (packed) => Array.from(tensor(packed).values, (value, distance) => [distance, value]);
    const colour = `var(--s${index % 8})`;
    return [{ name: flow.name, points: points(flow.state), colour }, flow.bound && { name: `${flow.name}: bound`, points: points(flow.bound), dash: "5 4", colour, dots: false },
      flow.gates && { name: `${flow.name}: ∏ forget gates`, points: points(flow.gates), dash: "2 3", colour, dots: false }].filter(Boolean);
  });
  const curve = figure({
    name: "gradient-flow", title: "gradient flow",
    drawing: () => lineChart({ series: series(), xTitle: "distance in steps", yTitle: "‖∂h(T)/∂h(t)‖", logY: true, label: "gradient of the last state by distance" }),
    rows: () => [["layer", "distance", "norm", "bound", "∏ forget gates"], flows.flatMap((flow) => Array.from(tensor(flow.state).values, (value, distance) => [flow.name, distance, value, flow.bound ? tensor(flow.bound).values[distance] : "", flow.gates ? tensor(flow.gates).values[distance] : ""])), { numeric: [1, 2, 3, 4] }],
    data: () => view.data,
  });
  const bar = el("div", {});
  const losses = figure({
    name: "loss-gradients", title: "gradient of each loss by state", under: bar,
    drawing: () => {
      const flow = flows[chosen()];
      const values = tensor(flow.loss);
      const logs = Array.from(values.values, (value) => Math.log10(value + 1e-12));
      const [high, low] = [Math.max(...logs), Math.max(Math.min(...logs), Math.max(...logs) - 6)];
      bar.replaceChildren(colourBar(number(10 ** low, 1), number(10 ** high, 1)));
      const [rows, columns] = values.shape;
      const names = rows === target.tokens.length ? target.tokens : Array.from({ length: rows }, (_, index) => `${index + 1}`);
      return heatmap({ rows, columns, at: (row, column) => Math.max(0, (logs[row * columns + column] - low) / (high - low || 1)), rowLabels: names, columnLabels: flow.axis.tokens.slice(0, columns), top: 1,
        marked: [whole(readState().step, 0, 0, rows - 1), null], rowTitle: "loss of", columnTitle: "state after reading", label: "log gradient of each loss by state", pick: (row) => setState({ step: row }) });
    },
    rows: () => { const flow = flows[chosen()]; const values = tensor(flow.loss); return [["loss of", ...flow.axis.tokens.slice(0, values.shape[1]).map(shown)], Array.from({ length: values.shape[0] }, (_, row) => [shown(target.tokens[row] ?? String(row + 1)), ...values.row(row)]), { numeric: Array.from({ length: values.shape[1] }, (_, index) => index + 1) }]; },
    data: () => flows[chosen()],
  });
  const update = () => {
    put(controls, select("layer", flows.map((flow, index) => [index, `${flow.name} (${flow.kind})`]), chosen(), (value) => setState({ flow: value })));
    curve.draw();
    losses.draw();
  };
  onState(update);
  update();
  return [
    el("div", { class: "legend" }, flows.map((flow, index) => el("span", {}, el("i", { style: { background: `var(--s${index % 8})` } }), `${flow.name} (${flow.kind}): ×${number(10 ** flow.slope, 2)} per step, σ₁(W) = ${number(flow.radius, 2)}`))),
    curve, el("h3", {}, "Which states each output's loss reaches"), el("p", { class: "small soft" }, `Each row is the loss of one output ${target.unit}: how strongly it changes with the state of each step. The scale is logarithmic.`), controls, losses];
}
