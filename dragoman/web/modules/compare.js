// The page of a comparison: scores, curves, lengths, significance, outputs, attention, gradients and cost.

import { el, figure, number, onState, put, readState, select, setState, table, tensor, toggle } from "./core.js";
import { bars, colourOf, lineChart, stacked } from "./chart.js";
import { heatmap } from "./heat.js";
import { drawExposure } from "./forcing.js";
import { drawPadding } from "./padding.js";
import { showViews } from "./inspect.js";

// Names, each with the colour of its place; [name, place] where some are left out.
function legend(names) {
  return el("div", { class: "legend" }, names.map((name, index) => (Array.isArray(name) ? name : [name, index])).map(([name, place]) => el("span", {}, el("i", { style: { background: colourOf(place) } }), name)));
}

// The entries with a name among `names` (all without names), each with the colour of its place.
function coloured(systems, names) {
  return systems.map((one, index) => ({ ...one, place: index, colour: colourOf(index) })).filter((one) => !names || names.includes(one.name));
}

function named(frame, systems) {
  return Object.assign(frame, { names: systems.map((one) => [one.name, one.place]) });
}

function time(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  return seconds < 90 ? `${seconds.toFixed(0)} s` : `${(seconds / 60).toFixed(1)} min`;
}

function bytes(value) {
  return value === undefined ? "" : `${(value / 2 ** 20).toFixed(1)} MiB`;
}

// The figures of a step: its own part of another view, beside the step before it.
const STEP_FIGURES = {
  attentions: ({ maps }, names) => maps.filter((map) => map.name === names.at(-1) && map.weights).map(mapFigure),
  flows: (data, names) => flowFigures(data, (flow) => names.some((name) => flow.name.startsWith(`${name}: `))),
  lengths: (data, names) => [lengthFigure(data, names)],
  curves: (data, names) => [curveFigure(data, data.metric, names)],
  cost: (data) => [costFigure(data, () => false)],
};

function drawStory(view, data) {
  const { steps, metric, higher = true } = view.data;
  const dated = (step) => (step.year ? `${step.year} ${step.name.replace(` ${step.year}`, "")}` : step.name); // the year first: ends of long labels are cut
  // What a report without years has not measured is left out.
  const parts = [["score", `${metric} (${higher ? "higher" : "lower"} is better)`, 1], ["parameters", "parameters", 0], ["training_tokens_per_second", "training tokens per second", 0], ["decoding_sentences_per_second", "decoded sentences per second", 1]]
    .filter(([key]) => steps.some((step) => step[key]));
  const shownAs = (step, key, digits) => (step[key] === undefined || step[key] === null ? "–" : step[key].toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }));
  const frames = [figure({
    name: "ladder", title: "years, scores, sizes and speeds up the ladder",
    drawing: () => stacked(parts.map(([key, title, digits]) => [title, bars({ rows: steps.map((step, index) => ({ label: dated(step), value: step[key] ?? 0, text: shownAs(step, key, digits), colour: colourOf(index) })), low: 0, label: `${title} of each step` })]), "the ladder"),
    rows: () => [["step", "year", ...parts.map(([, title]) => title)], steps.map((step) => [step.name, step.year ?? "", ...parts.map(([key]) => step[key] ?? "")]), { numeric: parts.map((_, place) => place + 2) }],
    data: () => view.data,
  })];
  const drawn = (step, index) => step.figures.flatMap((kind) => {
    const other = data.views.find((one) => one.kind === kind);
    const names = steps.slice(Math.max(0, index - 1), index + 1).map((one) => one.name);
    const found = other ? STEP_FIGURES[kind](other.data, names) : [];
    frames.push(...found);
    return found.map((frame) => el("div", {}, el("h4", {}, other.title), kind === "attentions" ? null : legend(frame.names), frame));
  });
  onState(() => frames.forEach((frame) => frame.draw()));
  return [frames[0], el("ol", {}, steps.map((step, index) => el("li", {}, el("h3", {}, dated(step)), el("p", {}, step.text), el("div", { class: "columns" }, drawn(step, index)))))];
}

// A row for each configuration, a column for each task.
function drawTasks(view) {
  const { tasks, rows, published = [] } = view.data;
  const glue = Object.keys(published[0]?.scores ?? {});
  const beside = published.length ? [el("h3", {}, "GLUE as published"), el("p", { class: "small soft" }, "Scores of the test server (Devlin et al. 2019, table 1)."), table(["system", ...glue, "average"], published.map((row) => [row.name, ...glue.map((name) => number(row.scores[name], 1)), number(row.average, 1)]), { numeric: [...glue, 0].map((_, place) => place + 1) })] : [];
  const text = (score) => number(score.mean, 1) + (score.deviation === null ? "" : ` ± ${number(score.deviation, 1)}`);
  return [table(["system", ...tasks.map((task) => `${task.name} (${task.metric})`), "average"], rows.map((row) => [row.name, ...row.scores.map(text), number(row.average, 1)]), { numeric: [...tasks, 0].map((_, place) => place + 1) }), ...beside];
}

// The line through points by least squares: [intercept, slope].
function fitted(points) {
  const mean = (place) => points.reduce((sum, point) => sum + point[place], 0) / points.length;
  const [x, y] = [mean(0), mean(1)];
  const slope = points.reduce((sum, point) => sum + (point[0] - x) * (point[1] - y), 0) / points.reduce((sum, point) => sum + (point[0] - x) ** 2, 0);
  return [y - slope * x, slope];
}

// The scaling curve of an architecture: score against parameters, where three or more sizes of it are compared.
function sizeFigure(view, metric) {
  const sizes = (kind) => coloured(view.data.rows).filter((row) => row.parameters && row.kind === kind);
  const rows = view.data.rows.map((row) => (row.kind ? sizes(row.kind) : [])).reduce((best, own) => (own.length > best.length ? own : best), []);
  if (new Set(rows.map((row) => row.parameters)).size < 3) return null;
  const score = (row) => row.scores[metric().name];
  const line = () => fitted(rows.map((row) => [Math.log2(row.parameters), score(row).score]));
  const ends = [Math.min, Math.max].map((end) => end(...rows.map((row) => row.parameters)));
  const frame = figure({
    name: "score-by-size", title: "score against parameters",
    drawing: () => lineChart({ series: [{ name: "least squares", points: ends.map((size) => [size / 1e6, line()[0] + line()[1] * Math.log2(size)]), colour: "var(--soft)", dash: "5 4", dots: false }, ...rows.map((row) => ({ name: row.name, points: [[row.parameters / 1e6, score(row).score, score(row).low, score(row).high]], colour: row.colour }))], xTitle: "million parameters", yTitle: metric().label, logX: true, label: "score against parameters" }),
    rows: () => [["system", "parameters", metric().label], rows.map((row) => [row.name, row.parameters, score(row).score]), { numeric: [1, 2] }],
    data: () => rows.map((row) => ({ name: row.name, parameters: row.parameters, ...score(row) })),
  });
  const text = el("p", { class: "small soft" });
  const draw = () => {
    text.replaceChildren(`Each doubling of the parameters goes with ${line()[1] < 0 ? "−" : "+"}${number(Math.abs(line()[1]), 2)} ${metric().label} over these ${rows.length} systems of one architecture (dashed, least squares).`);
    frame.draw();
  };
  return Object.assign(el("section", {}, el("h3", {}, "Score against size"), legend(rows.map((row) => [row.name, row.place])), frame, text), { draw });
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
  const sizes = sizeFigure(view, metric);
  const trained = rows.some((row) => row.parameters);
  const costs = trained ? [["parameters", (row) => row.parameters?.toLocaleString("en") ?? ""], ["training tokens/s", (row) => (row.training_tokens_per_second ? Math.round(row.training_tokens_per_second).toLocaleString("en") : "")],
    [`decoding sentences/s${rows[0].beam ? `, beam ${rows[0].beam}, batches of ${rows[0].batch_size}` : ""}`, (row) => (row.decoding_sentences_per_second ? number(row.decoding_sentences_per_second, 1) : "")], ["activations, 32 pairs", (row) => bytes(row.activation_bytes)], ["training time", (row) => time(row.training_seconds)], target && ["time to target", (row) => time(row.seconds_to_target)]].filter(Boolean) : [];
  const cell = (row, one) => { const score = row.scores[one.name]; return el("span", {}, number(score.score, 2), el("br", {}), el("span", { class: "small soft" }, `${number(score.low, 1)} – ${number(score.high, 1)}`), score.seeds.length > 1 ? [el("br", {}), el("span", { class: "small soft" }, `seeds ${score.seeds.map((value) => number(value, 1)).join(", ")}`)] : null); };
  const update = () => {
    put(controls, metrics.length > 1 ? select("metric", metrics.map((one) => [one.name, one.label]), metric().name, (value) => setState({ metric: value })) : null, el("span", { class: "small soft" }, `${metric().higher ? "higher" : "lower"} is better`));
    frame.draw();
    sizes?.draw();
  };
  onState(update);
  update();
  return [controls, frame, sizes, table(["system", ...metrics.map((one) => one.label), ...costs.map(([name]) => name)], rows.map((row) => [row.name, ...metrics.map((one) => cell(row, one)), ...costs.map(([, show]) => show(row))]), { numeric: [...metrics, ...costs].map((_, index) => index + 1) }),
    target ? el("p", { class: "small soft" }, `target: ${target.metric} ${number(target.score, 2)} on the validation data, which every system reaches`) : null].filter(Boolean);
}

function curveFigure({ systems, metric: first }, metric = first, names = null, byTime = () => false) {
  const which = typeof metric === "function" ? metric : () => metric;
  const kept = coloured(systems, names);
  return named(figure({
    name: "curves", title: "learning curves",
    drawing: () => lineChart({ series: kept.map((one) => ({ name: one.name, colour: one.colour, points: one.valid.map(([step, seconds, valid]) => [byTime() ? seconds : step, valid[which()] ?? null]) })), xTitle: byTime() ? "seconds of training" : "steps", yTitle: `validation ${which()}`, label: "learning curves" }),
    rows: () => [["system", "step", "seconds", which()], kept.flatMap((one) => one.valid.map(([step, seconds, valid]) => [one.name, step, seconds, valid[which()] ?? ""])), { numeric: [1, 2, 3] }],
    data: () => ({ systems: kept }),
  }), kept);
}

function drawCurves(view) {
  const { systems, metrics } = view.data;
  const metric = () => (metrics.includes(readState().curve) ? readState().curve : view.data.metric);
  const byTime = () => readState().x === "time";
  const controls = el("div", { class: "controls" });
  const frame = curveFigure(view.data, metric, null, byTime);
  const update = () => {
    put(controls, select("metric", metrics.map((one) => [one, one]), metric(), (value) => setState({ curve: value })), toggle("by time", byTime(), (now) => setState({ x: now ? "time" : null })));
    frame.draw();
  };
  onState(update);
  update();
  return [controls, legend(systems.map((one) => one.name)), frame];
}

function lengthFigure(data, names = null) {
  const { buckets, metric, unit, higher } = data;
  const kept = coloured(data.systems, names);
  return named(figure({
    name: "lengths", title: "score by length",
    drawing: () => lineChart({ series: kept.map((one) => ({ name: one.name, colour: one.colour, points: one.points.map(([score, low, high], index) => [index, score, low, high]) })), categories: buckets, xTitle: `${unit} of the source`, yTitle: `${metric} (${higher ? "higher" : "lower"} is better)`, zero: true, label: "score by length", height: 340 }),
    rows: () => [["system", unit, "pairs", metric, "low", "high"], kept.flatMap((one) => one.points.map(([score, low, high, count], index) => [one.name, buckets[index], count, score, low, high])), { numeric: [2, 3, 4, 5] }],
    data: () => data,
  }), kept);
}

function drawLengths(view) {
  const frame = lengthFigure(view.data);
  onState(() => frame.draw());
  return [legend(view.data.systems.map((one) => one.name)), frame];
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

// The longest n-gram with a match that holds each token; 0: none.
function longestMatches({ tokens, matched }) {
  const longest = tokens.map(() => 0);
  matched.forEach((found, place) => found.forEach((match, start) => { if (match) longest.fill(place + 1, start, start + place + 1); }));
  return longest;
}

function drawNgrams(view) {
  const { systems, rows, metric } = view.data;
  const orders = systems[0].precisions.map((_, place) => `${place + 1}-grams`);
  const frame = figure({
    name: "ngrams", title: "precision of n-grams",
    drawing: () => lineChart({ series: systems.map((one) => ({ name: one.name, points: one.precisions.map((value, place) => [place, 100 * value]) })), categories: orders, xTitle: "", yTitle: "precision in %", zero: true, label: "precision of n-grams", height: 280 }),
    rows: () => [["system", "n", "matches", "of", "precision"], systems.flatMap((one) => one.precisions.map((value, place) => [one.name, String(place + 1), one.matches[place], one.totals[place], value])), { numeric: [2, 3, 4] }],
    data: () => view.data,
  });
  const shade = (length) => (length ? `color-mix(in srgb, var(--good) ${12 + 14 * length}%, transparent)` : "color-mix(in srgb, var(--bad) 18%, transparent)");
  const chip = (text, length) => el("span", { class: "gram", style: { background: shade(length) }, title: length ? `in a matching ${length}-gram` : "no match" }, text);
  const marked = (output) => { const longest = longestMatches(output); return el("span", { dir: "auto" }, output.tokens.length ? output.tokens.map((token, place) => [chip(token, longest[place]), " "]) : "(empty)"); };
  const product = (one) => el("span", { style: { "white-space": "nowrap" } }, `${number(one.brevity_penalty, 3)} · (${one.precisions.map((value) => number(100 * value, 1)).join(" · ")})^¼ = ${number(one.score, 2)}`);
  onState(() => frame.draw());
  return [legend(systems.map((one) => one.name)), frame,
    table(["system", "output tokens", "reference tokens", "brevity penalty", `${metric} = penalty · (p₁ · p₂ · p₃ · p₄)^¼`], systems.map((one) => [one.name, one.output_length.toLocaleString("en"), one.reference_length.toLocaleString("en"), number(one.brevity_penalty, 3), product(one)]), { numeric: [1, 2, 3] }),
    el("h3", {}, "Which n-grams match"),
    el("p", { class: "small soft" }, "The shade of a token is the longest n-gram with a match that it is part of: ", [0, 1, 2, 3, 4].map((length) => [chip(length ? String(length) : "none", length), " "]), "An n-gram counts at most as often as in the reference."),
    ...rows.map((row) => el("section", { class: "readout" }, el("div", { class: "soft", dir: "auto" }, row.reference), table(["system", "output"], systems.map((one, place) => [one.name, marked(row.outputs[place])]))))];
}

function drawOutputs(view) {
  const { systems, rows, unit } = view.data;
  const space = unit === "letters" ? "" : " ";
  const marked = (operations) => el("span", { dir: "auto" }, operations.flatMap(([kind, left, right]) => {
    if (kind === "equal") return [right, space];
    return [kind === "insert" ? "" : el("del", {}, left), kind === "replace" ? space : "", kind === "delete" ? "" : el("ins", {}, right), space];
  }));
  const ordered = () => (readState().sort === "difference" ? [...rows].sort((left, right) => right.spread - left.spread) : rows);
  const wanted = (row) => [row.source ?? "", row.reference, ...row.outputs.map((output) => output.map((operation) => operation[2]).join(space))].some((text) => text.toLowerCase().includes(search.value.toLowerCase()));
  const search = el("input", { type: "search", class: "field", placeholder: "filter", "aria-label": "show pairs with this text", oninput: () => update() });
  const sort = el("div", {});
  const list = el("div", {});
  const section = (row) => el("section", { class: "readout" }, el("strong", { dir: "auto" }, row.source ?? `pair ${row.number}`), el("div", { class: "soft", dir: "auto" }, row.reference),
    table(["system", "errors", "output"], systems.map((name, place) => [name, `${number(100 * row.rates[place], 0)} %`, marked(row.outputs[place])]), { numeric: [1] }));
  const update = () => {
    put(sort, select("order", [["test", "of the test set"], ["difference", "largest difference first"]], readState().sort ?? "test", (value) => setState({ sort: value })));
    const found = ordered().filter(wanted);
    list.replaceChildren(...(found.length ? found.map(section) : [el("p", { class: "soft" }, "no pair has this text")]));
  };
  onState(update);
  update();
  return [el("div", { class: "controls" }, search, sort), list];
}

// Attention of one system over the shared sentence.
function mapFigure(map) {
  const weights = tensor(map.weights);
  return figure({ name: `attention-${map.name}`, title: `attention of ${map.name}`, drawing: () => heatmap({ rows: weights.shape[0], columns: weights.shape[1], at: (row, column) => weights.at(row, column), rowLabels: map.rows, columnLabels: map.columns, top: 1, label: `attention of ${map.name}`, cell: 26, rowTitle: "output", columnTitle: "input" }),
    rows: () => [["", ...map.columns], map.rows.map((name, row) => [name, ...map.columns.map((_, column) => weights.at(row, column))]), { numeric: map.columns.map((_, index) => index + 1) }], data: () => map });
}

function drawAttentions(view) {
  const { sentence, maps } = view.data;
  const frames = [];
  const sections = maps.map((map) => {
    if (!map.weights) return el("section", {}, el("h3", {}, map.name), el("p", { class: "soft" }, "has no attention; its output: ", el("bdi", {}, map.output)));
    const frame = mapFigure(map);
    frames.push(frame);
    return el("section", {}, el("h3", {}, map.name), el("p", { class: "small soft" }, map.layer, " · output: ", el("bdi", {}, map.output)), frame);
  });
  onState(() => frames.forEach((frame) => frame.draw()));
  return [el("p", { dir: "auto" }, el("strong", {}, sentence)), el("div", { class: "columns" }, sections)];
}

function flowFigures(data, keep = () => true) {
  const flows = coloured(data.flows).filter(keep);
  if (!flows.length) return [];
  const points = (packed) => Array.from(tensor(packed).values, (value, distance) => [distance, value]);
  return [named(figure({
    name: "gradient-flow", title: "gradient flow",
    drawing: () => lineChart({ series: flows.flatMap((flow) => [{ name: flow.name, points: points(flow.state), colour: flow.colour }, flow.bound && { name: `${flow.name}: bound`, points: points(flow.bound), colour: flow.colour, dash: "5 4", dots: false }, flow.gates && { name: `${flow.name}: ∏ forget gates`, points: points(flow.gates), colour: flow.colour, dash: "2 3", dots: false }].filter(Boolean)), xTitle: "distance in steps", yTitle: "‖∂h(T)/∂h(t)‖", logY: true, label: "gradient flow of all systems" }),
    rows: () => [["system", "distance", "norm"], flows.flatMap((flow) => points(flow.state).map(([distance, value]) => [flow.name, distance, value])), { numeric: [1, 2] }],
    data: () => ({ flows }),
  }), flows)];
}

function drawFlows(view) {
  const { flows, sentence } = view.data;
  const [frame] = flowFigures(view.data);
  onState(() => frame.draw());
  return [legend(flows.map((flow) => `${flow.name} (${flow.kind}): ×${number(10 ** flow.slope, 2)} per step`)), frame, el("p", { class: "small soft" }, "Dashed: spectral bound of a plain recurrent network. Dotted: product of forget gates. Source: ", el("bdi", {}, sentence))];
}

function costFigure({ layers }, memory) {
  const kept = coloured(layers);
  return named(figure({
    name: "cost", title: "cost against length",
    drawing: () => lineChart({ series: layers.map((layer) => ({ name: layer.name, points: layer.points.map(([length, seconds, saved]) => [length, memory() ? saved / 2 ** 20 : 1000 * seconds]) })), xTitle: "tokens", yTitle: memory() ? "MiB saved for the backward pass" : "milliseconds, forward and backward", logX: true, logY: true, label: "cost against length" }),
    rows: () => [["layer", "tokens", "milliseconds", "MiB"], layers.flatMap((layer) => layer.points.map(([length, seconds, saved]) => [layer.name, length, 1000 * seconds, saved / 2 ** 20])), { numeric: [1, 2, 3] }],
    data: () => ({ layers }),
  }), kept);
}

function drawCost(view) {
  const { layers } = view.data;
  const memory = () => readState().of === "memory";
  const controls = el("div", { class: "controls" });
  const frame = costFigure(view.data, memory);
  const update = () => { put(controls, toggle("memory", memory(), (now) => setState({ of: now ? "memory" : null }))); frame.draw(); };
  onState(update);
  update();
  return [controls, legend(layers.map((layer) => layer.name)), frame, table(["layer", "operations", "sequential", "longest path", "exponent of time", "in theory", "exponent of memory", "in theory"], layers.map((layer) => [layer.name, layer.operations, layer.sequential, layer.path, number(layer.seconds_exponent, 2), number(layer.expected, 0), number(layer.saved_exponent, 2), number(layer.expected_saved, 0)]), { numeric: [4, 5, 6, 7] })];
}

const VIEWS = { story: drawStory, scores: drawScores, curves: drawCurves, lengths: drawLengths, significance: drawSignificance, ngrams: drawNgrams, outputs: drawOutputs, attentions: drawAttentions, flows: drawFlows, weights: drawFlows, tasks: drawTasks, exposure: drawExposure, padding: drawPadding, cost: drawCost };

export function showComparison(data, root) {
  showViews(data, root, VIEWS, [el("h1", { dir: "auto" }, data.title), el("p", { class: "soft", dir: "auto" }, data.about)]);
}
