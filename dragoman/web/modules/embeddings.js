// Vectors of tokens: nearest neighbours, and a projection onto two dimensions. Training pairs with the nearest decoder states.

import { el, figure, number, onState, percent, put, readState, room, select, setState, shortened, shown, svg, table, tensor, whole } from "./core.js";
import { bars } from "./chart.js";

export function drawEmbeddings(view) {
  const { tables } = view.data;
  const chosen = () => tables[whole(readState().part, 0, 0, tables.length - 1)];
  const token = () => whole(readState().token, 0, 0, chosen().tokens.length - 1);
  const controls = el("div", { class: "controls" });
  const words = el("div", { class: "words" });
  const about = el("p", { class: "small soft" });
  const near = figure({
    name: "neighbours", title: "nearest tokens",
    drawing: () => { const cosines = tensor(chosen().cosines); return bars({ rows: chosen().neighbours[token()].map((piece, index) => ({ label: shown(piece), value: cosines.at(token(), index), text: number(cosines.at(token(), index), 3) })), low: Math.min(0, ...chosen().neighbours[token()].map((_, index) => cosines.at(token(), index))), high: 1, label: "cosine of the nearest tokens" }); },
    rows: () => { const cosines = tensor(chosen().cosines); return [["token", "neighbour", "cosine"], chosen().tokens.flatMap((piece, row) => chosen().neighbours[row].map((other, index) => [shown(piece), shown(other), cosines.at(row, index)])), { numeric: [2] }]; },
    data: () => chosen(),
  });
  const map = figure({
    name: "projection", title: "projection of embeddings",
    drawing: () => {
      const { points, groups } = chosen();
      const places = tensor(chosen().places);
      const [width, height, edge] = [Math.min(620, room()), 420, 34];
      const span = (axis) => { const values = points.map((_, index) => places.at(index, axis)); return [Math.min(...values), Math.max(...values)]; };
      const scale = (value, [low, high], size) => edge + ((value - low) / (high - low || 1)) * (size - 2 * edge);
      const [xs, ys] = [span(0), span(1)];
      const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "tokens on two principal components" });
      const mine = new Set([chosen().tokens[token()], ...chosen().neighbours[token()]]);
      points.map((piece, index) => [piece, index]).sort((left, right) => groups[right[1]] - groups[left[1]]).forEach(([piece, index]) => {
        const [x, y] = [scale(places.at(index, 0), xs, width), height - scale(places.at(index, 1), ys, height)];
        const fill = ["var(--accent)", "var(--s1)", "var(--line)"][groups[index]];
        out.append(svg("circle", { cx: x, cy: y, r: groups[index] === 2 ? 2.5 : 4, fill }, svg("title", {}, shown(piece))));
        if (groups[index] === 0 || mine.has(piece)) out.append(svg("text", { x: x + 6, y: y + 4, class: groups[index] === 0 ? "" : "axis", "font-weight": piece === chosen().tokens[token()] ? 700 : 400 }, shortened(piece, 14)));
      });
      return out;
    },
    rows: () => { const places = tensor(chosen().places); return [["token", "first", "second"], chosen().points.map((piece, index) => [shown(piece), places.at(index, 0), places.at(index, 1)]), { numeric: [1, 2] }]; },
    data: () => chosen(),
  });
  const update = () => {
    put(controls, tables.length > 1 ? select("table", tables.map((one, index) => [index, one.name]), tables.indexOf(chosen()), (value) => setState({ part: value, token: null })) : el("code", {}, chosen().name));
    words.replaceChildren(...chosen().tokens.map((piece, index) => el("button", { type: "button", class: "word", "aria-current": String(index === token()), onclick: () => setState({ token: index }) }, el("bdi", {}, shown(piece)))));
    about.textContent = `These two components have ${percent(chosen().explained)} of the variance. Blue: tokens of the text; orange: their neighbours; grey: others.`;
    near.draw();
    map.draw();
  };
  onState(update);
  update();
  return [controls, words, el("div", { class: "columns" }, el("section", {}, el("h3", {}, "Nearest tokens"), near), el("section", {}, el("h3", {}, "Projection"), about, map))];
}

export function drawTraining(view) {
  const { target, neighbours } = view.data;
  const step = () => whole(readState().step, 0, 0, target.tokens.length - 1);
  const words = el("div", { class: "words" });
  const readout = el("div", { class: "readout" });
  const marked = (one) => el("span", { dir: "auto" }, `${one.before} `, el("mark", {}, shown(one.token)), ` ${one.after}`);
  const list = el("div", {});
  const update = () => {
    const [own, near] = [target.tokens[step()], neighbours[step()]];
    words.replaceChildren(...target.tokens.map((token, index) => el("button", { type: "button", class: "word", "aria-current": String(index === step()), onclick: () => setState({ step: index }) }, el("bdi", {}, shown(token)))));
    readout.textContent = `Before ${shown(own)}: the nearest of ${view.data.states.toLocaleString("en")} states in ${view.data.pairs.toLocaleString("en")} training pairs; ${near.filter((one) => one.token === own).length} of ${near.length} write the same token.`;
    put(list, table(["distance", "training target", "source"], near.map((one) => [number(one.distance, 3), marked(one), el("span", { dir: "auto" }, one.source)]), { numeric: [0] }));
  };
  onState(update);
  update();
  return [words, readout, list];
}
