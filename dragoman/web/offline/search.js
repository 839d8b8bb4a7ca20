// Beam search as in dragoman/decoding/beam.py: the same candidates, scores and stop rules. A beam of one is greedy search.

import { selectRows } from "./network.js";

// The n best hypotheses of every source, best first. `sources` are rows of token ids without <eos>.
export async function search(network, sources, options) {
  const beams = sources.map((source) => new Beam(lengthLimit(source.length + 1, network.table, options), network.table, options));
  let state = await network.start(sources);
  let rows = beams.map((beam, number) => ({ beam, number, slot: 0 })); // an open hypothesis for each row of the state
  while (rows.length) {
    await options.breathe?.();
    const step = await network.step(rows.map(({ beam, slot }) => beam.open[slot].token), state);
    const chosen = [];
    for (const beam of new Set(rows.map((row) => row.beam))) {
      const own = rows.flatMap((row, place) => (row.beam === beam ? [place] : []));
      beam.advance(own.map((place) => ({
        scores: step.scores.subarray(place * step.vocabulary, (place + 1) * step.vocabulary),
        attention: sliced(step.attention, place, rows.length), heads: sliced(step.heads, place, rows.length),
      })));
      if (!beam.done) beam.open.forEach(({ parent }, slot) => chosen.push({ row: own[parent], beam, slot }));
    }
    state = selectRows(step.state, chosen.map(({ row }) => row));
    rows = chosen;
  }
  return beams.map((beam) => beam.complete.slice(0, options.nBest).map(finished));
}

// The most tokens of an output, <eos> included, for a source of so many.
function lengthLimit(length, table, options) {
  const limit = options.maxLength ? options.maxLength + 1 : Math.floor((length * Math.ceil(table.length_ratio * 16)) / 16) + 12;
  return Math.min(limit, table.max_positions ?? Infinity);
}

function divisor(length, { normalisation, length_penalty: penalty }) {
  if (normalisation === "none") return 1;
  return (normalisation === "power" ? length : (5 + length) / 6) ** penalty;
}

// Sums and quotients in single precision, as the search in torch has them.
const add = (left, right) => Math.fround(left + right);
const score = (total, length, settings) => Math.fround(total / Math.fround(divisor(length, settings)));

class Beam {
  constructor(limit, table, options) {
    const { settings, nBest } = options;
    this.width = Math.max(options.beam, nBest);
    this.enough = settings.num_complete && options.beam > 1 ? Math.max(settings.num_complete, nBest) : this.width;
    this.stop = this.width === 1 ? "complete" : settings.stop;
    Object.assign(this, { limit, settings, nBest, observe: options.observe, suppressed: table.suppressed, eos: table.special.eos });
    this.open = [{ before: null, token: table.special.sos, total: 0, length: 0 }];
    this.greedy = this.stop === "complete" ? -1 : 0; // which open hypothesis is the greedy one
    this.complete = [];
    this.count = 0; // hypotheses that were completed so far
    this.done = false;
  }

  // Read the log-probabilities of the next token of every open hypothesis.
  advance(rows) {
    const length = this.open[0].length + 1;
    const candidates = this.candidates(rows, length);
    const fresh = candidates.filter((one) => one.token === this.eos && one.mayComplete && one.total > -Infinity);
    for (const one of fresh) one.score = score(one.total, length, this.settings);
    this.count += fresh.length;
    this.complete = [...this.complete, ...fresh].sort((left, right) => right.score - left.score).slice(0, this.width);
    const going = candidates.filter((one) => one.token !== this.eos && one.total > -Infinity);
    const kept = going.slice(0, this.width);
    const greedy = going.find((one) => one.isGreedy);
    if (greedy && !kept.includes(greedy)) kept[kept.length - 1] = greedy;
    this.greedy = kept.indexOf(greedy);
    this.observe?.(candidates, kept);
    this.open = kept;
    this.done = this.isDone(length);
  }

  // The best 2k continuations, and the greedy one if it is not among them.
  candidates(rows, length) {
    const every = [];
    let greedy = null;
    rows.forEach(({ scores, attention, heads }, slot) => {
      const before = this.open[slot];
      const tokens = length >= this.limit ? [this.eos] : best(scores, Math.min(2 * this.width, scores.length), this.suppressed);
      tokens.forEach((token, rank) => {
        const one = { before, parent: slot, token, own: scores[token], total: add(before.total, scores[token]), length, attention, heads, isGreedy: slot === this.greedy && rank === 0 };
        if (one.isGreedy) greedy = one;
        every.push(one);
      });
    });
    const chosen = every.sort((left, right) => right.total - left.total).slice(0, 2 * this.width);
    chosen.forEach((one, rank) => { one.mayComplete = rank < this.width || one.isGreedy; });
    if (greedy && !chosen.includes(greedy)) chosen.push({ ...greedy, mayComplete: true });
    return chosen;
  }

  isDone(length) {
    if (!this.open.length || this.limit <= length) return true;
    const bestPossible = (total) => score(total, this.limit, this.settings);
    const reached = (rank) => this.complete[rank - 1]?.score ?? -Infinity;
    const highest = Math.max(...this.open.map((one) => one.total));
    if (this.stop === "certain") return reached(this.nBest) >= bestPossible(highest);
    if (this.count < this.enough) return false;
    if (this.stop === "complete") return true;
    if (reached(Math.min(this.nBest, this.width)) < score(highest, length, this.settings)) return false;
    return this.greedy < 0 || reached(1) >= bestPossible(this.open[this.greedy].total);
  }
}

// The part of one row.
function sliced(values, row, rows) {
  const size = values ? values.length / rows : 0;
  return values ? values.slice(row * size, (row + 1) * size) : null;
}

// The tokens with the highest scores, best first.
function best(scores, count, suppressed) {
  const kept = [];
  let least = -Infinity;
  for (let token = 0; token < scores.length; token += 1) {
    const value = scores[token];
    if (!(value > least) || suppressed.includes(token)) continue;
    let place = kept.length;
    while (place > 0 && scores[kept[place - 1]] < value) place -= 1;
    kept.splice(place, 0, token);
    if (kept.length > count) kept.pop();
    if (kept.length === count) least = scores[kept.at(-1)];
  }
  return kept;
}

// A hypothesis as plain values, without <eos>.
function finished(last) {
  const steps = [];
  for (let one = last; one.before; one = one.before) steps.unshift(one);
  return {
    score: last.score, tokens: steps.slice(0, -1).map((one) => one.token), tokenScores: steps.map((one) => one.own),
    attention: last.attention && steps.slice(0, -1).map((one) => one.attention), heads: last.heads && steps.map((one) => one.heads),
  };
}
