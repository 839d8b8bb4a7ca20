// Dynamic programming tables with the best path outlined.

import { el, figure, number, onState, put, readState, room, select, setState, shown, tensor, whole } from "./core.js";
import { heatmap } from "./heat.js";

export function drawTables(view) {
  const { tables } = view.data;
  const chosen = () => tables[whole(readState().table, 0, 0, tables.length - 1)];
  const controls = el("div", { class: "controls" });
  const about = el("p", { class: "small soft" });
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const frame = figure({
    name: "table", title: "dynamic programming table",
    drawing: () => {
      const one = chosen();
      const found = tensor(one.scores);
      const finite = Array.from(found.values).filter(Number.isFinite);
      const [low, high] = [Math.min(...finite), Math.max(...finite)];
      const marked = [whole(readState().row, one.path[one.path.length - 1][0], 0, found.shape[0] - 1), whole(readState().column, one.path[one.path.length - 1][1], 0, found.shape[1] - 1)];
      say(...marked);
      const texts = (row, column) => { const value = found.at(row, column); return Number.isInteger(value) ? String(value) : number(value, Math.abs(value) < 1 ? 3 : 2).replace(/^0\./, "."); };
      const cell = finite.every(Number.isInteger) ? 30 : 46;
      const written = found.values.length <= 400 && cell * found.shape[1] < room() - 110; // cells have room for their numbers
      return heatmap({ rows: found.shape[0], columns: found.shape[1], at: (row, column) => { const value = found.at(row, column); return Number.isFinite(value) ? 0.05 + (0.85 * (value - low)) / (high - low || 1) : 0; },
        rowLabels: one.rows.map(shown), columnLabels: one.columns.map(shown), top: 1, outlined: one.path, marked, label: one.name, square: one.back === null && !one.summed, ...(written ? { cell, write: texts } : {}), pick: (row, column) => setState({ row, column }), hover: (row, column) => say(...(row === null ? marked : [row, column])) });
    },
    rows: () => { const one = chosen(); const found = tensor(one.scores); return [["", ...one.columns.map(shown)], one.rows.map((name, row) => [shown(name), ...found.row(row)]), { numeric: one.columns.map((_, index) => index + 1) }]; },
    data: () => chosen(),
  });
  function say(row, column) {
    const one = chosen();
    const found = tensor(one.scores);
    const value = found.at(row, column);
    const parts = [el("strong", { dir: "auto" }, shown(one.rows[row] ?? "")), " × ", el("strong", { dir: "auto" }, shown(one.columns[column] ?? "")), `: ${Number.isInteger(value) ? value : number(value, 4)}`];
    if (one.back && one.back[column][row] >= 0) parts.push("; came from ", el("bdi", {}, shown(one.rows[one.back[column][row]])));
    else if (one.summed) parts.push(` = log ${number(Math.exp(found.at(row, column)), 4)}, summed over all paths to this cell: they stay in the row, come from the row above, or skip a blank between two different symbols`);
    else if (!one.back) {
      const cost = found.at(row, column);
      const options = [];
      if (row && column) options.push(`${found.at(row - 1, column - 1)} + ${one.rows[row] === one.columns[column] ? 0 : one.substitution ?? 1} (${one.rows[row] === one.columns[column] ? "equal" : "replace"})`);
      if (row) options.push(`${found.at(row - 1, column)} + 1 (delete)`);
      if (column) options.push(`${found.at(row, column - 1)} + 1 (insert)`);
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
