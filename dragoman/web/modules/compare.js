// The page of a comparison: scores, curves, lengths, significance, outputs, attention, gradients and cost.

import { el, figure, number, onState, put, readState, select, setState, table, tensor, toggle } from "./core.js";
import { bars, colourOf, lineChart } from "./chart.js";
import { heatmap } from "./heat.js";
import { showViews } from "./inspect.js";

function legend(names) {
  return el("div", { class: "legend" }, names.map((name, index) => el("span", {}, el("i", { style: { background: colourOf(index) } }), name)));
}

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 90 ? `${seconds.toFixed(0)} s` : `${(seconds / 60).toFixed(1)} min`;
}

function bytes(value) {
  return value === undefined ? "" : `${(value / 2 ** 20).toFixed(1)} MiB`;
}

function drawStory(view) {
  const { steps, metric } = view.data;
  const frame = figure({
    name: "ladder", title: "scores up the ladder",
    drawing: () => bars({ rows: steps.map((step, index) => ({ label: step.name, value: step.score, text: number(step.score, 1), colour: colourOf(index) })), low: 0, label: "score of each step" }),
    rows: () => [["step", metric], steps.map((step) => [step.name, step.score]), { numeric: [1] }],
    data: () => view.data,
  });
  return [frame, el("ol", {}, steps.map((step) => el("li", {}, el("h3", {}, step.name), el("p", {}, step.text))))];
}

function drawScores(view) {
  const { rows, metrics, target } = view.data;
  const metric = () => metrics.find((one) => one.name === readState().metric) ?? metrics[0];
  const controls = el("div", { class: "controls" });
  const frame = figure({
    name: "scores", title: "scores with intervals",
    drawing: () => {
      const { name, label } = metric();
      return lineChart({ series: rows.map((row, index) => ({ name: row.name, points: [[index, row.scores[name].score, row.scores[name].low, row.scores[name].high]] })), categories: rows.map((row) => row.name), xTitle: "", yTitle: label, zero: true, label: "scores with intervals", height: 260 });
    },
    rows: () => [["system", ...metrics.flatMap((one) => [one.label, "low", "high"])], rows.map((row) => [row.name, ...metrics.flatMap((one) => [row.scores[one.name].score, row.scores[one.name].low, row.scores[one.name].high])]), { numeric: metrics.flatMap((_, index) => [3 * index + 1, 3 * index + 2, 3 * index + 3]) }],
    data: () => view.data,
  });
  const trained = rows.some((row) => row.parameters);
  const costs = trained ? [["parameters", (row) => row.parameters?.toLocaleString("en") ?? ""], ["training tokens/s", (row) => (row.training_tokens_per_second ? Math.round(row.training_tokens_per_second).toLocaleString("en") : "")],
    [`decoding sentences/s${rows[0].beam ? `, beam ${rows[0].beam}, batches of ${rows[0].batch_size}` : ""}`, (row) => (row.decoding_sentences_per_second ? number(row.decoding_sentences_per_second, 1) : "")], ["activations, 32 pairs", (row) => bytes(row.activation_bytes)], ["training time", (row) => time(row.training_seconds)], target && ["time to target", (row) => time(row.seconds_to_target)]].filter(Boolean) : [];
  const cell = (row, one) => { const score = row.scores[one.name]; return el("span", {}, number(score.score, 2), el("br", {}), el("span", { class: "small soft" }, `${number(score.low, 1)} – ${number(score.high, 1)}`), score.seeds.length > 1 ? [el("br", {}), el("span", { class: "small soft" }, `seeds ${score.seeds.map((value) => number(value, 1)).join(", ")}`)] : null); };
  const update = () => {
    put(controls, metrics.length > 1 ? select("metric", metrics.map((one) => [one.name, one.label]), metric().name, (value) => setState({ metric: value })) : null, el("span", { class: "small soft" }, `${metric().higher ? "higher" : "lower"} is better`));
    frame.draw();
  };
  onState(update);
  update();
  return [controls, frame, table(["system", ...metrics.map((one) => one.label), ...costs.map(([name]) => name)], rows.map((row) => [row.name, ...metrics.map((one) => cell(row, one)), ...costs.map(([, show]) => show(row))]), { numeric: [...metrics, ...costs].map((_, index) => index + 1) }),
    target ? el("p", { class: "small soft" }, `target: ${target.metric} ${number(target.score, 2)} on the validation data, which every system reaches`) : null].filter(Boolean);
}

function drawCurves(view) {
  const { systems, metrics } = view.data;
  const metric = () => (metrics.includes(readState().curve) ? readState().curve : view.data.metric);
  const byTime = () => readState().x === "time";
  const controls = el("div", { class: "controls" });
  const series = () => systems.map((one) => ({ name: one.name, points: one.valid.map(([step, seconds, valid]) => [byTime() ? seconds : step, valid[metric()] ?? null]) }));
  const frame = figure({
    name: "curves", title: "learning curves",
    drawing: () => lineChart({ series: series(), xTitle: byTime() ? "seconds of training" : "steps", yTitle: `validation ${metric()}`, label: "learning curves" }),
    rows: () => [["system", "step", "seconds", metric()], systems.flatMap((one) => one.valid.map(([step, seconds, valid]) => [one.name, step, seconds, valid[metric()] ?? ""])), { numeric: [1, 2, 3] }],
    data: () => view.data,
  });
  const update = () => {
    put(controls, select("metric", metrics.map((one) => [one, one]), metric(), (value) => setState({ curve: value })), toggle("by time", byTime(), (now) => setState({ x: now ? "time" : null })));
    frame.draw();
  };
  onState(update);
  update();
  return [controls, legend(systems.map((one) => one.name)), frame];
}

function drawLengths(view) {
  const { systems, buckets, metric, unit, higher } = view.data;
  const frame = figure({
    name: "lengths", title: "score by length",
    drawing: () => lineChart({ series: systems.map((one) => ({ name: one.name, points: one.points.map(([score, low, high], index) => [index, score, low, high]) })), categories: buckets, xTitle: `${unit} of the source`, yTitle: `${metric} (${higher ? "higher" : "lower"} is better)`, zero: true, label: "score by length", height: 340 }),
    rows: () => [["system", unit, "pairs", metric, "low", "high"], systems.flatMap((one) => one.points.map(([score, low, high, count], index) => [one.name, buckets[index], count, score, low, high])), { numeric: [2, 3, 4, 5] }],
    data: () => view.data,
  });
  onState(() => frame.draw());
  return [legend(systems.map((one) => one.name)), frame];
}

function drawSignificance(view) {
  const { systems, metrics } = view.data;
  const p = (value) => (value === null ? "" : value < 0.0015 ? "p ≤ 0.001" : `p = ${value.toFixed(3)}`);
  return metrics.map((one) => el("section", {}, el("h3", {}, `${one.metric}: ${one.higher ? "higher" : "lower"} is better`),
    table(["row − column", ...systems], systems.map((name, row) => [name, ...systems.map((_, column) => {
      if (row === column) return "";
      const difference = one.differences[row][column];
      const sure = one.p[row][column] < 0.05;
      const better = one.higher ? difference > 0 : difference < 0;
      return el("span", { class: sure ? (better ? "good" : "bad") : "soft" }, `${difference > 0 ? "+" : ""}${number(difference, 2)}`, el("br", {}), el("span", { class: "small" }, p(one.p[row][column])));
    })]), { numeric: systems.map((_, index) => index + 1) }))).concat(el("p", { class: "small soft" }, "Coloured cells have p < 0.05: green where the row is better, red where the column is."));
}

function drawOutputs(view) {
  const { systems, rows, unit } = view.data;
  const space = unit === "letters" ? "" : " ";
  const marked = (operations) => el("span", { dir: "auto" }, operations.flatMap(([kind, left, right]) => {
    if (kind === "equal") return [right, space];
    return [kind === "insert" ? "" : el("del", {}, left), kind === "delete" ? "" : el("ins", {}, right), space];
  }));
  return rows.map((row, index) => el("section", { class: "readout" }, row.source === null ? el("strong", {}, `pair ${index + 1}`) : el("strong", { dir: "auto" }, row.source), el("div", { class: "soft", dir: "auto" }, row.reference),
    table(["system", "output"], systems.map((name, place) => [name, marked(row.outputs[place])]))));
}

function drawAttentions(view) {
  const { sentence, maps } = view.data;
  const frames = [];
  const sections = maps.map((map) => {
    if (!map.weights) return el("section", {}, el("h3", {}, map.name), el("p", { class: "soft" }, "has no attention; its output: ", el("bdi", {}, map.output)));
    const weights = tensor(map.weights);
    const frame = figure({ name: `attention-${map.name}`, title: `attention of ${map.name}`, drawing: () => heatmap({ rows: weights.shape[0], columns: weights.shape[1], at: (row, column) => weights.at(row, column), rowLabels: map.rows, columnLabels: map.columns, top: 1, label: `attention of ${map.name}`, cell: 26, rowTitle: "output", columnTitle: "input" }),
      rows: () => [["", ...map.columns], map.rows.map((name, row) => [name, ...map.columns.map((_, column) => weights.at(row, column))]), { numeric: map.columns.map((_, index) => index + 1) }], data: () => map });
    frames.push(frame);
    return el("section", {}, el("h3", {}, map.name), el("p", { class: "small soft" }, map.layer, " · output: ", el("bdi", {}, map.output)), frame);
  });
  onState(() => frames.forEach((frame) => frame.draw()));
  return [el("p", { dir: "auto" }, el("strong", {}, sentence)), el("div", { class: "columns" }, sections)];
}

function drawFlows(view) {
  const { flows, sentence } = view.data;
  const points = (packed) => Array.from(tensor(packed).values, (value, distance) => [distance, value]);
  const frame = figure({
    name: "gradient-flow", title: "gradient flow",
    drawing: () => lineChart({ series: flows.flatMap((flow, index) => [{ name: flow.name, points: points(flow.state), colour: colourOf(index) }, flow.bound && { name: `${flow.name}: bound`, points: points(flow.bound), colour: colourOf(index), dash: "5 4", dots: false }, flow.gates && { name: `${flow.name}: ∏ forget gates`, points: points(flow.gates), colour: colourOf(index), dash: "2 3", dots: false }].filter(Boolean)), xTitle: "distance in steps", yTitle: "‖∂h(T)/∂h(t)‖", logY: true, label: "gradient flow of all systems" }),
    rows: () => [["system", "distance", "norm"], flows.flatMap((flow) => points(flow.state).map(([distance, value]) => [flow.name, distance, value])), { numeric: [1, 2] }],
    data: () => view.data,
  });
  onState(() => frame.draw());
  return [legend(flows.map((flow) => `${flow.name} (${flow.kind}): ×${number(10 ** flow.slope, 2)} per step`)), frame, el("p", { class: "small soft" }, "Dashed: spectral bound of a plain recurrent network. Dotted: product of forget gates. Source: ", el("bdi", {}, sentence))];
}

function drawCost(view) {
  const { layers } = view.data;
  const memory = () => readState().of === "memory";
  const controls = el("div", { class: "controls" });
  const frame = figure({
    name: "cost", title: "cost against length",
    drawing: () => lineChart({ series: layers.map((layer) => ({ name: layer.name, points: layer.points.map(([length, seconds, saved]) => [length, memory() ? saved / 2 ** 20 : 1000 * seconds]) })), xTitle: "tokens", yTitle: memory() ? "MiB saved for the backward pass" : "milliseconds, forward and backward", logX: true, logY: true, label: "cost against length" }),
    rows: () => [["layer", "tokens", "milliseconds", "MiB"], layers.flatMap((layer) => layer.points.map(([length, seconds, saved]) => [layer.name, length, 1000 * seconds, saved / 2 ** 20])), { numeric: [1, 2, 3] }],
    data: () => view.data,
  });
  const update = () => { put(controls, toggle("memory", memory(), (now) => setState({ of: now ? "memory" : null }))); frame.draw(); };
  onState(update);
  update();
  return [controls, legend(layers.map((layer) => layer.name)), frame, table(["layer", "exponent of time", "in theory", "exponent of memory", "in theory"], layers.map((layer) => [layer.name, number(layer.seconds_exponent, 2), number(layer.expected, 0), number(layer.saved_exponent, 2), number(layer.expected_saved, 0)]), { numeric: [1, 2, 3, 4] })];
}

const VIEWS = { story: drawStory, scores: drawScores, curves: drawCurves, lengths: drawLengths, significance: drawSignificance, outputs: drawOutputs, attentions: drawAttentions, flows: drawFlows, cost: drawCost };

export function showComparison(data, root) {
  showViews(data, root, VIEWS, [el("h1", { dir: "auto" }, data.title), el("p", { class: "soft", dir: "auto" }, data.about)]);
}
