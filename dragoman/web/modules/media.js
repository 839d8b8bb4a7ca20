// What a run reads of a recording, a picture or a video, and where its outputs lie.

import { el, figure, number, onState, percent, readState, room, setState, shortened, shown, svg, tensor, whole } from "./core.js";
import { colourBar, pixels, shades } from "./heat.js";
import { colourOf } from "./chart.js";

export function drawMedia(view, data) {
  const { picture, video, emissions, bands, target } = view.data;
  const features = tensor(view.data.features);
  const [length, size] = features.shape;
  const layers = data.views.find((one) => one.kind === "attention")?.data.layers ?? [];
  const looking = layers.findLast((layer) => layer.kind === "cross") ?? layers.findLast((layer) => layer.kind === "pooling");
  const weights = looking ? tensor(looking.weights) : null;
  // Before the figures, which draw at once.
  const mean = (row, column) => { let sum = 0; for (let head = 0; head < weights.shape[0]; head += 1) sum += weights.at(head, row, column); return sum / weights.shape[0]; };
  const strongest = (row) => { let best = 0; for (let column = 1; column < weights.shape[2]; column += 1) if (mean(row, column) > mean(row, best)) best = column; return best; };
  const step = () => whole(readState().step, 0, 0, weights.shape[1] - 1);
  const rows = () => (bands ? [["label", "from", "to", "probability"], bands.map((band) => [band.label, band.start + 1, band.end, band.probability]), { numeric: [1, 2, 3] }]
    : [["token", "place of most weight"], target.tokens.map((token, row) => [shown(token), weights && row < weights.shape[1] ? strongest(row) + 1 : ""]), { numeric: [1] }]);
  const wholePicture = picture ? coloured(length, size / 3, (row, column) => features.at(row, column)) : null;
  const labels = [...new Set((bands ?? []).map((band) => band.label))].sort();
  const hue = (label) => colourOf(labels.indexOf(label));
  const frame = figure({ name: "input", title: "input of the model", drawing: () => (picture ? image(Math.min(460, room()), weights ? step() : null) : video ? film() : recording()), rows, data: () => view.data });

  // A picture of side × across pixels: rows of red, green and blue from `first` on.
  function coloured(side, across, at) {
    return pixels(side, across, (row, column) => [0, 1, 2].map((colour) => at(row, column * 3 + colour)));
  }

  // The picture; with a row of weights the brighter, the more is looked at.
  function image(box, row, lines = true) {
    const out = svg("svg", { viewBox: `0 0 ${box} ${box}`, width: box, height: box, role: "img", "aria-label": "picture with attention" }, svg("image", { href: wholePicture, width: box, height: box, preserveAspectRatio: "none" }));
    if (!weights || row === null) return out;
    const grid = Math.round(Math.sqrt(weights.shape[2]));
    const most = mean(row, strongest(row)) || 1;
    const cell = box / grid;
    for (let place = 0; place < grid * grid && place < weights.shape[2]; place += 1) {
      out.append(svg("rect", { x: (place % grid) * cell, y: Math.floor(place / grid) * cell, width: cell + 0.3, height: cell + 0.3, fill: "#000", "fill-opacity": 0.78 * (1 - mean(row, place) / most) },
        lines ? svg("title", {}, `region ${place + 1}: ${percent(mean(row, place))}`) : null));
    }
    if (lines && view.data.patches) for (let line = 1; line < grid; line += 1) out.append(svg("path", { d: `M${line * cell} 0V${box}M0 ${line * cell}H${box}`, stroke: "#fff", "stroke-opacity": 0.5 }));
    return out;
  }

  // One small picture for every token of the output (Xu et al. 2015, figure 3).
  function panels() {
    const box = el("div", { class: "panels-of-tokens" });
    const draw = () => box.replaceChildren(...target.tokens.slice(0, weights.shape[1]).map((token, row) => el("button", { type: "button", "aria-pressed": String(row === step()), onclick: () => setState({ step: row }) }, image(110, row, false),
      el("span", { class: "small", dir: "auto" }, shortened(token, 12)), el("span", { class: "small" }, percent(mean(row, strongest(row)))))));
    onState(draw);
    draw();
    return [el("h3", {}, "Every token of the output"), el("p", { class: "small soft" }, `Mean over heads of ${looking.name}; the number is the largest weight of one of ${weights.shape[2]} regions.`), box];
  }

  // Frames in rows, each with a bar: what the output looks at.
  function film() {
    const side = Math.sqrt(size / 3);
    const box = Math.round(Math.max(56, Math.min(170, room() / length - 6)));
    const across = Math.max(1, Math.min(length, Math.floor(room() / (box + 6))));
    const high = box + 44;
    const out = svg("svg", { viewBox: `0 0 ${across * (box + 6)} ${Math.ceil(length / across) * high}`, width: across * (box + 6), height: Math.ceil(length / across) * high, role: "img", "aria-label": "frames of the video" });
    const scale = weights ? weights.shape[2] / video.count : 1; // entries of the memory for one frame
    const share = (frame) => mean(step(), Math.min(weights.shape[2] - 1, Math.floor(frame * scale)));
    const most = weights ? mean(step(), strongest(step())) || 1 : 1;
    video.frames.forEach((original, place) => {
      const [x, y] = [(place % across) * (box + 6), Math.floor(place / across) * high];
      out.append(svg("image", { x, y, width: box, height: box, preserveAspectRatio: "none", href: coloured(side, side, (row, column) => features.at(place, row * side * 3 + column)) }),
        svg("text", { x: x + box / 2, y: y + box + 26, "text-anchor": "middle", class: "axis" }, String(original + 1)));
      if (weights) out.append(svg("rect", { x, y: y + box + 2, width: (box * share(original)) / most, height: 8, fill: "var(--accent)" }, svg("title", {}, percent(share(original)))));
      const band = bands?.find((one) => original >= one.start && original < one.end);
      if (band) out.append(svg("rect", { x, y: y + box + 2, width: box + 6, height: 8, fill: hue(band.label) }), svg("text", { x: x + box / 2, y: y + box + 40, "text-anchor": "middle" }, shortened(band.label, 9)));
    });
    return out;
  }

  function recording() {
    const wide = room();
    let [low, high] = [Infinity, -Infinity];
    for (const value of features.values) if (Number.isFinite(value)) { low = Math.min(low, value); high = Math.max(high, value); }
    const scale = shades(1);
    const height = 170;
    const out = svg("svg", { viewBox: `0 0 ${wide} ${height + 66}`, width: wide, height: height + 66, role: "img", "aria-label": "features over time" },
      svg("image", { href: pixels(size, length, (row, column) => scale((features.at(column, size - 1 - row) - low) / (high - low || 1))), width: wide, height, preserveAspectRatio: "none" }));
    if (bands) {
      for (const band of bands) {
        const [x, width] = [(band.start * wide) / length, ((band.end - band.start) * wide) / length];
        out.append(svg("rect", { x, y: height + 4, width: Math.max(0.6, width - 0.5), height: 22, fill: hue(band.label), "fill-opacity": 0.25 + 0.75 * band.probability }, svg("title", {}, `${band.label}, frames ${band.start + 1} to ${band.end}: ${percent(band.probability)}`)),
          svg("path", { d: `M${x} 0V${height + 4}`, stroke: hue(band.label), "stroke-opacity": 0.8 }));
        if (width > 8 * Math.min(8, band.label.length)) out.append(svg("text", { x: x + width / 2, y: height + 40, "text-anchor": "middle" }, shortened(band.label, 12)));
      }
    } else if (emissions) {
      const probabilities = tensor(emissions.probabilities);
      const count = probabilities.shape[0];
      emissions.pieces.forEach((row, place) => {
        const x = ((place + 0.5) * wide) / count;
        const blank = row[0] === "blank";
        out.append(svg("rect", { x: (place * wide) / count, y: height + 4 + 12 * (1 - probabilities.at(place, 0)), width: Math.max(0.6, wide / count - 0.4), height: 12 * probabilities.at(place, 0), fill: blank ? "var(--line)" : "var(--accent)" }, svg("title", {}, `${shown(row[0])}: ${percent(probabilities.at(place, 0))}`)));
        if (!blank && (place === 0 || emissions.pieces[place - 1][0] !== row[0])) out.append(svg("text", { x, y: height + 34, "text-anchor": "middle" }, shown(row[0])));
      });
    } else if (weights) {
      const count = weights.shape[2];
      for (let place = 0; place < count; place += 1) out.append(svg("rect", { x: (place * wide) / count, y: height + 4 + 30 * (1 - mean(step(), place)), width: wide / count, height: 30 * mean(step(), place), fill: "var(--accent)" }));
    }
    const total = length * (view.data.seconds ?? 1);
    for (let tick = 0; tick <= 5; tick += 1) out.append(svg("text", { x: (tick * wide) / 5, y: height + 60, "text-anchor": tick === 0 ? "start" : tick === 5 ? "end" : "middle", class: "axis" }, view.data.seconds ? `${number((tick * total) / 5, 2)} s` : String(Math.round((tick * total) / 5))));
    return out;
  }
  onState(() => frame.draw());
  const legend = bands ? el("div", { class: "legend" }, labels.map((label) => el("span", {}, el("i", { style: { background: hue(label) } }), label))) : null;
  const help = bands ? "Each band is the tag of its frames; the paler, the less sure." : emissions ? "Blue bars: the token that CTC finds there; grey bars: blank." : weights ? "Step through the output to see where each token looks." : "";
  const main = [frame, legend, picture || video ? null : colourBar("low", "high"), help ? el("p", { class: "small soft" }, help) : null].filter(Boolean);
  return picture && weights && weights.shape[1] > 1 ? [el("div", { class: "columns" }, el("section", {}, main), el("section", {}, panels()))] : main;
}
