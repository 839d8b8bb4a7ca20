// Diagrams: the cell of a recurrent network, a residual block, and the whole model with its own sizes.

import { el, figure, room, shortened, svg } from "./core.js";
import { formula } from "./formula.js";

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

const SIGNS = { tanh: "tanh", relu: "ReLU", sigmoid: "σ", gelu: "GELU", silu: "SiLU" };

// Nodes [x, y, text, is a layer with weights], arrows, dashed arrows and labels of each kind of cell, from its settings.
function lstm({ activation = "tanh", output_activation: squash = "tanh" }, { coupled = false, joined = true, out = [[[410, 40], [410, 87]], [[410, 113], [410, 147]]] } = {}) {
  const gates = [[100, "f: σ"], ...(coupled ? [] : [[180, "i: σ"]]), [260, `g: ${SIGNS[activation]}`], [345, "o: σ"]];
  return {
    height: 284,
    nodes: [[100, 40, "⊙"], [260, 40, "+"], [260, 100, "⊙"], [410, joined ? 100 : 120, SIGNS[squash]], [410, 160, "⊙"], ...gates.map(([x, text]) => [x, 160, text, 1]), ...(coupled ? [[180, 160, "1 −"]] : [])],
    arrows: [[[20, 40], [87, 40]], [[113, 40], [247, 40]], [[273, 40], [470, 40]], [[100, 145], [100, 53]], [[180, coupled ? 147 : 145], [180, 100], [247, 100]], [[260, 145], [260, 113]], [[260, 87], [260, 53]], [[368, 160], [397, 160]], [[423, 160], [470, 160]],
      ...(coupled ? [[[124, 160], [164, 160]]] : []), ...gates.map(([x]) => [[x, 220], [x, 175]]), ...out],
    lines: joined ? [[[20, 220], [345, 220]], [[60, 258], [60, 220]]] : [],
    labels: [[10, 34, "c", "start"], [470, 34, "c'", "end"], [470, 154, "h'", "end"], ...(joined ? [[10, 214, "h", "start"], [60, 274, "x"]] : [])],
  };
}

const CELLS = {
  rnn: ({ activation }) => ({ height: 224, nodes: [[230, 100, "W x + U h + b", 1], [370, 100, SIGNS[activation]]], arrows: [[[20, 100], [165, 100]], [[230, 200], [230, 115]], [[295, 100], [350, 100]], [[390, 100], [470, 100]]], labels: [[10, 94, "h", "start"], [470, 94, "h'", "end"], [230, 216, "x"]] }),
  lstm: (settings) => lstm(settings),
  "coupled-lstm": (settings) => lstm(settings, { coupled: true }),
  "peephole-lstm": (settings) => {
    const base = lstm(settings);
    const weight = settings.peepholes === "full" ? "P" : "p ⊙";
    return { ...base, dashed: [[[40, 40], [40, 125], [170, 125], [170, 145]], [[90, 125], [90, 145]], [[320, 40], [320, 125], [335, 125], [335, 145]]], labels: [...base.labels, [46, 118, `${weight} c`, "start"], [314, 118, `${weight} c'`, "end"]] };
  },
  "layer-norm-lstm": (settings) => {
    const base = lstm(settings, { joined: false, out: [[[410, 40], [410, 63]], [[410, 93], [410, 107]], [[410, 133], [410, 147]]] });
    return { height: 376, nodes: [...base.nodes, [410, 78, "LN", 1], [60, 262, "+"], [60, 312, "LN(U h)", 1], [180, 312, "LN(W x)", 1]],
      arrows: [...base.arrows, [[60, 297], [60, 275]], [[180, 297], [180, 262], [73, 262]], [[60, 352], [60, 327]], [[180, 352], [180, 327]]], lines: [[[60, 249], [60, 220], [345, 220]]], labels: [...base.labels, [60, 368, "h"], [180, 368, "x"]] };
  },
  "mogrifier-lstm": (settings) => {
    const base = lstm(settings, { joined: false, out: [[[410, 40], [410, 87]], [[410, 113], [410, 147]]] });
    base.nodes[3][1] = 100;
    const shown = Math.min(settings.rounds, 5);
    const [nodes, arrows, start] = [[], [], { h: 20, x: 20 }];
    for (let round = 0; round < shown; round += 1) {
      const [x, gated, line] = [70 + 62 * round, round % 2 ? "h" : "x", round % 2 ? 262 : 342];
      nodes.push([x, line, "⊙"], [x, 302, "2σ", 1]);
      arrows.push([[start[gated], line], [x - 13, line]], ...(round % 2 ? [[[x, 342], [x, 317]], [[x, 287], [x, 275]]] : [[[x, 262], [x, 287]], [[x, 317], [x, 329]]]));
      start[gated] = x + 13;
    }
    return { height: 366, nodes: [...base.nodes, ...nodes], arrows: [...base.arrows, ...arrows],
      lines: [[[start.h, 262], [440, 262]], [[start.x, 342], [440, 342], [440, 220], [100, 220]]],
      labels: [...base.labels, [10, 256, "h", "start"], [10, 336, "x", "start"], [430, 306, settings.rounds > shown ? `… ${settings.rounds} rounds` : `${settings.rounds} rounds`, "end"]] };
  },
  gru: ({ activation, reset }) => ({
    height: 316, nodes: [[190, 40, "⊙"], [400, 40, "+"], [330, 100, "⊙"], [90, 160, "r: σ", 1], [190, 160, "z: σ", 1], [330, 160, `n: ${SIGNS[activation]}`, 1], [260, 220, "⊙"], ...(reset === "after" ? [[260, 262, "U h", 1]] : [])],
    arrows: [[[20, 40], [177, 40]], [[203, 40], [387, 40]], [[413, 40], [470, 40]], [[190, 145], [190, 53]], [[214, 160], [245, 160], [245, 100], [317, 100]], [[330, 145], [330, 113]], [[343, 100], [400, 100], [400, 53]], [[114, 160], [130, 160], [130, 220], [247, 220]],
      [[80, 262], [80, 175]], [[180, 262], [180, 175]], ...(reset === "after" ? [[[180, 262], [240, 262]], [[260, 247], [260, 233]]] : [[[180, 262], [260, 262], [260, 233]]]), [[273, 220], [320, 220], [320, 175]], [[100, 302], [100, 175]], [[200, 302], [200, 175]], [[345, 302], [345, 175]]],
    lines: [[[40, 40], [40, 262], [180, 262]], [[20, 302], [345, 302]]],
    labels: [[10, 34, "h", "start"], [470, 34, "h'", "end"], [10, 296, "x", "start"], [251, 92, "1 − z", "start"], ...(reset === "before" ? [[266, 246, "U (r ⊙ h)", "start"]] : [])],
  }),
  residual: () => ({ height: 180, nodes: [[240, 140, "f", 1], [360, 60, "+"]], arrows: [[[20, 60], [347, 60]], [[120, 60], [120, 140], [225, 140]], [[255, 140], [360, 140], [360, 73]], [[373, 60], [470, 60]]], labels: [[10, 54, "x", "start"], [470, 54, "x'", "end"]] }),
};

function picture(name, { height, nodes, arrows, lines = [], dashed = [], labels }) {
  const wide = Math.max(420, Math.min(480, room())); // a narrower one could not be read; the frame scrolls
  const line = (points) => svg("path", { d: `M${points.map((point) => point.join(" ")).join("L")}`, fill: "none", stroke: "var(--soft)", "stroke-width": 1.6 });
  return svg("svg", { viewBox: `0 0 480 ${height}`, width: wide, height: (wide * height) / 480, role: "img", "aria-label": name },
    lines.map(line), arrows.map((points) => arrow(points)), dashed.map((points) => arrow(points, true)), nodes.map((one) => node(...one)), labels.map((one) => label(...one)));
}

export function cellParts({ kind, settings }) {
  return CELLS[kind]?.(settings) ?? null;
}

// A cell from its settings; nothing, if it is a kind without a drawing.
export function cellDiagram({ kind, title, settings, text }) {
  const parts = cellParts({ kind, settings });
  return parts && figure({ name: `cell-${kind}`, title: `${title} cell`, drawing: () => picture(`${title} cell`, parts), rows: () => [["equation"], text.map((one) => [one])], data: () => ({ kind, settings, equations: text }) });
}

// A cell with its equations; `sizes` says how large this run's are.
export function cellSection(cell, sizes) {
  return el("section", {}, el("h3", {}, cell.title), cell.formulas.map((tree, place) => formula(tree, cell.text[place])), sizes ? el("p", { class: "small soft" }, sizes) : null, cellDiagram(cell));
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
