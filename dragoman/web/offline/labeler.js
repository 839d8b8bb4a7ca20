// Texts in, labels out: a classifier or a tagger of one ONNX graph.

import { makeTokenizer, knownCharacters, UNK } from "./tokenizers.js";

export class Labeler {
  constructor(ort, session, table) {
    Object.assign(this, { ort, session, table, tagger: table.task === "tag" });
    this.source = makeTokenizer(table.source);
    this.known = knownCharacters(table);
  }

  static async open(ort, read, table) {
    const options = { executionProviders: ["wasm"], logSeverityLevel: 3 };
    return new Labeler(ort, await ort.InferenceSession.create(await read("labels.onnx"), options), table);
  }

  async labelAll(texts, { signal, progress } = {}) {
    const outputs = [];
    for (const text of texts) {
      signal?.throwIfAborted();
      outputs.push(await this.label(text));
      progress?.(outputs.length, texts.length);
    }
    return outputs;
  }

  // {text, probabilities, unknown} of a classifier; {text, words, tags, probabilities, unknown} of a tagger.
  async label(text) {
    if (typeof text !== "string") throw new TypeError(`text: found ${text === null ? "null" : typeof text}, expected a string`);
    const words = text.split(/[ \t]/).filter((word) => word);
    const read = this.tagger ? words.join(" ") : text;
    if (!read.trim()) return { text: "", words: [], tags: [], probabilities: this.tagger ? [] : {}, unknown: [] };
    this.check([...read].length, "characters", this.table.max_characters);
    const tokens = this.source.encode(read);
    this.check(tokens.length, "tokens", this.table.max_tokens);
    const ids = tokens.map(([id]) => id);
    const { eos, pad } = this.table.special;
    const feeds = { source: this.table.words ? this.letters([...wordsOf(ids, this.table.words), [eos]], pad) : this.tensor([...ids, eos]) };
    if (this.tagger && !this.table.words) feeds.starts = this.tensor(wordPositions(read, words, tokens));
    const { scores } = await this.session.run(feeds);
    const unknown = this.known ? [...new Set([...read].filter((character) => !this.known.has(character)))] : [...new Set(tokens.filter(([id]) => id === UNK).map(([, start, end]) => read.slice(start, end)))];
    const size = this.table.labels.length;
    const count = this.tagger ? words.length : 1; // a model of words scores <eos> too
    const rows = Array.from({ length: count }, (_, row) => Array.from(scores.data.subarray(row * size, (row + 1) * size)));
    if (rows.some((row) => row.some((score) => !Number.isFinite(score)))) throw new Error("found no answer: the scores of the model are not numbers; its files are damaged");
    if (!this.tagger) {
      const shares = softmax(rows[0]);
      return { text: this.table.labels[highest(shares)], probabilities: this.named(shares), unknown };
    }
    const { chain } = this.table;
    const shares = chain ? marginals(rows, chain) : rows.map(softmax);
    const path = chain ? viterbi(rows, chain) : shares.map(highest);
    const tags = path.map((tag) => this.table.labels[tag]);
    return { text: tags.join(" "), words, tags, probabilities: shares.map((row) => this.named(row)), unknown };
  }

  check(found, unit, most) {
    if (found > most) throw new RangeError(`found ${found.toLocaleString("en")} ${unit}, expected at most ${most.toLocaleString("en")}; shorten the text`);
  }

  tensor(ids) {
    return new this.ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, ids.length]);
  }

  // The characters of words, padded to the longest: (1, W, L).
  letters(words, pad) {
    const width = Math.max(...words.map((word) => word.length));
    const ids = words.flatMap((word) => [...word, ...Array(width - word.length).fill(pad)]);
    return new this.ort.Tensor("int64", BigInt64Array.from(ids, BigInt), [1, words.length, width]);
  }

  named(shares) {
    return Object.fromEntries(this.table.labels.map((label, number) => [label, shares[number]]));
  }
}

// The characters of each word, no more than `longest` of them; any number of spaces separates two words.
function wordsOf(ids, { space, longest }) {
  const words = [];
  ids.forEach((id, place) => {
    if (id === space) return;
    if (place === 0 || ids[place - 1] === space) words.push([]);
    if (words.at(-1).length < longest) words.at(-1).push(id);
  });
  return words;
}

// The token that covers the first character of each word; a word that the tokenizer drops has the token before it.
function wordPositions(text, words, tokens) {
  const starts = [];
  words.reduce((place, word) => { starts.push(place); return place + word.length + 1; }, 0);
  const positions = [];
  tokens.forEach(([, first, end], position) => {
    let start = first;
    while (start < end && text[start] === " ") start += 1;
    if (start >= end) return;
    const word = starts.findLastIndex((one) => one <= start);
    if (word < positions.length) return;
    while (positions.length < word) positions.push(Math.max(0, position - 1));
    positions.push(position);
  });
  while (positions.length < words.length) positions.push(positions.at(-1) ?? 0);
  return positions;
}

function highest(row) {
  return row.indexOf(Math.max(...row));
}

function logSum(row) {
  const most = Math.max(...row);
  return most + Math.log(row.reduce((sum, score) => sum + Math.exp(score - most), 0));
}

function softmax(row) {
  const total = logSum(row);
  return row.map((score) => Math.exp(score - total));
}

// The path of highest score of a linear-chain conditional random field: transitions (from, to), first, last.
function viterbi(rows, { transitions, first, last }) {
  let best = rows[0].map((score, tag) => first[tag] + score);
  const came = [];
  for (const row of rows.slice(1)) {
    const origins = row.map((_, to) => highest(best.map((score, from) => score + transitions[from][to])));
    best = row.map((score, to) => best[origins[to]] + transitions[origins[to]][to] + score);
    came.push(origins);
  }
  const path = [highest(best.map((score, tag) => score + last[tag]))];
  for (const origins of came.reverse()) path.unshift(origins[path[0]]);
  return path;
}

// p(tag of a word) over all paths, by the forward and backward sums.
function marginals(rows, { transitions, first, last }) {
  const tags = [...first.keys()];
  const forward = [rows[0].map((score, tag) => first[tag] + score)];
  for (const row of rows.slice(1)) forward.push(row.map((score, to) => score + logSum(tags.map((from) => forward.at(-1)[from] + transitions[from][to]))));
  const backward = [[...last]];
  for (const row of rows.slice(1).reverse()) backward.unshift(tags.map((from) => logSum(tags.map((to) => transitions[from][to] + row[to] + backward[0][to]))));
  return forward.map((row, word) => softmax(row.map((score, tag) => score + backward[word][tag])));
}
