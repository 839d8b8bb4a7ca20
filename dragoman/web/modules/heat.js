// Heat maps: a small picture of pixels inside an SVG, with words along both sides, a mark and keyboard steps.

import { css, mix, rgb, room, shortened, svg } from "./core.js";

const LETTER = 7.2; // mean width of a letter of the axis labels

function sizeOf(labels, longest) {
  return Math.min(longest, Math.max(...labels.map((label) => shortened(label).length), 1)) * LETTER + 12;
}

// A PNG of rows × columns pixels as a data URL; `shade(row, column)` gives three numbers.
export function pixels(rows, columns, shade) {
  const canvas = document.createElement("canvas");
  canvas.width = columns;
  canvas.height = rows;
  const context = canvas.getContext("2d");
  const image = context.createImageData(columns, rows);
  for (let row = 0, place = 0; row < rows; row += 1) {
    for (let column = 0; column < columns; column += 1, place += 4) {
      const three = shade(row, column);
      image.data[place] = three[0];
      image.data[place + 1] = three[1];
      image.data[place + 2] = three[2];
      image.data[place + 3] = 255;
    }
  }
  context.putImageData(image, 0, 0);
  return canvas.toDataURL();
}

// Colours from 0 to `top`, or from −top over 0 to top where there are negative values.
export function shades(top, signed = false) {
  const [low, high, minus, plus, zero] = ["heat-0", "heat-1", "minus", "plus", "zero"].map(rgb);
  if (signed) return (value) => mix(zero, value < 0 ? minus : plus, Math.sqrt(Math.abs(value) / (top || 1)));
  return (value) => mix(low, high, value / (top || 1));
}

// White or black, whichever is easier to read on a colour: a contrast of 4.5 at least.
function inkOn(three) {
  const [red, green, blue] = three.map((one) => (one / 255 <= 0.04045 ? one / 255 / 12.92 : ((one / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > 0.179 ? "#000000" : "#ffffff";
}

// matrix: {rows, columns, at(row, column)}; labels for both sides; `marked` is [row, column] (either may be null);
// `write(row, column)` is the text inside a cell.
export function heatmap({ rows, columns, at, rowLabels, columnLabels, top, signed = false, marked = [null, null], pick, hover, cell,
  rowTitle = "", columnTitle = "", outlined = [], label = "heat map", square = true, write = null }) {
  const wide = Math.min(760, room() - 40);
  const left = sizeOf(rowLabels, window.innerWidth < 560 ? 11 : 18) + (rowTitle ? 16 : 0);
  const above = sizeOf(columnLabels, 14) + (columnTitle ? 16 : 0);
  const natural = (wide - left) / columns;
  const across = cell ?? Math.max(columns > 120 ? 2.4 : columns > 60 ? 8 : 17, Math.min(natural, 38));
  const down = square ? Math.min(across, 30) : Math.max(rows > 120 ? 2.4 : 11, Math.min(24, 420 / rows));
  const width = left + across * columns + 38; // room for the last leaning label
  const height = above + down * rows + 8;
  const scale = shades(top, signed);
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label });
  picture.append(svg("image", { x: left, y: above, width: across * columns, height: down * rows, preserveAspectRatio: "none",
    href: pixels(rows, columns, (row, column) => scale(at(row, column))), style: { "image-rendering": "pixelated" } }));
  const everyColumn = Math.ceil(11 / across);
  const everyRow = Math.ceil(11 / down);
  for (let place = 0; write && place < rows * columns; place += 1) {
    const [row, column] = [Math.floor(place / columns), place % columns];
    picture.append(svg("text", { x: left + across * (column + 0.5), y: above + down * (row + 0.5), "text-anchor": "middle", "dominant-baseline": "central", "pointer-events": "none",
      style: { fill: inkOn(scale(at(row, column))), "font-size": "11.5px" } }, write(row, column)));
  }
  columnLabels.forEach((text, column) => {
    if (column % everyColumn) return;
    const upright = [...text].length <= 2; // letters
    const x = left + across * (column + 0.5) + (upright ? 0 : 4);
    picture.append(svg("text", { x, y: above - 6, ...(upright ? { "text-anchor": "middle" } : { transform: `rotate(-55 ${x} ${above - 6})` }), class: column === marked[1] ? "" : "axis",
      "font-weight": column === marked[1] ? 700 : 400 }, shortened(text, 14)));
  });
  rowLabels.forEach((text, row) => {
    if (row % everyRow) return;
    picture.append(svg("text", { x: left - 6, y: above + down * (row + 0.5), "text-anchor": "end", "dominant-baseline": "central",
      class: row === marked[0] ? "" : "axis", "font-weight": row === marked[0] ? 700 : 400 }, shortened(text, window.innerWidth < 560 ? 11 : 18)));
  });
  if (columnTitle) picture.append(svg("text", { x: left + (across * columns) / 2, y: 12, "text-anchor": "middle", class: "axis" }, columnTitle));
  const middle = above + (down * rows) / 2;
  if (rowTitle) picture.append(svg("text", { x: 12, y: middle, "text-anchor": "middle", class: "axis", transform: `rotate(-90 12 ${middle})` }, rowTitle));
  for (const [row, column] of outlined) {
    picture.append(svg("rect", { x: left + across * column + 1, y: above + down * row + 1, width: across - 2, height: down - 2, fill: "none",
      stroke: "var(--s1)", "stroke-width": 2.5, rx: 2 }));
  }
  const frame = (box) => picture.append(svg("rect", { ...box, fill: "none", stroke: "var(--ink)", "stroke-width": 1.6, "pointer-events": "none" }));
  if (marked[0] !== null && marked[0] < rows) frame({ x: left, y: above + down * marked[0], width: across * columns, height: down });
  if (marked[1] !== null && marked[1] < columns) frame({ x: left + across * marked[1], y: above, width: across, height: down * rows });
  const place = (event) => {
    const box = picture.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left - left) / across);
    const row = Math.floor((event.clientY - box.top - above) / down);
    return row >= 0 && row < rows && column >= 0 && column < columns ? [row, column] : null;
  };
  if (hover) {
    picture.addEventListener("pointermove", (event) => { const found = place(event); if (found) hover(...found); });
    picture.addEventListener("pointerleave", () => hover(null, null));
  }
  if (pick) {
    picture.setAttribute("tabindex", "0");
    picture.setAttribute("role", "application");
    picture.setAttribute("aria-label", `${label}; arrow keys move the marked cell`);
    picture.addEventListener("click", (event) => { const found = place(event); if (found) pick(...found); });
    picture.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      const next = (value, step, size) => Math.min(Math.max((value ?? 0) + step, 0), size - 1);
      pick(next(marked[0], move[0], rows), next(marked[1], move[1], columns));
    });
  }
  return picture;
}

// A bar of colours with its two ends.
export function colourBar(low, high, signed = false) {
  const scale = shades(1, signed);
  const width = 150;
  const picture = svg("svg", { viewBox: `0 0 ${width + 140} 18`, width: width + 140, height: 18, "aria-hidden": "true" });
  for (let index = 0; index < 50; index += 1) {
    const value = signed ? -1 + (2 * index) / 49 : index / 49;
    picture.append(svg("rect", { x: 66 + (index * width) / 50, y: 2, width: width / 50 + 0.5, height: 13, fill: css(scale(value)) }));
  }
  picture.append(svg("text", { x: 60, y: 13, "text-anchor": "end", class: "axis" }, low), svg("text", { x: 72 + width, y: 13, class: "axis" }, high));
  return picture;
}
