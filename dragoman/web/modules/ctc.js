// CTC: the raw path, how it collapses to a text, and the sum over all paths.

import { el, figure, number, onState, percent, room, shown, svg, tensor } from "./core.js";

export function drawCtc(view) {
  const { path, merged, text, blank, sums, target } = view.data;
  const probabilities = tensor(view.data.probabilities).values;
  const short = (piece) => (piece === blank ? "–" : shown(piece));
  const each = Math.max(26, 8 + 8 * Math.max(...path.map((piece) => [...short(piece)].length)));
  const log = (value) => value.toFixed(4).replace("-", "−");
  const frame = figure({
    name: "ctc", title: "path and collapse",
    drawing: () => {
      const perLine = Math.max(8, Math.floor((room() - 10) / each));
      const lines = Math.ceil(path.length / perLine);
      const height = 118;
      const out = svg("svg", { viewBox: `0 0 ${perLine * each + 10} ${lines * height}`, width: perLine * each + 10, height: lines * height, role: "img", "aria-label": "raw path, merged repeats and text" });
      path.forEach((piece, place) => {
        const [x, y] = [(place % perLine) * each, Math.floor(place / perLine) * height];
        out.append(svg("rect", { x: x + 1, y: y + 20 + 24 * (1 - probabilities[place]), width: each - 3, height: 24 * probabilities[place], fill: piece === blank ? "var(--line)" : "var(--accent)" }, svg("title", {}, `position ${place + 1}: ${shown(piece)}, ${percent(probabilities[place])}`)),
          svg("text", { x: x + each / 2, y: y + 14, "text-anchor": "middle", class: piece === blank ? "axis" : "" }, short(piece)));
      });
      for (const one of merged) {
        for (let line = Math.floor(one.first / perLine); line <= Math.floor(one.last / perLine); line += 1) {
          const first = Math.max(one.first, line * perLine) - line * perLine;
          const last = Math.min(one.last, line * perLine + perLine - 1) - line * perLine;
          const dropped = one.piece === blank;
          out.append(svg("rect", { x: first * each + 2, y: line * height + 52, width: (last - first + 1) * each - 5, height: 22, rx: 5, fill: dropped ? "none" : "var(--accent-soft)", stroke: "var(--line)" }),
            svg("text", { x: (first + last + 1) * each / 2, y: line * height + 67, "text-anchor": "middle", class: dropped ? "axis" : "" }, short(one.piece)));
          if (!dropped && line === Math.floor(one.first / perLine)) out.append(svg("text", { x: (first + last + 1) * each / 2, y: line * height + 98, "text-anchor": "middle", "font-weight": 700 }, shown(one.piece)));
        }
      }
      return out;
    },
    rows: () => [["position", "symbol", "probability"], path.map((piece, place) => [String(place + 1), shown(piece), probabilities[place]]), { numeric: [2] }],
    data: () => view.data,
  });
  onState(() => frame.draw());
  const total = sums && Math.exp(sums.log_probability);
  return [el("p", { class: "small soft" }, "First row: the most probable symbol at every position, with its probability (– is the blank). Second row: repeats merged. Third row: blanks dropped."), frame,
    el("div", { class: "readout sum" }, `path     ${path.map(short).join(" ")}\nmerged   ${merged.map((one) => short(one.piece)).join(" ")}\ntext     ${text.map(shown).join(" ")}`),
    el("h3", {}, "Sum over all paths"),
    sums ? el("div", { class: "readout sum" }, `p(${target.tokens.slice(0, -1).map(shown).join(" ")}) = Σ over `, el("span", { class: "num" }, BigInt(sums.paths).toLocaleString("en")), ` paths = ${number(total, 4)}   (log p = ${log(sums.log_probability)})\nbest path alone: log p = ${log(sums.best_path)}, ${number(100 * Math.exp(sums.best_path - sums.log_probability), 2)} % of the sum`) : el("p", {}, "The target does not fit into this many positions.")];
}
