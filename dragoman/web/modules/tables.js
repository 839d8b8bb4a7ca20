// Dynamic programming tables with the best path outlined.

import { el, figure, number, onState, put, readState, room, select, setState, shown, tensor, whole } from "./core.js";
import { heatmap } from "./heat.js";

export function drawTables(view) {
  const { tables } = view.data;
  const chosen = () => tables[whole(readState().table, 0, 0, tables.length - 1)];
  const controls = el("div", { class: "controls" });
  const about = el("p", { class: "small soft" });
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  // The cells of a table; where paths end at a cost of their own, with a last column for the end.
  function cells() {
    const one = chosen();
    const found = tensor(one.scores);
    const end = one.end && tensor(one.end).values;
    const [rows, steps] = found.shape;
    return { one, rows, columns: steps + (end ? 1 : 0), at: (row, column) => (column < steps ? found.at(row, column) : end[row]), columnNames: [...one.columns.map(shown), ...(end ? ["end"] : [])],
      path: end ? [...one.path, [one.path[one.path.length - 1][0], steps]] : one.path };
  }
  const score = (value) => (value === -Infinity ? "−∞" : Number.isInteger(value) ? String(value) : number(value, 4));
  const frame = figure({
    name: "table", title: "dynamic programming table",
    drawing: () => {
      const { one, rows, columns, at, columnNames, path } = cells();
      const finite = Array.from(tensor(one.scores).values).filter(Number.isFinite);
      const [low, high] = [Math.min(...finite), Math.max(...finite)];
      const marked = [whole(readState().row, path[path.length - 1][0], 0, rows - 1), whole(readState().column, path[path.length - 1][1], 0, columns - 1)];
      say(...marked);
      const texts = (row, column) => { const value = at(row, column); return value === -Infinity ? "−∞" : Number.isInteger(value) ? String(value) : number(value, Math.abs(value) < 1 ? 3 : 2).replace(/^0\./, "."); };
      const cell = finite.every(Number.isInteger) ? 30 : 46;
      const written = rows * columns <= 400 && cell * columns < room() - 110; // cells have room for their numbers
      return heatmap({ rows, columns, at: (row, column) => { const value = at(row, column); return Number.isFinite(value) ? 0.05 + (0.85 * (value - low)) / (high - low || 1) : 0; },
        rowLabels: one.rows.map(shown), columnLabels: columnNames, top: 1, outlined: path, marked, label: one.name, square: one.back === null && !one.summed, ...(written ? { cell, write: texts } : {}), pick: (row, column) => setState({ row, column }), hover: (row, column) => say(...(row === null ? marked : [row, column])) });
    },
    rows: () => { const { one, at, columnNames } = cells(); return [["", ...columnNames], one.rows.map((name, row) => [shown(name), ...columnNames.map((_, column) => (at(row, column) === -Infinity ? "−∞" : at(row, column)))]), { numeric: columnNames.map((_, index) => index + 1) }]; },
    data: () => chosen(),
  });
  function say(row, column) {
    const { one, at, columnNames } = cells();
    const parts = [el("strong", { dir: "auto" }, shown(one.rows[row] ?? "")), " × ", el("strong", { dir: "auto" }, columnNames[column] ?? ""), `: ${score(at(row, column))}`];
    if (column >= one.columns.length) parts.push(at(row, column) === -Infinity ? "; no path may end here" : "; with the step to the end");
    else if (at(row, column) === -Infinity) parts.push("; no path leads here");
    else if (one.back && one.back[column][row] >= 0) parts.push("; came from ", el("bdi", {}, shown(one.rows[one.back[column][row]])));
    else if (one.summed) parts.push(` = log ${number(Math.exp(at(row, column)), 4)}, summed over all paths to this cell: they stay in the row, come from the row above, or skip a blank between two different symbols`);
    else if (!one.back) {
      const cost = at(row, column);
      const options = [];
      if (row && column) options.push(`${at(row - 1, column - 1)} + ${one.rows[row] === one.columns[column] ? 0 : one.substitution ?? 1} (${one.rows[row] === one.columns[column] ? "equal" : "replace"})`);
      if (row) options.push(`${at(row - 1, column)} + 1 (delete)`);
      if (column) options.push(`${at(row, column - 1)} + 1 (insert)`);
      if (options.length) parts.push(el("div", { class: "sum" }, "min(", options.join(", "), `) = ${cost}`));
    }
    readout.replaceChildren(...parts);
  }
  const update = () => {
    put(controls, tables.length > 1 ? select("table", tables.map((one, index) => [index, one.name]), tables.indexOf(chosen()), (value) => setState({ table: value, row: null, column: null })) : el("strong", {}, chosen().name));
    about.textContent = chosen().about;
    frame.draw();
  };
  onState(update);
  update();
  return [controls, about, frame, readout];
}
