// Texts in, texts out: the checks, limits and parts of `dragoman predict`, and which words the output comes from.

import { RUNS, SENTENCE_ENDS, SPACE_RUNS, strip } from "./characters.js";
import { search } from "./search.js";
import { knownCharacters, makeTokenizer, splitTag, UNK } from "./tokenizers.js";

const MAX_TOKENS_PER_CHARACTER = 4; // bytes of UTF-8: a shorter text cannot be too long
const MOST_BEAM = 64;
const ROWS = 32; // hypotheses that are computed together
const END = "<eos>";
const PAUSE = 25; // milliseconds after which the page may draw

export class Translator {
  constructor(network, table) {
    Object.assign(this, { network, table });
    this.source = makeTokenizer(table.source);
    this.target = table.target ? makeTokenizer(table.target) : this.source;
    this.tags = table.source.tags ?? [];
    this.known = knownCharacters(table);
  }

  // One text, read as one input: {text, score, tokens, tokenScores, alignment, sourceWords, targetWords, …}.
  async translate(text, options = {}) {
    return (await this.translateAll([text], options))[0];
  }

  // Several texts; those of like lengths are computed together. `progress` gets the number that are done.
  async translateAll(texts, options = {}) {
    const asked = this.options(options);
    const inputs = texts.map((text) => this.read(text, asked.tag));
    const parts = inputs.flatMap((input) => input.parts.filter((part) => !part.copied));
    parts.sort((left, right) => left.ids.length - right.ids.length);
    const size = Math.max(1, Math.floor(ROWS / Math.max(asked.beam, asked.nBest)));
    for (let first = 0; first < parts.length; first += size) {
      const some = parts.slice(first, first + size);
      const found = await search(this.network, some.map((part) => part.ids.map(([id]) => id)), asked);
      some.forEach((part, number) => { part.hypotheses = found[number]; });
      asked.progress?.(Math.min(first + size, parts.length), parts.length);
    }
    return inputs.map((input) => this.result(input));
  }

  options({ beam, nBest = 1, tag, signal, progress } = {}) {
    const settings = this.table.search;
    const asked = { beam: beam ?? settings.beam, nBest, tag, progress, settings, maxLength: settings.max_length, breathe: pauses(signal) };
    for (const name of ["beam", "nBest"]) {
      if (!Number.isInteger(asked[name]) || asked[name] < 1 || asked[name] > MOST_BEAM) throw new RangeError(`${name}: found ${asked[name]}, expected a whole number from 1 to ${MOST_BEAM}`);
    }
    asked.beam = Math.max(asked.beam, nBest);
    return asked;
  }

  // An input in parts: one, or several where it is longer than what the model was trained on.
  read(text, tag) {
    if (typeof text !== "string") throw new TypeError(`text: found ${text === null ? "null" : typeof text}, expected a string`);
    if (!strip(text)) return { text, parts: [], unknown: [] };
    const tagged = this.tagged(text, tag);
    const [own, plain] = splitTag(tagged, this.tags);
    const front = own ? tagged.slice(0, tagged.length - plain.length) : "";
    const room = this.table.max_tokens - (own ? 1 : 0);
    const fits = (part) => {
      const length = [...part].length;
      if (length > this.table.max_characters) return false;
      return length <= Math.floor(room / MAX_TOKENS_PER_CHARACTER) || this.source.encode(front + part).length - (own ? 1 : 0) <= room;
    };
    const pieces = fits(plain) ? [{ text: plain, copied: false }] : splitText(plain, fits).flatMap(trimmed);
    const parts = pieces.map((part) => (part.copied ? part : { ...part, front: front.length, whole: front + part.text, ids: this.source.encode(front + part.text) }));
    return { text, parts, unknown: this.unknown(plain, parts) };
  }

  tagged(text, tag) {
    if (!this.tags.length || splitTag(text, this.tags)[0]) return text;
    if (!this.tags.includes(tag)) throw new Error(`tag: found ${tag === undefined ? "none" : `"${tag}"`}, expected one of ${this.tags.join(", ")}`);
    return `<2${tag}> ${text}`;
  }

  // Characters and words that training did not have.
  unknown(text, parts) {
    if (this.known) return [...new Set([...text].filter((character) => !this.known.has(character)))];
    return [...new Set(parts.filter((part) => !part.copied).flatMap((part) => part.ids.filter(([id]) => id === UNK).map(([, start, end]) => part.whole.slice(start, end))))];
  }

  result({ text, parts, unknown }) {
    const read = parts.filter((part) => !part.copied);
    if (!read.length) return { text: parts.map((part) => part.text).join(""), score: 0, tokens: [], tokenScores: [], alignment: [], sourceWords: [], targetWords: [], wordConfidences: [], alternatives: [], unknown };
    if (read.some((part) => !part.hypotheses.length)) throw new Error("found no output: the probabilities of the model are not numbers; its files are damaged");
    const outputs = read.map((part) => part.hypotheses.map((one) => this.output(part, one)));
    if (parts.length === 1) {
      const [first, ...alternatives] = outputs[0];
      return { ...first, alternatives, unknown };
    }
    const best = outputs.map(([first]) => first);
    let number = 0;
    const joined = parts.map((part) => (part.copied ? part.text : best[number++].text)).join("");
    const counts = best.map((one) => Math.max(1, one.tokenScores.length));
    const score = best.reduce((sum, one, index) => sum + one.score * counts[index], 0) / counts.reduce((sum, one) => sum + one, 0);
    const all = (name) => best.flatMap((one) => one[name]);
    return { text: joined, score, tokens: all("tokens"), tokenScores: all("tokenScores"), alignment: null, sourceWords: words(text), targetWords: words(joined), wordConfidences: null, alternatives: [], unknown, parts: read.length };
  }

  output(part, { score, tokens, tokenScores, attention, heads }) {
    const text = this.target.decode(tokens);
    const plain = part.whole.slice(part.front);
    // Of a single word the letters are aligned, on each side that is read by letter.
    const byLetter = (side) => side.kind === "characters" && words(plain).length === 1;
    const sourceSpans = wordSpans(plain, byLetter(this.table.source)).map(([start, end]) => [start + part.front, end + part.front]);
    const targetSpans = wordSpans(text, byLetter(this.table.target ?? this.table.source));
    const sourceShares = tokenShares(part.ids.map(([, start, end]) => [start, end]), sourceSpans);
    const spans = tokens.map((_, index) => [this.target.decode(tokens.slice(0, index)).length, this.target.decode(tokens.slice(0, index + 1)).length]);
    const shares = tokenShares(spans, targetSpans);
    const confidences = targetSpans.map((_, word) => shares.reduce((product, share, token) => (share.has(word) ? product * Math.exp(tokenScores[token]) : product), 1));
    return {
      text, score, tokens: tokens.map((id) => this.target.piece(id)), tokenScores,
      sourceWords: sourceSpans.map(([start, end]) => part.whole.slice(start, end)), targetWords: targetSpans.map(([start, end]) => text.slice(start, end)),
      wordConfidences: confidences, alignment: attention ? links(attention, shares, sourceShares, targetSpans.length, sourceSpans.length) : null,
      // What the attention view draws: weights of all heads for every token, <eos> included, and both sides by word.
      attention: heads && { heads, layers: this.table.attention_heads,
        rows: axis(tokens.map((id) => this.target.piece(id)), shares, targetSpans.map(([start, end]) => text.slice(start, end))),
        columns: axis(part.ids.map(([id]) => this.source.piece(id)), sourceShares, sourceSpans.map(([start, end]) => part.whole.slice(start, end))) },
    };
  }
}

// The tokens of a side with <eos>, its words, and the word of every token.
function axis(tokens, shares, spans) {
  const own = shares.map((share) => [...share.keys()][0] ?? 0);
  return { tokens: [...tokens, END], words: [...spans, END], word_of: [...own, spans.length] };
}

// Every output word with the source word that it attends to most, as [source word, output word].
function links(attention, shares, columns, targets, sources) {
  const weights = Array.from({ length: targets }, () => new Float64Array(sources));
  const totals = new Float64Array(targets);
  shares.forEach((share, token) => {
    for (const [target, part] of share) {
      totals[target] += part;
      columns.forEach((column, entry) => { for (const [source, size] of column) weights[target][source] += part * attention[token][entry] * size; });
    }
  });
  return weights.flatMap((row, target) => {
    const highest = Math.max(...row);
    return totals[target] > 0 && highest > 0 ? [[row.indexOf(highest), target]] : [];
  });
}

// The share of each token in each word, as a map for every token.
function tokenShares(tokens, spans) {
  let word = 0;
  return tokens.map(([start, end]) => {
    while (word < spans.length && spans[word][1] <= start) word += 1;
    const own = [];
    for (let other = word; other < spans.length && spans[other][0] < Math.max(end, start + 1); other += 1) own.push(other);
    return new Map(own.map((one) => [one, 1 / own.length]));
  });
}

function wordSpans(text, letters) {
  return [...text.matchAll(letters ? /\S/gu : RUNS)].map((match) => [match.index, match.index + match[0].length]);
}

function words(text) {
  return text.match(RUNS) ?? [];
}

// A text cut after sentences, at spaces, or else anywhere, until each part fits.
function splitText(text, fits) {
  if ([...text].length <= 1 || fits(text)) return [text];
  const cut = cutNearMiddle(text);
  return [...splitText(text.slice(0, cut), fits), ...splitText(text.slice(cut), fits)];
}

function cutNearMiddle(text) {
  const quarter = Math.floor(text.length / 4);
  const middle = Math.floor(text.length / 2);
  const inside = text.slice(quarter, text.length - quarter);
  const ends = (pattern) => [...inside.matchAll(pattern)].map((match) => quarter + match.index + match[0].length);
  const found = [ends(SENTENCE_ENDS), ends(SPACE_RUNS)].find((places) => places.length) ?? [];
  const cut = found.reduce((nearest, end) => (Math.abs(end - middle) < Math.abs(nearest - middle) ? end : nearest), found[0] ?? middle) || 1;
  return /[\ud800-\udbff]/.test(text[cut - 1]) ? cut + 1 : cut; // never inside a character
}

// White space at the sides of a part is copied.
function trimmed(text) {
  const inner = strip(text);
  if (!inner) return [{ text, copied: true }];
  const start = text.indexOf(inner);
  const parts = [{ text: text.slice(0, start), copied: true }, { text: inner, copied: false }, { text: text.slice(start + inner.length), copied: true }];
  return parts.filter((part) => part.text);
}

// Called before every token: stops a search that is no longer wanted, and lets the page draw.
function pauses(signal) {
  let last = performance.now();
  return async () => {
    signal?.throwIfAborted();
    if (performance.now() - last < PAUSE) return;
    await nextTask();
    last = performance.now();
    signal?.throwIfAborted();
  };
}

// Other work of the page comes first. Browsers make a nested setTimeout wait for 4 ms, a message does not wait.
function nextTask() {
  const { port1, port2 } = new MessageChannel();
  return new Promise((resume) => {
    port1.onmessage = () => { port1.close(); resume(); };
    port2.postMessage(null);
  });
}
