// Line charts and bars with axes, drawn as SVG.

import { SERIES, number, room, shortened, shown, svg } from "./core.js";

function ticks(low, high, count = 5) {
  const raw = (high - low) / count || 1;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((one) => one * unit).find((one) => one >= raw);
  const found = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step / 1e6; value += step) found.push(Math.abs(value) < step / 1e6 ? 0 : value);
  return found;
}

function short(value) {
  if (value !== 0 && (Math.abs(value) >= 1e5 || Math.abs(value) < 1e-3)) {
    return value.toExponential(0).replace("e+", "e").replace("-", "−");
  }
  return String(Number(value.toPrecision(4))).replace("-", "−");
}

function powers(low, high) {
  const found = [];
  const from = Math.floor(Math.log10(low));
  const to = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((to - from) / 7));
  for (let power = from; power <= to; power += every) found.push(10 ** power);
  return found.filter((one) => one >= low * 0.999 && one <= high * 1.001).length >= 2
    ? found.filter((one) => one >= low * 0.999 && one <= high * 1.001) : [low, high];
}

export function colourOf(index) {
  return `var(--${SERIES[index % SERIES.length]})`;
}

// series: [{name, points: [[x, y, low?, high?]], dash?, colour?, dots?, band?}]; low and high are bars, or a band. A log axis leaves out values of 0 and below.
export function lineChart({ series, xTitle, yTitle, logX = false, logY = false, zero = false, marked = null, labels = null, label = "line chart",
  height = 300, categories = null }) {
  const width = Math.min(700, room());
  const [left, right, above, below] = [58, 26, 12, categories ? 58 : 44]; // half of the last tick's label is to the right
  const good = (point) => point[1] !== null && Number.isFinite(point[1]) && (!logY || point[1] > 0) && (!logX || point[0] > 0);
  const all = series.flatMap((one) => one.points.filter(good));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  if (!all.length) {
    picture.append(svg("text", { x: left, y: height / 2 }, "nothing to draw"));
    return picture;
  }
  const bounds = (values) => [Math.min(...values), Math.max(...values)];
  let [x0, x1] = categories ? [-0.5, categories.length - 0.5] : bounds(all.map((one) => one[0]));
  let [y0, y1] = bounds(all.flatMap((one) => [one[1], one[2] ?? one[1], one[3] ?? one[1]].filter((value) => !logY || value > 0)));
  if (zero && !logY) y0 = Math.min(0, y0);
  if (y0 === y1) [y0, y1] = logY ? [y0 / 2, y1 * 2] : zero && y0 === 0 ? [0, 1] : [y0 - 0.5, y1 + 0.5];
  if (x0 === x1) [x0, x1] = logX ? [x0 / 2, x1 * 2] : [x0 - 0.5, x1 + 0.5];
  if (!logY && !zero) { const pad = (y1 - y0) * 0.05; y0 -= pad; y1 += pad; }
  const scale = (value, low, high, log) => log ? Math.log(value / low) / Math.log(high / low) : (value - low) / (high - low);
  const x = (value) => left + scale(value, x0, x1, logX) * (width - left - right);
  const y = (value) => height - below - scale(value, y0, y1, logY) * (height - above - below);
  for (const value of logY ? powers(y0, y1) : ticks(y0, y1)) {
    picture.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "grid" }),
      svg("text", { x: left - 6, y: y(value), "text-anchor": "end", "dominant-baseline": "central", class: "axis" }, short(value)));
  }
  if (categories) {
    categories.forEach((name, index) => picture.append(svg("text", { x: x(index), y: height - below + 16, "text-anchor": "middle", class: "axis" },
      shortened(name, Math.max(3, Math.floor((width - left) / categories.length / 7))))));
  } else {
    for (const value of logX ? [...new Set(all.map((one) => one[0]))].filter((one, index, list) => list.length <= 9 || index % Math.ceil(list.length / 8) === 0) : ticks(x0, x1, Math.min(8, width / 80))) {
      picture.append(svg("text", { x: x(value), y: height - below + 16, "text-anchor": "middle", class: "axis" }, labels?.[value] !== undefined ? shortened(labels[value], 8) : short(value)));
    }
  }
  picture.append(svg("text", { x: (left + width - right) / 2, y: height - 6, "text-anchor": "middle", class: "axis" }, xTitle),
    svg("text", { x: 13, y: (height - below + above) / 2, "text-anchor": "middle", class: "axis", transform: `rotate(-90 13 ${(height - below + above) / 2})` }, yTitle));
  if (marked !== null) picture.append(svg("line", { x1: x(marked), x2: x(marked), y1: above, y2: height - below, stroke: "var(--ink)", "stroke-dasharray": "3 3" }));
  const alone = series.every((one) => one.points.length <= 1); // each in a category of its own
  series.forEach((one, index) => {
    const stroke = one.colour ?? colourOf(index);
    const points = one.points.filter(good);
    const shift = categories && !alone ? (index - (series.length - 1) / 2) * Math.min(10, 60 / series.length) : 0;
    const clamp = (value) => Math.min(Math.max(value, above), height - below);
    if (one.band) {
      const edge = (place) => points.map((point) => `${x(point[0]).toFixed(1)},${clamp(y(point[place])).toFixed(1)}`);
      picture.append(svg("polygon", { points: [...edge(2), ...edge(3).reverse()].join(" "), fill: stroke, "fill-opacity": 0.16, stroke: "none" }));
    }
    for (const point of one.band ? [] : points) {
      if (point[2] === undefined || point[2] === null) continue;
      picture.append(svg("line", { x1: x(point[0]) + shift, x2: x(point[0]) + shift, y1: clamp(y(point[2])), y2: clamp(y(point[3])), stroke, "stroke-width": 1.5, "stroke-opacity": 0.55 }));
    }
    picture.append(svg("polyline", { points: points.map((point) => `${(x(point[0]) + shift).toFixed(1)},${clamp(y(point[1])).toFixed(1)}`).join(" "), fill: "none", stroke,
      "stroke-width": one.dash ? 1.5 : 2.2, "stroke-dasharray": one.dash ?? null, "stroke-linejoin": "round" }));
    if (one.dots !== false && points.length <= 80) {
      for (const point of points) {
        const dot = svg("circle", { cx: x(point[0]) + shift, cy: clamp(y(point[1])), r: 3.2, fill: stroke });
        dot.append(svg("title", {}, `${one.name}: ${categories ? categories[point[0]] : short(point[0])} → ${number(point[1], 3)}`));
        picture.append(dot);
      }
    }
  });
  return picture;
}

// A long label without its beginning: names of layers differ at their ends.
function ending(text, length) {
  const letters = [...shown(text)];
  return letters.length <= length ? letters.join("") : `…${letters.slice(1 - length).join("")}`;
}

// Horizontal bars: rows of {label, value, text?, marked?, faint?}; negative values go to the left of zero.
export function bars({ rows, pick, label = "bar chart", low = null, high = null, layers = false }) {
  const cut = layers ? ending : shortened;
  const width = Math.min(700, room());
  const letter = 7.8; // a bold one
  const longest = Math.max(3, Math.min(34, Math.floor((width * (layers ? 0.55 : 0.45) - 14) / letter)));
  const left = Math.max(...rows.map((row) => [...cut(row.label, longest)].length)) * letter + 14;
  const right = 74;
  const each = 25;
  const smallest = low ?? Math.min(0, ...rows.map((row) => row.value));
  const largest = high ?? Math.max(0, ...rows.map((row) => row.value));
  const span = largest - smallest || 1;
  const x = (value) => left + ((value - smallest) / span) * (width - left - right);
  const height = rows.length * each + 6;
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  if (smallest < 0) picture.append(svg("line", { x1: x(0), x2: x(0), y1: 0, y2: height, stroke: "var(--soft)" }));
  rows.forEach((row, index) => {
    const top = index * each + 3;
    const [from, to] = [x(Math.min(0, row.value)), x(Math.max(0, row.value))];
    const group = svg("g", pick ? { tabindex: "0", role: "button", "aria-label": `${row.label}: ${row.text ?? number(row.value)}`, onclick: () => pick(index),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(index); } } } : {});
    group.append(svg("rect", { x: 0, y: top - 1, width, height: each - 2, fill: row.marked ? "var(--accent-soft)" : "transparent", rx: 5 }),
      svg("text", { x: left - 8, y: top + 11, "text-anchor": "end", "dominant-baseline": "central", "font-weight": row.marked ? 700 : 400 }, svg("title", {}, row.label), cut(row.label, longest)),
      svg("rect", { x: from, y: top + 2, width: Math.max(to - from, 1), height: each - 9, rx: 3, fill: row.colour ?? (row.faint ? "var(--line)" : row.value < 0 ? "var(--bad)" : "var(--accent)") }),
      svg("text", { x: to + 6, y: top + 11, "dominant-baseline": "central", class: "axis" }, row.text ?? number(row.value)));
    picture.append(group);
  });
  return picture;
}

// Pictures below each other in one, each under its title: [title, picture].
export function stacked(parts, label) {
  const sizes = parts.map(([, picture]) => ["width", "height"].map((name) => Number(picture.getAttribute(name))));
  const [width, height] = [Math.max(...sizes.map((size) => size[0])), sizes.reduce((sum, size) => sum + size[1] + 30, 0)];
  const whole = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  let top = 0;
  parts.forEach(([title, picture], index) => {
    whole.append(svg("text", { x: 0, y: top + 18, "font-weight": 600 }, title));
    picture.setAttribute("y", top + 26);
    whole.append(picture);
    top += sizes[index][1] + 30;
  });
  return whole;
}
