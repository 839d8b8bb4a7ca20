// Positions as pictures, and the table of layers.

import { el, figure, number, onState, put, readState, select, setState, table, tensor, whole } from "./core.js";
import { colourBar, heatmap } from "./heat.js";
import { bars, lineChart } from "./chart.js";

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
  const update = () => {
    put(controls, select("part", pictures.map((one, index) => [index, `${one.name} (${one.kind})`]), pictures.indexOf(chosen()), (value) => setState({ part: value })));
    map.draw();
    curve.draw();
    curve.hidden = !chosen().dots;
  };
  onState(update);
  update();
  const given = rows ? [el("h3", {}, "What is added up for each token"), table(["", ...rows.tokens], [["segment", ...rows.segment], ["position", ...rows.position]].map((row) => row.map(String)), { numeric: rows.tokens.map((_, index) => index + 1) })] : [];
  return [...given, controls, map, bar, el("h3", {}, "Dot product by distance"), curve];
}

export function drawLayers(view) {
  const { rows, total, noun } = view.data;
  const head = noun === "numbers" ? ["tensor", "kind", "shape", noun] : ["layer", "kind", "output", noun];
  const tops = rows.filter((row) => !row.name.includes(".") && row.parameters);
  const frame = figure({
    name: "parameters", title: `${noun} by part`,
    drawing: () => bars({ rows: tops.map((row) => ({ label: row.name, value: row.parameters, text: `${row.parameters.toLocaleString("en")}` })), low: 0, label: `${noun} by part` }),
    rows: () => [head, rows.map((row) => [row.name, row.kind, row.shape, row.parameters.toLocaleString("en")]), { numeric: [3] }],
    data: () => view.data,
  });
  return [el("p", {}, `${total.toLocaleString("en")} ${noun} in all${noun === "parameters" ? "; a shared table counts once" : ""}.`), frame,
    table(head, rows.map((row) => [el("code", {}, row.name), row.kind, row.shape, row.parameters.toLocaleString("en")]), { numeric: [3] })];
}
