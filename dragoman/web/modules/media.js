// What a run reads of a recording or picture, and where its output tokens lie.

import { el, figure, onState, percent, readState, shown, svg, tensor, whole } from "./core.js";
import { colourBar, pixels, shades } from "./heat.js";

export function drawMedia(view, data) {
  const { picture, emissions, target } = view.data;
  const features = tensor(view.data.features);
  const [length, size] = features.shape;
  const cross = data.views.find((one) => one.kind === "attention")?.data.layers.findLast((layer) => layer.kind === "cross");
  const weights = cross ? tensor(cross.weights) : null;
  const wide = Math.min(720, window.innerWidth - 80);
  // Before the figure, which draws at once.
  const mean = (row, column) => { let sum = 0; for (let head = 0; head < weights.shape[0]; head += 1) sum += weights.at(head, row, column); return sum / weights.shape[0]; };
  const strongest = (row) => { let best = 0; for (let column = 1; column < weights.shape[2]; column += 1) if (mean(row, column) > mean(row, best)) best = column; return best; };
  const frame = figure({
    name: "input", title: "input of the model",
    drawing: () => (picture ? image() : recording()),
    rows: () => [["token", "place of most weight"], target.tokens.map((token, row) => [shown(token), weights && row < weights.shape[1] ? strongest(row) + 1 : ""]), { numeric: [1] }],
    data: () => view.data,
  });

  function image() {
    const side = length;
    const across = size / 3;
    const href = pixels(side, across, (row, column) => [0, 1, 2].map((colour) => features.at(row, column * 3 + colour)));
    const box = Math.min(wide, 380);
    const out = svg("svg", { viewBox: `0 0 ${box} ${box}`, width: box, height: box, role: "img", "aria-label": "picture with attention" }, svg("image", { href, width: box, height: box, preserveAspectRatio: "none" }));
    if (weights) {
      const step = whole(readState().step, 0, 0, weights.shape[1] - 1);
      const grid = Math.round(Math.sqrt(weights.shape[2]));
      const most = mean(step, strongest(step)) || 1;
      for (let place = 0; place < grid * grid && place < weights.shape[2]; place += 1) {
        out.append(svg("rect", { x: (place % grid) * (box / grid), y: Math.floor(place / grid) * (box / grid), width: box / grid, height: box / grid, fill: "#000", "fill-opacity": 0.78 * (1 - mean(step, place) / most) }));
      }
    }
    return out;
  }

  function recording() {
    let [low, high] = [Infinity, -Infinity];
    for (const value of features.values) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    const scale = shades(1);
    const height = 150;
    const out = svg("svg", { viewBox: `0 0 ${wide} ${height + 46}`, width: wide, height: height + 46, role: "img", "aria-label": "features over time" },
      svg("image", { href: pixels(size, length, (row, column) => scale((features.at(column, size - 1 - row) - low) / (high - low || 1))), width: wide, height, preserveAspectRatio: "none" }));
    if (emissions) {
      const probabilities = tensor(emissions.probabilities);
      const count = probabilities.shape[0];
      emissions.pieces.forEach((row, place) => {
        const x = ((place + 0.5) * wide) / count;
        const blank = row[0] === "blank";
        out.append(svg("rect", { x: (place * wide) / count, y: height + 4 + 12 * (1 - probabilities.at(place, 0)), width: Math.max(0.6, wide / count - 0.4), height: 12 * probabilities.at(place, 0), fill: blank ? "var(--line)" : "var(--accent)" }, svg("title", {}, `${shown(row[0])}: ${percent(probabilities.at(place, 0))}`)));
        if (!blank && (place === 0 || emissions.pieces[place - 1][0] !== row[0])) out.append(svg("text", { x, y: height + 34, "text-anchor": "middle" }, shown(row[0])));
      });
    } else if (weights) {
      const step = whole(readState().step, 0, 0, weights.shape[1] - 1);
      const count = weights.shape[2];
      for (let place = 0; place < count; place += 1) out.append(svg("rect", { x: (place * wide) / count, y: height + 4 + 30 * (1 - mean(step, place)), width: wide / count, height: 30 * mean(step, place), fill: "var(--accent)" }));
    }
    return out;
  }
  onState(() => frame.draw());
  return [frame, picture ? null : colourBar("low", "high"), el("p", { class: "small soft" }, emissions ? "Blue bars: the token that CTC finds there; grey bars: blank." : "Step through the output to see where each token looks.")].filter(Boolean);
}
