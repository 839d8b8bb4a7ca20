// Each part of a model as formulas, as plain PyTorch, and in the numbers of the run, line by line.

import { download, el, number, onState, put, readState, select, setState, shown, table, tensor, unpacked, whole } from "./core.js";
import { cellDiagram } from "./diagrams.js";
import { formula } from "./formula.js";

const times = (shape) => (shape.length ? shape.join("×") : "one number");

export function drawEquations(view, data) {
  const { parts, left_out: leftOut } = view.data;
  const cells = data.views.find((one) => one.kind === "layers")?.data.cells ?? [];
  const index = () => whole(readState().part, 0, 0, parts.length - 1);
  const controls = el("div", { class: "controls" });
  const body = el("div", {});
  const numbers = el("div", { class: "beside", role: "list", "aria-label": "formulas, code and numbers" });
  const places = new Map(); // by name, where the numbers of a value stand
  let drawn = null;

  function vector(row, shape) {
    const size = shape.at(-1) ?? 1;
    return shape.length ? `(${Array.from(row, (value) => number(value, 3)).join(", ")}${row.length < size ? ", …" : ""})` : number(row[0], 3);
  }
  function written(part, value, head, step) {
    const found = tensor(value.numbers);
    const [heads, steps, rows] = found.shape;
    const at = [Math.min(head, heads - 1), steps === 1 ? 0 : Math.min(step, steps - 1)];
    const row = (number) => found.row(...at, number);
    if (value.over && part.columns && rows === 1) return table(part.columns.tokens.slice(0, row(0).length).map(shown), [Array.from(row(0), (one) => number(one, 3))], { numeric: part.columns.tokens.map((_, place) => place) });
    const lines = Array.from({ length: rows }, (_, place) => el("div", {}, vector(row(place), value.shape)));
    return [...lines, value.shape.length > 1 && value.shape[0] > rows ? el("div", {}, "⋮") : null];
  }
  function layout(part) {
    const line = (left, middle, names) => el("div", { role: "listitem", class: "line" }, left, middle, el("div", { class: "values" }, names.map((name) => {
      const value = part.values.find((one) => one.name === name);
      places.set(name, el("div", {}));
      return el("div", {}, el("span", { class: "soft" }, `${name} · ${times(value.shape)}`), places.get(name));
    })));
    places.clear();
    put(numbers, el("div", { class: "line head", "aria-hidden": "true" }, ["formula", "plain PyTorch", "numbers of this run"].map((name) => el("strong", { class: "small" }, name))),
      part.inputs.map((one) => line(formula(one.formula, one.name), el("span", { class: "soft small" }, "given"), [one.name])),
      part.code.map((code, place) => line(formula(part.formulas[place], part.text[place]), el("code", {}, code), part.names[place])));
    const weights = part.given.map((one) => `${one.name} ${times(one.shape)}`).join(", ");
    const cell = cells.find((one) => one.name === part.name);
    put(body, el("h3", {}, part.title), el("p", { class: "small soft" }, el("code", {}, part.name), `. ${part.about}`), numbers,
      el("p", { class: "readout" }, `The plain code gave these numbers in float64 when this page was made. They differ from the run's by at most ${part.difference.toExponential(0).replace("-", "−")}.`),
      part.functions.length ? el("p", { class: "controls" }, "Shown on their own: ", part.functions.map((one) => {
        const place = parts.findIndex((other) => other.name === one.part);
        return place < 0 ? `${one.name} (${one.part})` : el("button", { type: "button", onclick: () => setState({ part: place }) }, `${one.name}: ${one.part}`);
      })) : null,
      weights ? el("p", { class: "small soft" }, `Weights and constants: ${weights}.`) : null,
      el("div", { class: "figure-tools" }, el("button", { type: "button", onclick: () => download(`${part.name}.json`, "application/json", JSON.stringify(unpacked(part))) }, "JSON")),
      cell ? cellDiagram(cell) : null);
  }
  function update() {
    const part = parts[index()];
    const heads = Math.max(...part.values.map((value) => tensor(value.numbers).shape[0]));
    const steps = part.rows.tokens.length;
    const [head, step] = [whole(readState().head, 0, 0, heads - 1), whole(readState().step, 0, 0, steps - 1)];
    if (drawn !== part) layout(part);
    drawn = part;
    const held = [...controls.querySelectorAll("select")].indexOf(document.activeElement); // a new control keeps the focus
    put(controls, select("part", parts.map((one, place) => [place, `${one.name}: ${one.title}`]), index(), (value) => setState({ part: value })),
      steps > 1 ? select("step", part.rows.tokens.map((text, place) => [place, `${place + 1} ${shown(text)}`]), step, (value) => setState({ step: value })) : null,
      heads > 1 ? select("head", Array.from({ length: heads }, (_, place) => [place, `head ${place + 1}`]), head, (value) => setState({ head: value })) : null);
    controls.querySelectorAll("select")[held]?.focus();
    for (const value of part.values) if (places.has(value.name)) put(places.get(value.name), written(part, value, head, step));
  }
  onState(update);
  update();
  return [controls, body, leftOut ? el("p", { class: "small soft" }, `${leftOut} more parts are left out, because the model is large; their equations are the same as those of parts shown here.`) : null].filter(Boolean);
}
