// Toys to type into: attention, Viterbi, beam search, CTC, edit distance and BLEU, of numbers that a reader changes.

import { el, figure, number, onState, readState, setState, shown, table, whole } from "./core.js";
import { drawBeam } from "./beam.js";
import { bars } from "./chart.js";
import { drawCtc } from "./ctc.js";
import { heatmap } from "./heat.js";
import { showViews } from "./inspect.js";
import { drawTables } from "./tables.js";
import { commandOf, makeForm, short } from "./toy-form.js";
import { attention, beam, bleu, ctcFrames, distinct, editDistance, END, names, ToyError, viterbi } from "./toy-numbers.js";

const sum = (...lines) => el("div", { class: "readout sum" }, lines.filter(Boolean).join("\n"));
const numbered = (letter, count) => Array.from({ length: count }, (_, index) => `${letter}${index + 1}`);
const tidy = (value) => short(value).replace("-", "−");
const figures = (values) => values.map(tidy).join(", ");

function table_(name, about, scores, rows, columns, path, { back = null, summed = false, substitution = 1 } = {}) {
  return drawTables({ data: { tables: [{ name, about, scores, rows, columns, path, back, summed, substitution }] } });
}

function drawAttention(view) {
  const { settings, usual } = view;
  const size = { queries: settings.queries.length, keys: settings.keys.length, width: settings.queries[0].length };
  let grids = {};
  const resized = (name, most) => ({ name, change: (by) => {
    size[name] = Math.min(Math.max(size[name] + by, 1), most);
    for (const one of Object.values(grids)) one.draw();
    form.update();
  } });
  const form = makeForm({
    read: () => ({ queries: grids.queries.read(), keys: grids.keys.read(), values: grids.values.read(), depth: depth() }),
    compute: attention,
    command: (found) => commandOf("attention", found, usual),
    draw: (found) => {
      const [rows, columns] = [numbered("q", found.weights.length), numbered("k", found.weights[0].length)];
      const marked = () => [whole(readState().row, 0, 0, rows.length - 1), whole(readState().column, 0, 0, columns.length - 1)];
      const says = el("div", { class: "readout sum" });
      const frame = figure({
        name: "attention", title: "attention weights",
        drawing: () => heatmap({ rows: rows.length, columns: columns.length, at: (row, column) => found.weights[row][column], rowLabels: rows, columnLabels: columns, top: 1, marked: marked(), label: "attention weights", cell: 46, write: (row, column) => found.weights[row][column].toFixed(2),
          rowTitle: "query", columnTitle: "key", pick: (row, column) => setState({ row, column }) }),
        rows: () => [["", ...columns], found.weights.map((row, index) => [rows[index], ...row]), { numeric: columns.map((_, index) => index + 1) }],
        data: () => found,
      });
      const shares = figure({ name: "weights", title: "weights of one query", data: () => found,
        drawing: () => bars({ rows: columns.map((label, column) => ({ label, value: found.weights[marked()[0]][column], text: number(found.weights[marked()[0]][column], 4), marked: column === marked()[1] })), low: 0, high: 1 }) });
      const say = () => {
        const [row] = marked();
        frame.draw();
        shares.draw();
        says.textContent = [`query ${rows[row]}`, `q·k           ${figures(found.products[row])}`, `q·k / √d      ${figures(found.scaled[row])}`, `softmax       ${figures(found.weights[row])}`, `Σ weight · v  ${figures(found.output[row])}`].join("\n");
      };
      onState(say);
      say();
      return [says, frame, shares];
    },
  });
  const widths = () => numbered("", size.width);
  grids = { queries: form.grid("queries", "queries", { side: () => numbered("q", size.queries), head: widths, values: settings.queries, resize: resized("queries", 8) }) };
  grids.keys = form.grid("keys", "keys", { side: () => numbered("k", size.keys), head: widths, values: settings.keys, resize: resized("keys", 12) });
  grids.values = form.grid("values", "values", { side: () => numbered("v", size.keys), head: () => numbered("", settings.values[0].length), values: settings.values });
  const depthText = form.text("depth", "d, under the root", String(settings.depth));
  const depth = () => { const value = Number(depthText()); if (!(value > 0 && value <= 1e6)) throw new ToyError(`depth: found “${depthText().trim()}”, expected a number above 0`); return value; };
  form.update();
  return form.nodes();
}

function drawViterbi(view) {
  const { settings, usual } = view;
  const safely = (read, kept) => () => { try { return read(); } catch { return kept; } }; // grids stay while a name is being typed
  const grids = [];
  const changed = () => grids.forEach((one) => one.draw());
  const form = makeForm({
    read: () => ({ states: readStates(), symbols: readSymbols(), start: start.read()[0], transitions: transitions.read(), emissions: emissions.read(), seen: names(seen(), "seen", 40) }),
    compute: viterbi,
    command: (found) => commandOf("viterbi", found, usual),
    draw: (found, asked) => [
      sum(`best path  ${found.path.join(" → ")}`, `           p = ${tidy(found.probability)}`, `p(seen)    ${tidy(found.likelihood)}, the sum over all ${(asked.states.length ** asked.seen.length).toLocaleString("en")} paths`),
      ...table_("Viterbi", "probability of the best path that ends in this state", found.table, asked.states, asked.seen, found.cells, { back: found.back }),
    ],
  });
  const statesText = form.text("states", "states", settings.states.join(" "), { change: changed });
  const symbolsText = form.text("symbols", "what may be seen", settings.symbols.join(" "), { change: changed });
  const readStates = () => distinct(names(statesText(), "states", 8), "states");
  const readSymbols = () => distinct(names(symbolsText(), "symbols", 12), "symbols");
  const [states, symbols] = [safely(readStates, settings.states), safely(readSymbols, settings.symbols)];
  const seen = form.text("seen", "what was seen, in order", settings.seen.join(" "));
  const start = form.grid("start", "p(first state)", { side: () => ["start"], head: states, values: [settings.start], shares: true });
  const transitions = form.grid("transitions", "p(state | state before)", { side: () => states().map((name) => `after ${name}`), head: states, values: settings.transitions, shares: true });
  const emissions = form.grid("emissions", "p(symbol | state)", { side: states, head: symbols, values: settings.emissions, shares: true });
  grids.push(start, transitions, emissions);
  form.update();
  return form.nodes();
}

function drawBeamToy(view) {
  const { settings, usual } = view;
  const changed = () => next.draw();
  const readTokens = () => distinct(names(tokensText(), "tokens", 6), "tokens");
  const readAfter = () => {
    const rows = ["", ...afterText().split(",").map((words) => words.trim().split(/\s+/).join(" ")).filter(Boolean)];
    const strange = rows.flatMap((words) => words.split(" ")).find((word) => word && !readTokens().includes(word));
    if (strange) throw new ToyError(`after: found “${strange}”, expected words of ${readTokens().join(", ")}`);
    if (rows.length > 12) throw new ToyError(`after: found ${rows.length - 1} rows, expected at most 11`);
    return distinct(rows, "after");
  };
  const safely = (read, first) => { let kept = first; return () => { try { kept = read(); } catch { /* told by read */ } return kept; }; };
  const form = makeForm({
    read: () => ({ tokens: readTokens(), after: readAfter(), next: next.read(), width: width(), length: length(), length_penalty: penalty() }),
    compute: beam,
    command: (found) => commandOf("beam", found, usual),
    draw: (found, asked) => [
      sum(...[["greedy", found.greedy], [`beam of ${asked.width}`, found.beam]].map(([name, one]) => `${name.padEnd(11)}${one.text}   p = ${tidy(one.probability)}, score ${number(one.score, 3)}`),
        found.beam.score > found.greedy.score + 1e-9 ? "greedy search misses the better output" : null),
      ...drawBeam({ data: { nodes: found.nodes, continuations: {}, beam: asked.width } }),
    ],
  });
  const tokensText = form.text("tokens", "tokens", settings.tokens.join(" "), { change: changed });
  const afterText = form.text("after", "rows: last words of the output so far, between commas", settings.after.filter(Boolean).join(", "), { change: changed });
  const order = settings.after.map((words, index) => [words, settings.next[index]]).sort(([left], [right]) => (left === "" ? -1 : right === "" ? 1 : 0));
  const tokens = safely(readTokens, settings.tokens);
  const next = form.grid("next", "p(next token | last words); the longest words that fit count", { side: safely(() => readAfter().map((words) => (words ? `after ${words}` : "else")), order.map(([words]) => words || "else")),
    head: () => [...tokens(), END], values: order.map(([, row]) => row), shares: true });
  const width = form.count("width", "beam width; 1 is greedy search", settings.width, 1, 6);
  const length = form.count("length", "most tokens, the end included", settings.length, 1, 6);
  const penalty = form.count("length_penalty", "length penalty α: Σ log p is divided by length^α", settings.length_penalty, 0, 2, 0.1);
  form.update();
  return form.nodes();
}

// The drawing of CTC of what `ctcFrames` finds.
function ctcDrawing(found, asked) {
  const fits = found.probability > 0;
  return drawCtc({ data: {
    path: [...found.best_path], merged: found.merged, text: [...found.best_text], blank: asked.symbols[0],
    probabilities: asked.frames.map((row) => Math.max(...row)), target: { tokens: [...asked.text, ""] },
    sums: fits ? { log_probability: Math.log(found.probability), best_path: Math.log(found.best), paths: found.paths } : null,
  } });
}

function drawCtcPath(view) {
  const { settings, usual } = view;
  const form = makeForm({
    read: () => ({ path: path(), blank: blank() }),
    compute: ({ path: given, blank: dropped }) => {
      const letters = [...given];
      if (!letters.length || letters.length > 200) throw new ToyError(`path: found ${letters.length} frames, expected 1 to 200`);
      if ([...dropped].length !== 1) throw new ToyError(`blank: found “${dropped}”, expected one symbol`);
      const symbols = [dropped, ...new Set(letters.filter((one) => one !== dropped))];
      const frames = letters.map((one) => symbols.map((symbol) => (symbol === one ? 1 : 0)));
      const text = ctcFrames({ symbols, frames, text: "" }).best_text;
      return { ...ctcFrames({ symbols, frames, text }), frames, symbols, text };
    },
    command: (found) => commandOf("ctc", found, usual),
    draw: (found) => [
      sum(`path    ${found.best_path}   ${found.frames.length} frames`, `merged  ${found.merged.map((one) => one.piece).join("")}`, `text    ${shown(found.text)}`, `paths   ${BigInt(found.paths).toLocaleString("en")} paths of ${found.frames.length} frames have this text`),
      ctcDrawing(found, found)[1],
    ],
  });
  const path = form.text("path", "path: one symbol for every frame", settings.path, { wide: true });
  const blank = form.text("blank", "blank", settings.blank);
  form.update();
  return form.nodes();
}

function drawCtcFrames(view) {
  const { settings, usual } = view;
  let count = settings.frames.length;
  const letters = () => [...symbolsText()];
  const columns = () => (letters().length ? letters().slice(0, 12) : ["-"]);
  const form = makeForm({
    read: () => {
      if (letters().length < 1 || letters().length > 12) throw new ToyError(`symbols: found ${letters().length} symbols, expected 1 to 12, the blank first`);
      return { symbols: distinct(letters(), "symbols"), frames: frames.read(), text: text() };
    },
    compute: ctcFrames,
    command: (found) => commandOf("ctc-frames", { ...found, symbols: found.symbols.join("") }, usual),
    draw: (found, asked) => {
      const logs = found.forward.map((row) => row.map(Math.log));
      return [
        sum(`best path   ${found.best_path} → ${shown(found.best_text)}, p = ${tidy(found.best_path_probability)}`, `p(${shown(asked.text)})${" ".repeat(Math.max(1, 9 - [...asked.text].length))}${tidy(found.probability)}, the sum of ${BigInt(found.paths).toLocaleString("en")} paths`),
        ...ctcDrawing(found, asked).slice(0, 2),
        ...table_("CTC forward variables", "log of the summed probability of all paths up to here; the best single path is outlined", logs, found.states.map((one, state) => (state % 2 ? one : "blank")), numbered("t", count), found.cells.length ? found.cells : [[0, 0]], { summed: true }),
      ];
    },
  });
  const symbolsText = form.text("symbols", "symbols, the blank first", settings.symbols, { change: () => frames.draw() });
  const text = form.text("text", "text to sum the paths of", settings.text);
  const frames = form.grid("frames", "p(symbol) of every frame", { side: () => numbered("t", count), head: columns, values: settings.frames, shares: true,
    resize: { name: "frames", change: (by) => { count = Math.min(Math.max(count + by, 1), 30); frames.draw(); form.update(); } } });
  form.update();
  return form.nodes();
}

function drawEdits(view) {
  const { settings, usual } = view;
  const form = makeForm({
    read: () => ({ left: left(), right: right(), substitution: Number(cost()), units: units() }),
    compute: editDistance,
    command: (found) => commandOf("edit-distance", found, usual),
    draw: (found, asked) => [
      sum(`distance ${found.distance}: ${found.counts.substitute} substituted, ${found.counts.delete} deleted, ${found.counts.insert} inserted, ${found.counts.equal} equal`),
      ...table_("Edit distance", "cost of turning the beginning of the left text (down) into that of the right (across)", found.table, ["", ...found.from], ["", ...found.to], found.cells, { substitution: asked.substitution }),
    ],
  });
  const left = form.text("left", "text", settings.left);
  const right = form.text("right", "becomes", settings.right);
  const cost = form.choice("substitution", "cost of a substitution", [[1, "1 (Levenshtein)"], [2, "2"]], settings.substitution);
  const units = form.choice("units", "units", [["characters", "characters"], ["words", "words"]], settings.units);
  form.update();
  return form.nodes();
}

function drawBleu(view) {
  const { settings, usual } = view;
  const several = (text) => text.split("|").map((one) => one.trim()).filter(Boolean);
  const form = makeForm({
    read: () => ({ hypothesis: hypothesis(), references: several(references()) }),
    compute: bleu,
    command: (found) => commandOf("bleu", { hypothesis: found.hypothesis, reference: found.references.length === 1 ? found.references[0] : found.references }, usual),
    draw: (found) => {
      const shares = found.precisions.map(tidy);
      const rows = found.matched.map((flags, order) => [`${order + 1}-grams`, `${found.matches[order]} of ${found.totals[order]}`, shares[order],
        el("span", {}, flags.map((hit, first) => [el(hit ? "ins" : "del", {}, found.tokens.slice(first, first + order + 1).join(" ")), " · "]))]);
      return [
        sum(`brevity penalty  ${found.output_length >= found.reference_length ? "1, since the output is not shorter" : `e^(1 − ${found.reference_length}/${found.output_length}) = ${tidy(found.brevity_penalty)}`}`,
          `BLEU             100 × ${tidy(found.brevity_penalty)} × (${shares.join(" × ")})^¼ = ${number(found.score, 2)}`),
        figure({ name: "bleu", title: "n-gram precisions", data: () => found, drawing: () => bars({ rows: found.precisions.map((value, order) => ({ label: `${order + 1}-grams`, value, text: shares[order] })), low: 0, high: 1 }) }),
        table(["", "match", "precision", "n-grams of the output; green ones match"], rows),
      ];
    },
  });
  const hypothesis = form.text("hypothesis", "output", settings.hypothesis, { wide: true });
  const references = form.text("reference", "reference; several with | between", [settings.reference].flat().join(" | "), { wide: true });
  form.update();
  return form.nodes();
}

const DRAWERS = { attention: drawAttention, viterbi: drawViterbi, beam: drawBeamToy, ctc: drawCtcPath, "ctc-frames": drawCtcFrames, "edit-distance": drawEdits, bleu: drawBleu };

export function showToys(data, root) {
  const header = [el("h1", {}, data.title), el("p", { class: "soft" }, "Type your own numbers: every output moves at once. Arrow keys up and down change a number. Nothing leaves this page.")];
  showViews({ title: data.title, views: data.toys, first: data.first, notes: [] }, root, DRAWERS, header);
}
