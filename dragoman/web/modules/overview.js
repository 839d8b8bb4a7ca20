// The first view: input words or letters above, output below, lines between them, and the parts of the model.

import { el, onState, percent, readState, setState, shortened, svg, tensor, whole } from "./core.js";
import { merged, words } from "./words.js";


export function drawOverview(view, data, open) {
  const scores = view.data.log_probabilities ? tensor(view.data.log_probabilities) : null;
  const place = el("div", {});
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const links = alignment(data);

  function draw() {
    const step = whole(readState().step, 0, 0, data.target.tokens.length - 1);
    place.replaceChildren(picture(data, links, step, scores));
    readout.replaceChildren(describe(data, links, step, scores));
  }
  onState(draw);
  draw();
  return [
    place, readout, flow(view.data.boxes, open), el("p", { class: "small soft" }, view.data.summary),
  ];
}

// Word-to-word weights: cross-attention averaged over heads of the last layer, else the size of input × gradient.
function alignment(data) {
  const view = data.views.find((one) => one.kind === "attention");
  if (!view || !data.source) return null;
  const crosses = view.data.layers.filter((layer) => layer.kind === "cross" && layer.columns.tokens.length === data.source.tokens.length);
  if (crosses.length) {
    const layer = crosses[crosses.length - 1];
    const weights = tensor(layer.weights);
    const [heads, rows, columns] = weights.shape;
    const mean = (row, column) => { let sum = 0; for (let head = 0; head < heads; head += 1) sum += weights.at(head, row, column); return sum / heads; };
    return { ...merged({ rows, columns, at: mean }, layer.rows, layer.columns), what: `attention of ${layer.name}, mean over heads` };
  }
  const packed = view.data.attribution["input-x-gradient"]?.source;
  if (!packed || packed.shape[0] !== data.target.tokens.length) return null;
  const values = tensor(packed);
  const [rows, columns] = values.shape;
  const sums = Array.from({ length: rows }, (_, row) => values.row(row).reduce((sum, one) => sum + Math.abs(one), 0) || 1);
  const shares = merged({ rows, columns, at: (row, column) => Math.abs(values.at(row, column)) / sums[row] }, data.target, view.data.source);
  const before = Math.max(0, shares.columns - data.source.words.length); // [CLS], which the encoder adds
  return { rows: shares.rows, columns: shares.columns - before, at: (row, column) => shares.at(row, column + before), what: "size of input × gradient", verb: "depends most on" };
}

function placed(labels, y, most) {
  const sizes = labels.map((label) => Math.max(26, shortened(label, 14).length * 8 + 16));
  const rows = [];
  let row = { from: 0, width: 0 };
  const boxes = sizes.map((size, index) => {
    if (row.width + size > most && row.width) { rows.push(row); row = { from: index, width: 0 }; }
    const box = { row: rows.length, x: row.width, size };
    row.width += size + 8;
    return box;
  });
  return { boxes: boxes.map((box) => ({ x: box.x + 4, y: y + box.row * 40, size: box.size })), height: (rows.length + 1) * 40, width: Math.max(row.width, ...rows.map((one) => one.width)) };
}

function picture(data, links, step, scores) {
  const width = Math.min(1000, Math.max(250, window.innerWidth - 60));
  const source = data.source ? words(data.source) : [];
  const target = words(data.target);
  const top = source.length ? placed(source, 6, width) : { boxes: [], height: 0, width: 0 };
  const gap = source.length && links ? 120 : 24;
  const bottom = placed(target, 6 + top.height + gap, width);
  const height = 6 + top.height + gap + bottom.height + 14;
  const image = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "group", "aria-label": "input and output" });
  const current = data.target.word_of[step] ?? 0;
  if (links) {
    for (let row = 0; row < Math.min(links.rows, bottom.boxes.length); row += 1) {
      for (let column = 0; column < Math.min(links.columns, top.boxes.length); column += 1) {
        const weight = links.at(row, column);
        if (weight < (row === current ? 0.02 : 0.12)) continue;
        const [from, to] = [top.boxes[column], bottom.boxes[row]];
        const [x1, y1, x2, y2] = [from.x + from.size / 2, from.y + 32, to.x + to.size / 2, to.y];
        image.append(svg("path", { d: `M${x1} ${y1} C ${x1} ${(y1 + y2) / 2}, ${x2} ${(y1 + y2) / 2}, ${x2} ${y2}`, fill: "none", stroke: "var(--accent)",
          "stroke-width": 1 + 7 * weight, "stroke-opacity": row === current ? 0.25 + 0.75 * weight : 0.1 }));
      }
    }
  }
  source.forEach((text, index) => {
    const box = top.boxes[index];
    const weight = links && current < links.rows ? links.at(current, index) : 0;
    image.append(svg("rect", { x: box.x, y: box.y, width: box.size, height: 32, rx: 8, fill: "var(--accent)", "fill-opacity": 0.06 + 0.6 * weight, stroke: "var(--line)" }),
      svg("text", { x: box.x + box.size / 2, y: box.y + 17, "text-anchor": "middle", "dominant-baseline": "central" }, shortened(text, 14)));
  });
  target.forEach((text, index) => {
    const box = bottom.boxes[index];
    const tokens = data.target.word_of.flatMap((word, token) => (word === index ? [token] : []));
    const score = scores ? tokens.reduce((sum, token) => sum + (scores.values[token] ?? 0), 0) : null;
    const choose = () => setState({ step: tokens[0] });
    const group = svg("g", { tabindex: "0", role: "button", "aria-pressed": String(index === current), "aria-label": score === null ? text : `${text}, probability ${percent(Math.exp(score))}`, onclick: choose,
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } } },
      svg("rect", { x: box.x, y: box.y, width: box.size, height: 32, rx: 8, fill: index === current ? "var(--accent)" : "var(--card)", stroke: index === current ? "var(--accent)" : "var(--line)" }),
      svg("text", { x: box.x + box.size / 2, y: box.y + 17, "text-anchor": "middle", "dominant-baseline": "central", style: index === current ? { fill: "var(--on-accent)" } : {} }, shortened(text, 14)),
      score === null ? null : svg("rect", { x: box.x + 3, y: box.y + 34, width: Math.max(1, (box.size - 6) * Math.exp(score)), height: 3, rx: 1.5, fill: "var(--good)" }));
    image.append(group);
  });
  return el("div", { class: "drawing" }, image);
}

function describe(data, links, step, scores) {
  const word = data.target.word_of[step] ?? 0;
  const names = words(data.target);
  const parts = [el("strong", { dir: "auto" }, names[word] ?? "")];
  if (scores) parts.push(` has probability ${percent(Math.exp(data.target.word_of.reduce((sum, one, token) => sum + (one === word ? scores.values[token] ?? 0 : 0), 0)))}`);
  if (links && word < links.rows) {
    const from = Array.from({ length: links.columns }, (_, column) => [links.at(word, column), words(data.source)[column]]).sort((a, b) => b[0] - a[0]).slice(0, 3).filter(([weight], index) => index === 0 || weight >= 0.005);
    parts.push(`${scores ? "; it " : " "}${links.verb ?? "looks most at"} `, ...from.flatMap(([weight, name], index) => [index ? ", " : "", el("span", { dir: "auto" }, `“${name ?? ""}”`), ` (${percent(weight)})`]), el("span", { class: "soft" }, ` · ${links.what}`));
  }
  return el("span", {}, parts);
}

function flow(boxes, open) {
  return el("ol", { class: "flow", "aria-label": "parts of the model" }, boxes.map(({ title, text, view }) => el("li", {},
    view ? el("button", { type: "button", onclick: () => open(view) }, el("strong", {}, title), el("span", {}, text))
      : el("div", { class: "box" }, el("strong", {}, title), el("span", {}, text)))));
}
