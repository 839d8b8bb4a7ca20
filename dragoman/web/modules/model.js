// Positions as pictures, and the table of layers.

import { el, figure, number, onState, put, readState, select, setState, shown, table, tensor, whole } from "./core.js";
import { colourBar, heatmap } from "./heat.js";
import { bars, colourOf, lineChart } from "./chart.js";
import { architecture, cellSection } from "./diagrams.js";

export function drawPositions(view) {
  const { pictures, rows } = view.data;
  const chosen = () => pictures[whole(readState().part, 0, 0, pictures.length - 1)];
  const controls = el("div", { class: "controls" });
  const count = (size, every = 1) => Array.from({ length: size }, (_, index) => String(index * every));
  const bar = el("div", {});
  const map = figure({
    name: "positions", title: "position vectors",
    drawing: () => {
      const packed = chosen().vectors ?? chosen().bias;
      const found = tensor(packed);
      const top = Math.max(...found.values.map(Math.abs), 1e-9);
      const bias = !chosen().vectors;
      bar.replaceChildren(colourBar(number(-top, 2), number(top, 2), true));
      return heatmap({ rows: found.shape[0], columns: found.shape[1], at: (row, column) => found.at(row, column), rowLabels: bias ? count(found.shape[0]).map((one) => `head ${Number(one) + 1}`) : count(found.shape[0]),
        columnLabels: bias ? Array.from({ length: found.shape[1] }, (_, index) => String(index - (found.shape[1] - 1) / 2)) : count(found.shape[1]), top, signed: true, rowTitle: bias ? "" : "position", columnTitle: bias ? "distance of the key" : "dimension", label: "positions", square: false, cell: Math.max(3, Math.min(12, 620 / found.shape[1])) });
    },
    rows: () => { const found = tensor(chosen().vectors ?? chosen().bias); return [["", ...count(found.shape[1])], Array.from({ length: found.shape[0] }, (_, row) => [row, ...found.row(row)]), { numeric: count(found.shape[1] + 1).map(Number) }]; },
    data: () => chosen(),
  });
  const curve = figure({
    name: "position-products", title: "dot products of positions",
    drawing: () => {
      const dots = chosen().dots ? tensor(chosen().dots).values : [];
      const middle = Math.floor(dots.length / 2);
      return lineChart({ series: [{ name: "p(middle) · p(position)", points: Array.from(dots, (value, index) => [index - middle, value]), dots: false }], xTitle: "distance from the middle position", yTitle: "dot product, share of its own", label: "dot product by distance" });
    },
    rows: () => { const dots = chosen().dots ? tensor(chosen().dots).values : []; return [["distance", "dot product"], Array.from(dots, (value, index) => [index - Math.floor(dots.length / 2), value]), { numeric: [0, 1] }]; },
    data: () => chosen(),
  });
  // A fast and some slower ones; even dimensions are sines where sines and cosines alternate.
  const dimensionsOf = (found) => [...new Set([0, 1, ...[1, 2, 3].map((part) => 2 * Math.floor((part * found.shape[1]) / 16))])].filter((one) => one < found.shape[1]);
  const waveLegend = el("div", { class: "legend" });
  const waves = figure({
    name: "position-curves", title: "dimensions over positions",
    drawing: () => {
      const found = chosen().vectors ? tensor(chosen().vectors) : null;
      const dimensions = found ? dimensionsOf(found) : [];
      return lineChart({ series: dimensions.map((dimension) => ({ name: `dimension ${dimension}`, points: Array.from({ length: found.shape[0] }, (_, row) => [row, found.at(row, dimension)]), dots: false })), xTitle: "position", yTitle: "value", label: "dimensions over positions" });
    },
    rows: () => { const found = tensor(chosen().vectors); const dimensions = dimensionsOf(found); return [["position", ...dimensions.map((one) => `dimension ${one}`)], Array.from({ length: found.shape[0] }, (_, row) => [row, ...dimensions.map((one) => found.at(row, one))]), { numeric: [0, ...dimensions.map((_, index) => index + 1)] }]; },
    data: () => chosen(),
  });
  const cosine = (found) => { const size = found.shape[0]; const norms = Array.from({ length: size }, (_, row) => Math.hypot(...found.row(row)) || 1); return (left, right) => { let sum = 0; for (let column = 0; column < found.shape[1]; column += 1) sum += found.at(left, column) * found.at(right, column); return sum / norms[left] / norms[right]; }; };
  const similar = figure({
    name: "position-similarity", title: "similarity of positions",
    drawing: () => { const found = tensor(chosen().vectors ?? chosen().bias); const size = Math.min(48, found.shape[0]); return heatmap({ rows: size, columns: size, at: cosine(found), rowLabels: count(size), columnLabels: count(size), top: 1, signed: true, rowTitle: "position", columnTitle: "position", label: "cosine of positions", cell: Math.max(5, Math.min(12, 420 / size)) }); },
    rows: () => { const found = tensor(chosen().vectors); const at = cosine(found); const size = Math.min(48, found.shape[0]); return [["", ...count(size)], Array.from({ length: size }, (_, row) => [row, ...Array.from({ length: size }, (_, column) => at(row, column))]), { numeric: count(size + 1).map(Number) }]; },
    data: () => chosen(),
  });
  const shape = el("div", { class: "columns" }, el("section", {}, el("h3", {}, "Dimensions over positions"), el("p", { class: "small soft" }, "Of sinusoids the wave length grows with the dimension."), waveLegend, waves), el("section", {}, el("h3", {}, "Similarity of positions"), el("p", { class: "small soft" }, "Cosine of every two position vectors."), similar));
  const update = () => {
    shape.hidden = !chosen().vectors;
    if (chosen().vectors) {
      waves.draw();
      similar.draw();
      waveLegend.replaceChildren(...dimensionsOf(tensor(chosen().vectors)).map((one, index) => el("span", {}, el("i", { style: { background: colourOf(index) } }), `dimension ${one}`)));
    }
    put(controls, select("part", pictures.map((one, index) => [index, `${one.name} (${one.kind})`]), pictures.indexOf(chosen()), (value) => setState({ part: value })));
    map.draw();
    curve.draw();
    curve.hidden = !chosen().dots;
  };
  onState(update);
  update();
  const given = rows ? [el("h3", {}, "What is added up for each token"), table(["", ...rows.tokens], [["segment", ...rows.segment], ["position", ...rows.position]].map((row) => row.map(String)), { numeric: rows.tokens.map((_, index) => index + 1) })] : [];
  const d4 = tensor(view.data.small);
  const byHand = [el("h3", {}, "Sinusoids of width 4, to check by hand"), table(["position", "sin(p)", "cos(p)", "sin(p / 100)", "cos(p / 100)"], Array.from({ length: d4.shape[0] }, (_, row) => [String(row), ...Array.from(d4.row(row), (value) => value.toFixed(4).replace("-", "−"))]), { numeric: [0, 1, 2, 3, 4] })];
  return [...given, controls, map, bar, el("h3", {}, "Dot product by distance"), curve, shape, ...addedUp(view.data), ...(pictures.some((one) => one.kind === "sinusoidal") ? byHand : [])];
}

// Embedding + position = what the first layer reads, for the first dimensions of each token.
function addedUp({ added, source }) {
  if (!added) return [];
  const parts = Object.entries(added).map(([name, part]) => [name === "total" ? "sum" : name, tensor(part)]);
  const columns = Math.min(32, parts[0][1].shape[1]);
  const top = Math.max(...parts.flatMap(([, one]) => source.tokens.flatMap((_, row) => one.row(row).slice(0, columns).map(Math.abs))), 1e-9);
  const frames = parts.map(([name, one]) => [name, figure({ name: `added-${name}`, title: name,
    drawing: () => heatmap({ rows: source.tokens.length, columns, at: (row, column) => one.at(row, column), rowLabels: source.tokens.map(shown), columnLabels: Array.from({ length: columns }, (_, index) => String(index)), top, signed: true, columnTitle: "dimension", label: name, square: false, cell: Math.max(6, Math.min(12, 260 / columns)) }),
    rows: () => [["token", ...Array.from({ length: columns }, (_, index) => String(index))], source.tokens.map((token, row) => [shown(token), ...one.row(row).slice(0, columns)]), { numeric: Array.from({ length: columns }, (_, index) => index + 1) }], data: () => added })]);
  onState(() => frames.forEach(([, frame]) => frame.draw()));
  const names = parts.slice(0, -1).map(([name]) => name).join(" + ");
  return [el("h3", {}, names[0].toUpperCase() + names.slice(1)), el("p", { class: "small soft" }, `What the first layer reads: the sum of these, here ${columns} of ${parts[0][1].shape[1]} dimensions. All have one scale.`), el("div", { class: "columns" }, frames.map(([name, frame]) => el("section", {}, el("h4", {}, name), frame)))];
}

// Change of the target with the words of the input in another order.
export function drawOrder(view) {
  const { reorderings, off, measure } = view.data;
  const text = (row) => `${row.name}: ${row.words.join(" ")}`;
  const chart = (key, name, title) => figure({
    name, title,
    drawing: () => bars({ rows: reorderings.map((row) => ({ label: row.name, value: row[key], text: number(Math.abs(row[key]) < 1e-5 ? 0 : row[key], 2) })), low: Math.min(0, ...reorderings.flatMap((row) => [row.change, row.change_off ?? 0])), high: Math.max(1e-6, ...reorderings.flatMap((row) => [row.change, row.change_off ?? 0])), label: title }),
    rows: () => [["order", "words", `change of ${measure}`], reorderings.map((row) => [row.name, row.words.join(" "), row[key]]), { numeric: [2] }],
    data: () => view.data,
  });
  const frames = [chart("change", "order", "as the model is"), off === null ? null : chart("change_off", "order-without-positions", "without positions in the encoder")].filter(Boolean);
  onState(() => frames.forEach((frame) => frame.draw()));
  const titles = ["As the model is", "Without positions in the encoder"];
  return [el("div", { class: "columns" }, frames.map((frame, index) => el("section", {}, el("h3", {}, titles[index]), frame))),
    off === null ? null : el("p", { class: "small soft" }, `Leaving out the positions alone changes ${measure} by ${number(off, 2)}.`),
    el("ul", { class: "small" }, reorderings.map((row) => el("li", { dir: "auto" }, text(row))))].filter(Boolean);
}

const RESIDUAL = { kind: "residual", title: "Residual", settings: {}, text: ["x' = x + f(x)"], formulas: [["mrow", ["mi", "x'"], ["mo", "="], ["mi", "x"], ["mo", "+"], ["mi", "f"], ["mo", "("], ["mi", "x"], ["mo", ")"]]] };

export function drawLayers(view) {
  const { rows, total, noun, cells } = view.data;
  const alike = new Map();
  for (const cell of cells ?? []) alike.set(cell.text.join("\n"), [...(alike.get(cell.text.join("\n")) ?? []), cell]);
  const sizes = (group) => group.map((cell) => `${cell.name}: W ${cell.width}×${cell.inputs}, U ${cell.width}×${cell.width}`).join("; ");
  const residual = rows.some((row) => row.kind.endsWith("Block"));
  const drawings = noun === "numbers" ? [] : [el("div", { class: "columns" }, el("section", {}, el("h3", {}, "The whole model"), el("p", { class: "small soft" }, "The parts from below upwards, in the order in which the model holds them: each box has the shape of its output, batch × positions × width, and its number of parameters; the dashed arrow is what the decoder reads of the encoder."), architecture(rows)),
    [...alike.values()].map((group) => cellSection(group[0], sizes(group))), residual ? cellSection(RESIDUAL, "f: attention, feed-forward layer or convolution of each block, with its norm") : null)];
  const head = noun === "numbers" ? ["tensor", "kind", "shape", noun] : ["layer", "kind", "output", noun, "from"];
  const formula = (row) => (noun === "numbers" ? [] : [row.formula || (row.parameters ? "sum of its parts" : "")]);
  const tops = rows.filter((row) => !row.name.includes(".") && row.parameters);
  const frame = figure({
    name: "parameters", title: `${noun} by part`,
    drawing: () => bars({ rows: tops.map((row) => ({ label: row.name, value: row.parameters, text: `${row.parameters.toLocaleString("en")}` })), low: 0, label: `${noun} by part` }),
    rows: () => [head, rows.map((row) => [row.name, row.kind, row.shape, row.parameters.toLocaleString("en"), ...formula(row)]), { numeric: [3] }],
    data: () => view.data,
  });
  return [el("p", {}, `${total.toLocaleString("en")} ${noun} in all${noun === "parameters" ? "; a shared table counts once" : ""}.`), ...drawings, frame,
    table(head, rows.map((row) => [el("code", {}, row.name), row.kind, row.shape, row.parameters.toLocaleString("en"), ...formula(row)]), { numeric: [3] })];
}
