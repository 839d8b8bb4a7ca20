// Diagrams: the cell of a recurrent network, a residual block, and the whole model with its own sizes.

import { el, figure, room, shortened, svg } from "./core.js";

const DOWN = 26; // half the height of a box of text

function arrow(points, dashed = false) {
  const [x, y] = points.at(-1);
  const [a, b] = points.at(-2);
  const [dx, dy] = [Math.sign(x - a), Math.sign(y - b)];
  return svg("g", {}, svg("path", { d: `M${points.map((point) => point.join(" ")).join("L")}`, fill: "none", stroke: "var(--soft)", "stroke-width": 1.6, "stroke-dasharray": dashed ? "4 3" : null }),
    svg("path", { d: `M${x} ${y}L${x - 7 * dx - 4 * dy} ${y - 7 * dy - 4 * dx}L${x - 7 * dx + 4 * dy} ${y - 7 * dy + 4 * dx}Z`, fill: "var(--soft)" }));
}

function node(x, y, text, gate) {
  const half = Math.max(15, text.length * 4.5 + 6);
  return svg("g", {}, gate ? svg("rect", { x: x - half, y: y - 15, width: 2 * half, height: 30, rx: 6, fill: "var(--accent-soft)", stroke: "var(--accent)" }) : svg("rect", { x: x - Math.max(13, half - 4), y: y - 13, width: 2 * Math.max(13, half - 4), height: 26, rx: 13, fill: "var(--card)", stroke: "var(--s1)", "stroke-width": 1.6 }),
    svg("text", { x, y: y + 1, "text-anchor": "middle", "dominant-baseline": "central" }, text));
}

const label = (x, y, text, anchor = "middle") => svg("text", { x, y, "text-anchor": anchor }, text);

// name, equations, nodes [x, y, text, is a layer with weights], arrows, labels
const CELLS = {
  lstm: ["LSTM", ["f, i, o = σ(W x + U h + b)", "g = tanh(W x + U h + b)", "c' = f ⊙ c + i ⊙ g", "h' = o ⊙ tanh(c')"],
    [[100, 40, "⊙"], [250, 40, "+"], [250, 100, "⊙"], [100, 160, "f: σ", 1], [180, 160, "i: σ", 1], [250, 160, "g: tanh", 1], [340, 160, "o: σ", 1], [400, 100, "tanh"], [400, 160, "⊙"]],
    [[[20, 40], [87, 40]], [[113, 40], [237, 40]], [[263, 40], [470, 40]], [[100, 145], [100, 53]], [[180, 145], [180, 100], [237, 100]], [[250, 145], [250, 113]], [[250, 87], [250, 53]], [[400, 40], [400, 87]], [[400, 113], [400, 147]], [[362, 160], [387, 160]], [[400, 173], [400, 220], [470, 220]],
      [[20, 220], [340, 220], [340, 175]], [[100, 220], [100, 175]], [[180, 220], [180, 175]], [[250, 220], [250, 175]], [[60, 258], [60, 220]]],
    [[10, 34, "c", "start"], [462, 34, "c'", "end"], [10, 214, "h", "start"], [462, 214, "h'", "end"], [60, 272, "x"]]],
  gru: ["GRU", ["r, z = σ(W x + U h + b)", "n = tanh(W x + r ⊙ U h + b)", "h' = z ⊙ h + (1 − z) ⊙ n"],
    [[190, 40, "⊙"], [400, 40, "+"], [330, 100, "⊙"], [90, 160, "r: σ", 1], [190, 160, "z: σ", 1], [330, 160, "n: tanh", 1], [260, 220, "⊙"]],
    [[[20, 40], [177, 40]], [[203, 40], [387, 40]], [[413, 40], [470, 40]], [[190, 145], [190, 53]], [[212, 160], [245, 160], [245, 100], [317, 100]], [[330, 145], [330, 113]], [[343, 100], [400, 100], [400, 53]], [[112, 160], [130, 160], [130, 220], [247, 220]], [[40, 40], [40, 220], [90, 220], [90, 175]], [[190, 250], [190, 175]], [[273, 220], [315, 220], [315, 175]], [[40, 220], [40, 250], [260, 250], [260, 233]], [[345, 272], [345, 175]]],
    [[10, 34, "h", "start"], [462, 34, "h'", "end"], [360, 276, "x", "start"], [256, 92, "1 − z", "start"]]],
  rnn: ["Plain network", ["h' = tanh(W x + U h + b)"], [[240, 100, "W x + U h + b", 1], [360, 100, "tanh"]], [[[20, 100], [174, 100]], [[240, 200], [240, 115]], [[306, 100], [345, 100]], [[375, 100], [470, 100]]], [[10, 94, "h", "start"], [462, 94, "h'", "end"], [240, 214, "x"]]],
  residual: ["Residual", ["x' = x + f(x)"], [[240, 140, "f", 1], [360, 60, "+"]], [[[20, 60], [347, 60]], [[120, 60], [120, 140], [225, 140]], [[255, 140], [360, 140], [360, 73]], [[373, 60], [470, 60]]], [[10, 54, "x", "start"], [462, 54, "x'", "end"]]],
};

// A cell; `sizes` says how large this run's are.
export function cellDiagram(kind, sizes = "") {
  const [name, equations, nodes, arrows, labels] = CELLS[kind];
  const frame = figure({
    name: `cell-${kind}`, title: `${name} cell`,
    drawing: () => { const wide = Math.min(480, room()); return svg("svg", { viewBox: "0 0 480 284", width: wide, height: (wide * 284) / 480, role: "img", "aria-label": `${name} cell` }, arrows.map((points) => arrow(points)), nodes.map((one) => node(...one)), labels.map((one) => label(...one))); },
    rows: () => [["equation"], equations.map((one) => [one])], data: () => ({ kind, equations, sizes }),
  });
  return el("section", {}, el("h3", {}, name), el("div", { class: "sum" }, equations.map((one) => el("div", {}, one))), sizes ? el("p", { class: "small soft" }, sizes) : null, frame);
}

// The parts of the model, from below upwards: a column for each part that has parts of its own.
function columns(rows) {
  const childrenOf = (name) => rows.filter((row) => row.name.startsWith(`${name}.`) && !row.name.slice(name.length + 1).includes("."));
  const box = (row, times = 1) => ({ title: times > 1 ? `${times} × ${row.kind}` : row.kind, name: row.name.split(".").at(-1), shape: row.shape, parameters: times * row.parameters, parts: childrenOf(row.name).filter((one) => one.parameters).map((one) => one.kind) });
  const found = [];
  for (const top of rows.filter((row) => !row.name.includes("."))) {
    const boxes = [];
    for (const child of childrenOf(top.name)) {
      const inner = child.kind === "ModuleList" ? childrenOf(child.name) : [];
      if (!inner.length) { if (child.shape || child.parameters) boxes.push(box(child)); continue; }
      const groups = Map.groupBy ? Map.groupBy(inner, (one) => `${one.kind} ${one.parameters}`) : new Map(inner.map((one) => [one.name, [one]]));
      for (const group of groups.values()) boxes.push(box(group[0], group.length));
    }
    if (boxes.length) found.push({ name: top.name, boxes });
    else if (found.length) found.at(-1).boxes.push(box(top));
    else found.push({ name: top.name, boxes: [box(top)] });
  }
  return found;
}

export function architecture(rows) {
  const parts = columns(rows);
  const most = Math.max(...parts.map((part) => part.boxes.length));
  return figure({
    name: "architecture", title: "the model with its sizes",
    drawing: () => {
      const gap = 46;
      const wide = Math.max(210, Math.min(330, (room() - gap * (parts.length - 1)) / parts.length));
      const step = 2 * DOWN + 40;
      const [width, height] = [parts.length * (wide + gap) - gap, most * step + 46];
      const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": "the parts of the model" });
      parts.forEach((part, column) => {
        const x = column * (wide + gap);
        part.boxes.forEach((box, place) => {
          const y = height - 40 - place * step - 2 * DOWN;
          if (place) out.append(arrow([[x + wide / 2, y + step - 2], [x + wide / 2, y + 2 * DOWN + 16]]));
          out.append(svg("rect", { x: x + 1, y, width: wide - 2, height: 2 * DOWN + 14, rx: 9, fill: "var(--accent-soft)", stroke: "var(--accent)" }, svg("title", {}, box.parts.join(" → "))),
            label(x + wide / 2, y + 18, shortened(box.title, 34)), svg("text", { x: x + wide / 2, y: y + 36, "text-anchor": "middle", class: "axis" }, [/^\d+$/.test(box.name) ? "" : shortened(box.name, 16), box.shape, box.parameters ? box.parameters.toLocaleString("en") : "shared or none"].filter(Boolean).join(" · ")),
            box.parts.length ? svg("text", { x: x + wide / 2, y: y + 54, "text-anchor": "middle", class: "axis" }, shortened(box.parts.join(" → "), Math.floor(wide / 7))) : "");
        });
        out.append(svg("text", { x: x + wide / 2, y: height - 12, "text-anchor": "middle", "font-weight": 700 }, part.name));
        const next = parts[column + 1];
        if (next && part.name.includes("encoder")) {
          const top = height - 40 - (part.boxes.length - 1) * step - DOWN;
          const to = height - 40 - Math.min(1, next.boxes.length - 1) * step - DOWN;
          out.append(arrow([[x + wide, top], [x + wide + gap / 2, top], [x + wide + gap / 2, to], [x + wide + gap, to]], true));
        }
      });
      return out;
    },
    rows: () => [["part", "box", "output", "parameters"], parts.flatMap((part) => part.boxes.map((box) => [part.name, box.title, box.shape, box.parameters.toLocaleString("en")])), { numeric: [3] }],
    data: () => parts,
  });
}
