// Fields and grids to type numbers into. A mistake is told at its field, and the last output stays until it is mended.

import { el, put, redraw } from "./core.js";
import { parsed, ToyError } from "./toy-numbers.js";

export const short = (value) => String(Number(value.toPrecision(4)));
const STEP = 0.05;

// `compute(settings)` → numbers, `draw(numbers, settings)` → nodes; `read()` gives the settings, `command(settings)` the words of the command line.
export function makeForm({ read, compute, draw, command }) {
  const fields = new Map(); // name → its box, its line for mistakes
  const box = el("form", { class: "toy-form", onsubmit: (event) => event.preventDefault() });
  const out = el("div", { class: "toy-output" });
  const head = el("div", { class: "toy-head", "aria-live": "polite" }); // the result in short, in sight while a reader types
  const line = el("code", { class: "toy-command", tabindex: "0", role: "region", "aria-label": "command" });
  let turn = 0;

  function complain(message) {
    const place = message && (fields.has(/^\w+/.exec(message)?.[0]) ? /^\w+/.exec(message)[0] : fields.keys().next().value);
    for (const [name, field] of fields) {
      const wrong = name === place;
      field.problem.textContent = wrong ? message : "";
      for (const input of field.node.querySelectorAll("input, textarea")) {
        if (wrong) input.setAttribute("aria-invalid", "true");
        else input.removeAttribute("aria-invalid");
      }
    }
    for (const one of [out, head]) one.classList.toggle("stale", Boolean(message));
  }

  async function update() {
    turn += 1;
    const own = turn;
    try {
      const settings = read();
      const found = await compute(settings);
      if (own !== turn) return; // typed on meanwhile
      complain(null);
      redraw(out, () => {
        const [first, ...others] = draw(found, settings);
        put(head, first);
        return others;
      });
      line.textContent = command(settings);
    } catch (error) {
      if (!(error instanceof ToyError)) throw error;
      if (own === turn) complain(error.message);
    }
  }

  function add(name, label, wide, ...inside) {
    const problem = el("p", { class: "bad small", role: "alert" });
    const node = el("fieldset", { class: wide ? "toy-field wide" : "toy-field" }, el("legend", {}, label), ...inside, problem);
    fields.set(name, { node, problem });
    box.append(node);
  }

  // A line of text; `change` is called before the output moves.
  function text(name, label, value, { change = null, wide = false } = {}) {
    const input = el("input", { type: "text", class: "field", value, "aria-label": label, autocomplete: "off", spellcheck: "false", dir: "auto" });
    input.addEventListener("input", () => { change?.(); update(); });
    add(name, label, wide, input);
    return () => input.value;
  }

  function count(name, label, value, low, high, step = 1) {
    const input = el("input", { type: "range", min: low, max: high, step, value, "aria-label": label });
    const output = el("output", {}, short(Number(value)));
    input.addEventListener("input", () => { output.textContent = short(Number(input.value)); update(); });
    add(name, label, false, el("span", { class: "toy-range" }, input, output));
    return () => Number(input.value);
  }

  function choice(name, label, options, value) {
    const input = el("select", { "aria-label": label, onchange: update }, options.map(([key, shown]) => el("option", { value: key, selected: String(key) === String(value) }, shown)));
    add(name, label, false, input);
    return () => input.value;
  }

  // A table of numbers: `side()` and `head()` name its rows and columns. With `shares` every row keeps the sum 1: the
  // other numbers of a row give way in proportion. `resize` adds buttons for one more or one less row.
  function grid(name, label, { side, head, values, shares = false, resize = null }) {
    let cells = values.map((row) => row.map((value) => short(value)));
    const holder = el("div", { class: "table-wrap tall toy-grid", role: "region", tabindex: "-1", "aria-label": label });
    const slider = shares && el("input", { type: "range", min: 0, max: 1, step: 0.01, "aria-label": `${label}: the chosen number` });
    let chosen = [0, 0];
    let inputs = [];

    function changed(row, column, value) {
      cells[row][column] = value;
      if (shares) spread(row, column);
      choose(row, column);
      update();
    }

    function spread(row, column) {
      const numbers = cells[row].map((cell) => { try { return parsed(cell, name); } catch { return NaN; } });
      const rest = 1 - numbers[column];
      const others = numbers.reduce((sum, one, index) => (index === column ? sum : sum + one), 0);
      if (!(rest >= 0 && rest <= 1 && others >= 0) || numbers.length < 2) return;
      numbers.forEach((one, index) => {
        if (index === column) return;
        cells[row][index] = short(others > 0 ? (one / others) * rest : rest / (numbers.length - 1));
        inputs[row][index].value = cells[row][index];
      });
    }

    function choose(row, column) {
      chosen = [row, column];
      if (slider) slider.value = Number(cells[row]?.[column]) || 0;
    }

    function draw() {
      const [rows, columns] = [side(), head()];
      cells = rows.map((_, row) => {
        const known = (cells[row] ?? []).slice(0, columns.length);
        const line = columns.map((_name, column) => known[column] ?? (shares && !cells[row] ? short(1 / columns.length) : "0"));
        if (!shares || line.length === cells[row]?.length) return line;
        const numbers = line.map(Number);
        const sum = numbers.reduce((left, right) => left + right, 0);
        return numbers.map((value) => short(sum > 0 ? value / sum : 1 / line.length));
      });
      inputs = cells.map((line, row) => line.map((value, column) => {
        const input = el("input", { type: "text", class: "field cell", inputmode: "decimal", value, autocomplete: "off", "aria-label": `${label}: ${rows[row]}, ${columns[column]}` });
        input.addEventListener("input", () => changed(row, column, input.value));
        input.addEventListener("focus", () => choose(row, column));
        input.addEventListener("keydown", (event) => {
          const by = { ArrowUp: STEP, ArrowDown: -STEP }[event.key];
          if (!by || Number.isNaN(Number(input.value))) return;
          event.preventDefault();
          const next = Number(input.value) + (shares ? by : Math.sign(by) * (event.shiftKey ? 10 : 1));
          input.value = short(shares ? Math.min(1, Math.max(0, next)) : next);
          changed(row, column, input.value);
        });
        return input;
      }));
      put(holder, el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, ""), columns.map((one) => el("th", { scope: "col" }, one)))),
        el("tbody", {}, inputs.map((line, row) => el("tr", {}, el("th", { scope: "row" }, rows[row]), line.map((input) => el("td", {}, input)))))));
      choose(Math.min(chosen[0], cells.length - 1), Math.min(chosen[1], (cells[0]?.length ?? 1) - 1));
    }

    slider && slider.addEventListener("input", () => {
      const [row, column] = chosen;
      inputs[row][column].value = slider.value;
      changed(row, column, slider.value);
    });
    const more = resize && el("span", { class: "toy-resize" }, [["−", "fewer", -1], ["+", "more", 1]].map(([sign, word, by]) =>
      el("button", { type: "button", "aria-label": `${word} ${resize.name}`, onclick: () => resize.change(by) }, `${sign} ${resize.name}`)));
    add(name, label, true, ...[holder, slider, more].filter(Boolean));
    draw();
    return { draw, read: () => cells.map((line, row) => line.map((cell, column) => parsed(cell, `${name}: ${side()[row]}, ${head()[column]}`))) };
  }

  const about = el("p", { class: "small soft" }, "The same on a command line, with every step in numbers:");
  return { text, count, choice, grid, update, nodes: () => [head, el("div", { class: "columns toy" }, box, out), el("div", { class: "toy-foot" }, about, line)] };
}

// The words of a command line that works the same numbers out; what the textbook has is left out.
export function commandOf(name, settings, usual) {
  const word = (value) => {
    if (typeof value === "number") return String(value);
    if (Array.isArray(value)) {
      if (value.length > 1 || Array.isArray(value[0]) || (value.length && typeof value[0] === "number")) {
        const inner = value.map(word);
        if (!inner.some((one) => /["[]/.test(one)) && !(typeof value[0] === "string" && value.some((one) => /[,;]/.test(one)))) return inner.join(Array.isArray(value[0]) ? ";" : ",");
      }
      return JSON.stringify(value);
    }
    return /^[A-Za-z][\w .-]*$/.test(value) && !/^(none|true|false|inf|nan)$/.test(value) ? value : JSON.stringify(value);
  };
  const quoted = (text) => (/^[\w.,=/:-]*$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const changed = Object.entries(settings).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(usual[key]));
  return ["dragoman worked", name, ...changed.map(([key, value]) => quoted(`${key}=${Array.isArray(value) && value.every((one) => typeof one === "string") ? listOf(value) : word(value)}`))].join(" ");
}

// A list of texts, between commas where no text has one.
function listOf(values) {
  return values.length > 1 && !values.some((one) => /[,"]/.test(one)) ? values.join(",") : JSON.stringify(values);
}
