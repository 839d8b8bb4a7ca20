// The numbers of the toys: what `dragoman worked` computes, of numbers that a reader types. A mistake is a ToyError.

import { search } from "./search.js";

const TOLERANCE = 1e-3; // by which probabilities on paper may miss 1
export const END = "end";

// Its message begins with the name of the field that it is about.
export class ToyError extends Error {}

function demand(holds, place, found, expected) {
  if (!holds) throw new ToyError(`${place}: found ${found}, expected ${expected}`);
}

// The number of a text; people write 1/3 and −2 as well.
export function parsed(text, place) {
  const match = /^\s*([-−+]?\d*\.?\d+(?:[eE][-+]?\d+)?)\s*(?:\/\s*(\d*\.?\d+)\s*)?$/.exec(text);
  const value = match ? Number(match[1].replace("−", "-")) / (match[2] === undefined ? 1 : Number(match[2])) : NaN;
  demand(Number.isFinite(value) && Math.abs(value) <= 1e6, place, text.trim() === "" ? "nothing" : `“${text.trim()}”`, "a number, such as 0.25 or 1/4");
  return value;
}

export function names(text, place, most = 20) {
  const found = text.split(/[\s,]+/).filter(Boolean);
  demand(found.length > 0 && found.length <= most, place, `${found.length} names`, `1 to ${most}, with spaces or commas between`);
  return found;
}

export function distinct(found, place) {
  const twice = found.find((name, index) => found.indexOf(name) < index);
  demand(twice === undefined, place, `“${twice}” twice`, "different names");
  return found;
}

function probabilities(row, place) {
  const wrong = row.find((value) => value < 0 || value > 1);
  demand(wrong === undefined, place, wrong, "probabilities from 0 to 1");
  const sum = row.reduce((left, right) => left + right, 0);
  demand(Math.abs(sum - 1) <= TOLERANCE, place, `probabilities with the sum ${Number(sum.toPrecision(6))}`, "1");
}

const dot = (left, right) => left.reduce((sum, value, index) => sum + value * right[index], 0);

export function softmax(row) {
  const top = Math.max(...row);
  const powers = row.map((value) => Math.exp(value - top));
  const total = powers.reduce((left, right) => left + right, 0);
  return powers.map((value) => value / total);
}

export function attention({ queries, keys, values, depth }) {
  demand(depth > 0, "depth", depth, "a number above 0");
  const products = queries.map((query) => keys.map((key) => dot(query, key)));
  const scaled = products.map((row) => row.map((value) => value / Math.sqrt(depth)));
  const weights = scaled.map(softmax);
  const output = weights.map((row) => values[0].map((_, column) => dot(row, values.map((value) => value[column]))));
  return { products, scaled, weights, output };
}

export function viterbi({ states, symbols, start, transitions, emissions, seen }) {
  probabilities(start, "start");
  transitions.forEach((row, number) => probabilities(row, `transitions, after ${states[number]}`));
  emissions.forEach((row, number) => probabilities(row, `emissions of ${states[number]}`));
  const row = seen.map((symbol) => {
    demand(symbols.includes(symbol), "seen", `“${symbol}”`, `names of ${symbols.join(", ")}`);
    return symbols.indexOf(symbol);
  });
  let best = start.map((share, state) => share * emissions[state][row[0]]);
  let ahead = best;
  const [columns, back] = [[best], [states.map(() => -1)]];
  for (const symbol of row.slice(1)) {
    const origins = states.map((_, state) => states.reduce((origin, _name, before) => (best[before] * transitions[before][state] > best[origin] * transitions[origin][state] ? before : origin), 0));
    best = origins.map((origin, state) => best[origin] * transitions[origin][state] * emissions[state][symbol]);
    ahead = states.map((_, state) => dot(ahead, transitions.map((moves) => moves[state])) * emissions[state][symbol]);
    columns.push(best);
    back.push(origins);
  }
  const probability = Math.max(...best);
  let state = best.indexOf(probability);
  const path = [];
  for (let step = row.length - 1; step >= 0; step -= 1) {
    path.unshift([state, step]);
    state = back[step][state];
  }
  return { table: states.map((_, number) => columns.map((column) => column[number])), back, cells: path, path: path.map(([number]) => states[number]), probability,
    likelihood: ahead.reduce((left, right) => left + right, 0) };
}

export function ctcFrames({ symbols, frames, text }) {
  distinct(symbols, "symbols");
  frames.forEach((row, number) => probabilities(row, `frame ${number + 1}`));
  const labels = [...text].map((symbol) => {
    demand(symbols.slice(1).includes(symbol), "text", `“${symbol}”`, `symbols of ${symbols.slice(1).join(" ")}`);
    return symbols.indexOf(symbol);
  });
  const best = frames.map((row) => row.indexOf(Math.max(...row)));
  const merged = [];
  best.forEach((label, frame) => {
    if (frame && best[frame - 1] === label) merged[merged.length - 1].last = frame;
    else merged.push({ piece: symbols[label], first: frame, last: frame });
  });
  const states = [0, ...labels.flatMap((label) => [label, 0])];
  const skips = states.map((label, state) => state > 1 && label !== 0 && label !== states[state - 2]);
  const before = (row, state, zero) => [row[state], state ? row[state - 1] : zero, skips[state] ? row[state - 2] : zero];
  let sums = states.map((_, state) => (state ? 0 : 1));
  let counts = states.map((_, state) => (state ? 0n : 1n));
  let single = sums;
  const [forward, largest] = [[], []];
  for (const row of frames) {
    sums = states.map((label, state) => before(sums, state, 0).reduce((left, right) => left + right, 0) * row[label]);
    single = states.map((label, state) => Math.max(...before(single, state, 0)) * row[label]);
    counts = states.map((_, state) => before(counts, state, 0n).reduce((left, right) => left + right, 0n));
    forward.push(sums);
    largest.push(single);
  }
  const total = (row) => row.slice(-2).reduce((left, right) => left + right);
  return {
    best_path: best.map((label) => symbols[label]).join(""), best_text: merged.map((one) => one.piece).filter((piece) => piece !== symbols[0]).join(""),
    best_path_probability: frames.reduce((product, row) => product * Math.max(...row), 1), merged, states: states.map((label) => symbols[label]),
    forward: states.map((_, state) => forward.map((row) => row[state])), probability: total(sums), paths: String(total(counts)),
    best: Math.max(...single.slice(-2)), cells: bestCells(largest, before),
  };
}

// The cells of the most probable path: back from the last two states by the largest value before.
function bestCells(largest, before) {
  const last = largest[largest.length - 1];
  let state = last.length < 2 || last[last.length - 1] >= last[last.length - 2] ? last.length - 1 : last.length - 2;
  if (!(last[state] > 0)) return [];
  const cells = [[state, largest.length - 1]];
  for (let frame = largest.length - 1; frame > 0; frame -= 1) {
    const ways = before(largest[frame - 1], state, 0);
    state -= ways.indexOf(Math.max(...ways));
    cells.unshift([state, frame - 1]);
  }
  return cells;
}

export function editDistance({ left, right, substitution, units }) {
  const [from, to] = [left, right].map((text) => (units === "words" ? text.split(/\s+/).filter(Boolean) : [...text]));
  for (const [name, side] of [["left", from], ["right", to]]) demand(side.length <= 60, name, `${side.length} ${units}`, "at most 60");
  const table = [Array.from({ length: to.length + 1 }, (_, column) => column)];
  from.forEach((symbol, row) => {
    const line = [row + 1];
    to.forEach((other, column) => line.push(Math.min(table[row][column] + (symbol === other ? 0 : substitution), table[row][column + 1] + 1, line[column] + 1)));
    table.push(line);
  });
  const cells = [];
  const counts = { equal: 0, substitute: 0, insert: 0, delete: 0 };
  for (let [row, column] = [from.length, to.length]; ;) {
    cells.unshift([row, column]);
    if (!row && !column) break;
    const same = from[row - 1] === to[column - 1];
    if (row && column && table[row][column] === table[row - 1][column - 1] + (same ? 0 : substitution)) { counts[same ? "equal" : "substitute"] += 1; row -= 1; column -= 1; }
    else if (row && table[row][column] === table[row - 1][column] + 1) { counts.delete += 1; row -= 1; }
    else { counts.insert += 1; column -= 1; }
  }
  return { table, cells, distance: table[from.length][to.length], counts, from, to };
}

// Tokens as sacreBLEU's "13a" has them; in scripts without spaces every character is one.
const SPACELESS = /[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]/g;

export function bleuTokens(text, byCharacter) {
  if (byCharacter) return [...text].filter((one) => one.trim());
  return ` ${text} `.replace(/<skipped>/g, "").replace(/&quot;/g, '"').replace(/&amp;/g, "&").replace(/&lt;/g, "<").replace(/&gt;/g, ">")
    .replace(/([{-~[-` -&(-+:-@/])/g, " $1 ").replace(/([^0-9])([.,])/g, "$1 $2 ").replace(/([.,])([^0-9])/g, " $1 $2").replace(/([0-9])(-)/g, "$1 $2 ")
    .split(/\s+/).filter(Boolean);
}

const grams = (tokens, order) => Array.from({ length: Math.max(0, tokens.length - order + 1) }, (_, first) => tokens.slice(first, first + order).join("\u0000"));

function counted(list) {
  const counts = new Map();
  for (const one of list) counts.set(one, (counts.get(one) ?? 0) + 1);
  return counts;
}

export function bleu({ hypothesis, references }) {
  demand(hypothesis.trim(), "hypothesis", "nothing", "words");
  demand(references.length && references.every((text) => text.trim()), "reference", "nothing", "words");
  const letters = references[0].match(/[\p{L}\p{N}]/gu)?.length ?? 0;
  const byCharacter = 2 * (references[0].match(SPACELESS)?.length ?? 0) > letters;
  const tokens = bleuTokens(hypothesis, byCharacter);
  const others = references.map((text) => bleuTokens(text, byCharacter));
  demand([tokens, ...others].every((one) => one.length <= 200), "hypothesis", "a longer text", "at most 200 words");
  const matched = [1, 2, 3, 4].map((order) => {
    const allowed = new Map();
    for (const other of others) for (const [gram, count] of counted(grams(other, order))) allowed.set(gram, Math.max(allowed.get(gram) ?? 0, count));
    return grams(tokens, order).map((gram) => { const left = allowed.get(gram) ?? 0; allowed.set(gram, left - 1); return left > 0; });
  });
  const matches = matched.map((flags) => flags.filter(Boolean).length);
  const totals = matched.map((flags) => flags.length);
  let halvings = 1;
  const smoothed = matches.map((count) => { if (count === 0) halvings *= 2; return count || 1 / halvings; });
  const some = matches.some(Boolean);
  const precisions = smoothed.map((count, order) => (totals[order] && some ? count / totals[order] : 0));
  // Of several references the one whose length is nearest, of two the shorter.
  const length = others.map((other) => other.length).sort((left, right) => Math.abs(left - tokens.length) - Math.abs(right - tokens.length) || left - right)[0];
  const brevity = tokens.length ? Math.exp(Math.min(0, 1 - length / tokens.length)) : 0;
  const whole = some && totals.every(Boolean);
  const score = whole ? 100 * brevity * Math.exp(precisions.reduce((sum, share) => sum + Math.log(share), 0) / 4) : 0;
  return { score, precisions, matches, totals, brevity_penalty: brevity, output_length: tokens.length, reference_length: length, tokens, matched };
}

// Beam search over a table of probabilities, by the search of exported models.
export async function beam({ tokens, after, next, width, length, length_penalty: penalty }) {
  demand(!distinct(tokens, "tokens").includes(END), "tokens", `“${END}”`, "names other than that of the end");
  demand(after.includes(""), "after", "no empty row", "one for the empty output");
  next.forEach((row, number) => probabilities(row, `next, after “${after[number]}”`));
  const rules = new Map(after.map((words, number) => [words, next[number]]));
  const [eos, sos] = [tokens.length, tokens.length + 1]; // tokens have the numbers before
  const rowAfter = (written) => {
    for (let first = 0; ; first += 1) {
      const row = rules.get(written.slice(first).map((token) => tokens[token]).join(" "));
      if (row) return row;
    }
  };
  const run = async (beams, observe) => {
    const network = {
      table: { special: { eos, sos }, suppressed: [sos], max_positions: length, length_ratio: 1 },
      start: async () => ({ tensors: new Map([["written", { type: "int32", data: new Int32Array(length + 1), shape: [1, length + 1] }]]), length: 0, rows: 1 }),
      step: async (last, state) => {
        const written = state.tensors.get("written").data.slice();
        const scores = new Float32Array(last.length * (tokens.length + 1));
        last.forEach((token, row) => {
          written[row * (length + 1) + state.length] = token;
          const own = Array.from(written.subarray(row * (length + 1) + 1, row * (length + 1) + 1 + state.length));
          scores.set(rowAfter(own).map(Math.log), row * (tokens.length + 1));
        });
        const tensors = new Map([["written", { type: "int32", data: written, shape: [last.length, length + 1] }]]);
        return { state: { tensors, length: state.length + 1, rows: last.length }, scores, vocabulary: tokens.length + 1, attention: null };
      },
    };
    const settings = { normalisation: "power", length_penalty: penalty, num_complete: 0, stop: "ahead" };
    const [found] = await search(network, [[0]], { settings, nBest: 1, beam: beams, maxLength: length, observe });
    demand(found.length, "next", "no output with a probability above 0", `one of at most ${length} tokens`);
    const { tokens: ids, tokenScores } = found[0];
    const sum = tokenScores.reduce((left, right) => left + right, 0);
    return { text: [...ids.map((id) => tokens[id]), END].join(" "), probability: Math.exp(sum), score: sum / tokenScores.length ** penalty };
  };
  const nodes = [];
  const fate = (one, kept) => (one.token !== eos ? (kept.includes(one) ? "kept" : "worse than the beam") : one.mayComplete ? "complete" : "ended, but outside the best");
  const found = await run(width, (candidates, kept) => {
    for (const one of candidates) {
      if (one.total === -Infinity) continue;
      one.number = nodes.length + 1;
      nodes.push({ number: one.number, parent: one.before.number ?? 0, step: one.length, token: one.token, piece: tokens[one.token] ?? END, log_probability: one.own, score: one.total,
        normalised: one.total / one.length ** penalty, fate: fate(one, kept), group: 1 });
    }
  });
  return { greedy: await run(1), beam: found, nodes };
}
