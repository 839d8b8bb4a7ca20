// Texts ↔ token ids, each kind as `dragoman/data/tokenizers` has it.
// `encode(text)` gives [id, start, end] for every token, with places in the text; `decode(ids)` gives the text again.

import { REPLACEMENT, RUNS, RUN_OR_SPACE, SPACES, strip, utf8, wellFormed } from "./characters.js";
import { Heap, SentencePieceModel } from "./sentencepiece.js";

export const PAD = 0;
export const UNK = 1;
export const SOS = 2;
export const EOS = 3;
const UNSEEN = [PAD, SOS, EOS]; // left out of texts
const SURFACE = "⁇"; // of <unk>
const FIRST_BYTE = 4;

class Vocabulary {
  constructor(spec) {
    this.spec = spec;
    this.tokens = spec.tokens;
    this.ids = new Map();
    spec.tokens.forEach((token, id) => { if (id > EOS) this.ids.set(token, id); });
  }

  id(token) {
    return this.ids.get(token) ?? UNK;
  }

  piece(id) {
    return this.tokens[id];
  }

  surfaces(ids) {
    return ids.filter((id) => !UNSEEN.includes(id)).map((id) => (id === UNK ? SURFACE : this.tokens[id]));
  }
}

class Characters extends Vocabulary {
  encode(text) {
    const out = [];
    let place = 0;
    for (const part of this.split(text)) {
      out.push([this.id(part), place, place + part.length]);
      place += part.length;
    }
    return out;
  }

  // Features at the end of a text are whole tokens, each with the mark before it.
  split(text) {
    const marks = [...(this.spec.features ?? "")];
    if (!marks.length) return [...text];
    const [first, between] = [marks[0], marks.at(-1)];
    const start = first === between ? text.indexOf(first) : text.lastIndexOf(first);
    if (start < 0) return [...text];
    const [feature, ...others] = text.slice(start + first.length).split(between);
    return [...text.slice(0, start), first + feature, ...others.map((one) => between + one)];
  }

  decode(ids) {
    return this.surfaces(ids).join("");
  }
}

class Bytes extends Vocabulary {
  encode(text) {
    const out = [];
    let place = 0;
    for (const character of text.replace(/\p{Surrogate}/gu, "?")) {
      const bytes = new TextEncoder().encode(character);
      bytes.forEach((byte, number) => out.push([FIRST_BYTE + byte, place, number + 1 < bytes.length ? place : place + character.length]));
      place += character.length;
    }
    return out;
  }

  decode(ids) {
    const surface = [...new TextEncoder().encode(SURFACE)];
    return utf8(ids.flatMap((id) => (id >= FIRST_BYTE ? [id - FIRST_BYTE] : id === UNK ? surface : [])));
  }
}

const JOINER = "￭";
const ESCAPED_JOINER = "&joiner;";
// A word, with the combining marks of Indic spelling and the joiners of Persian, or any other character.
const WORD = /((?:[\p{L}\p{N}_\u200c\u200d]|(?![\u{20000}-\u{10ffff}])\p{M})+)|([^])/gu;

class Words extends Vocabulary {
  encode(text) {
    if (this.spec.split === "spaces") {
      return [...text.matchAll(/[^ ]+/g)].map((match) => [this.id(match[0]), match.index, match.index + match[0].length]);
    }
    const out = [];
    for (const [chunk, place] of chunks(text)) {
      const matches = [...chunk.matchAll(WORD)];
      matches.forEach((match, index) => {
        let token = match[0];
        if (match[2] !== undefined) {
          const after = matches[index + 1]?.[1] ? JOINER : "";
          token = (index ? JOINER : "") + (token === JOINER ? ESCAPED_JOINER : token) + after;
        }
        out.push([this.id(token), place + match.index, place + match.index + match[0].length]);
      });
    }
    return out;
  }

  decode(ids) {
    if (this.spec.split === "spaces") return this.surfaces(ids).join(" ");
    let text = "";
    let glued = true;
    for (const id of ids) {
      if (UNSEEN.includes(id)) continue;
      const [shown, before, after] = id === UNK ? [SURFACE, false, false] : surface(this.tokens[id]);
      text += glued || before ? shown : ` ${shown}`;
      glued = after;
    }
    return text;
  }
}

// Runs without white space. White space is a chunk of its own, except single spaces between two runs.
function chunks(text) {
  const parts = [...text.matchAll(RUN_OR_SPACE)].map((match) => [match[0], match.index]);
  const isSpace = (index) => SPACES.test(parts[index][0]);
  return parts.filter(([part], index) => part !== " " || index === 0 || index === parts.length - 1 || isSpace(index - 1) || isSpace(index + 1));
}

function surface(token) {
  if (SPACES.test(token)) return [token, true, true];
  const [before, after] = [token.startsWith(JOINER), token.endsWith(JOINER)];
  let core = before ? token.slice(1) : token;
  if (core.endsWith(JOINER)) core = core.slice(0, -1);
  return [core === ESCAPED_JOINER ? JOINER : core, before, after];
}

const REPLACED_MARK = "\u{10fffe}"; // stands for a ▁ of the text itself

class Subwords {
  constructor(spec) {
    this.model = new SentencePieceModel(spec.model);
  }

  encode(text) {
    const marks = []; // the replacement is longer by one, so places behind it move
    const escaped = text.replaceAll("▁", (_, place) => { marks.push(place + marks.length); return REPLACED_MARK; });
    const pieces = this.model.encode(escaped).map(([, id, start, end]) => [id, start, end]);
    if (!marks.length) return pieces;
    const place = (at) => at - marks.filter((one) => one < at).length;
    return pieces.map(([id, start, end]) => [id, place(start), place(end)]);
  }

  decode(ids) {
    const kept = ids.filter((id) => !UNSEEN.includes(id));
    return this.model.decode(kept.map((id) => [this.piece(id), id])).replaceAll(REPLACED_MARK, "▁");
  }

  piece(id) {
    return this.model.spec.pieces[id];
  }
}

class ImportedPieces extends Vocabulary {
  constructor(spec) {
    super(spec);
    this.model = new SentencePieceModel(spec.model);
    this.own = new Map(spec.model.pieces.map((piece, id) => [piece, id]));
    this.tags = new Set(spec.codes);
  }

  encode(text) {
    const first = text.match(RUNS)?.[0];
    const front = [];
    let start = 0;
    if (this.tags.has(first)) {
      start = text.indexOf(first) + first.length;
      front.push([this.ids.get(first), 0, start]);
    } else if (this.spec.prefix) front.push([this.ids.get(this.spec.prefix), 0, 0]);
    const pieces = this.model.encode(text.slice(start));
    return [...front, ...pieces.map(([piece, , from, to]) => [this.id(piece), start + from, start + to])];
  }

  decode(ids) {
    const pieces = [];
    for (const id of ids) {
      if (id === UNK) pieces.push(`▁${SURFACE}`);
      else if (!UNSEEN.includes(id) && !this.tags.has(this.tokens[id])) pieces.push(this.tokens[id]);
    }
    return strip(this.model.decode(pieces.map((piece) => [piece, this.own.get(piece)])).replaceAll("▁", " "));
  }
}

const CONTINUATION = "##";
const MAX_WORD = 100;
const BERT_WORD = /[^\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+/gu;
const BEFORE_MARK = / (?=[.,!?])| (?=(?:n't|'m|'s|'ve|'re)(?![\p{L}\p{N}_]))/gu;
const ALONE = /[!-/:-@[-`{-~]|\p{P}/u;
const IDEOGRAPH = /[\u4e00-\u9fff\u3400-\u4dbf\u{20000}-\u{2a6df}\u{2a700}-\u{2b73f}\u{2b740}-\u{2b81f}\u{2b820}-\u{2ceaf}\uf900-\ufaff\u{2f800}-\u{2fa1f}]/u;

class WordPieces extends Vocabulary {
  constructor(spec) {
    super(spec);
    this.longest = Math.max(...this.tokens.map((token) => [...token].length));
  }

  encode(text) {
    const out = [];
    for (const match of text.matchAll(BERT_WORD)) {
      for (const letters of this.basicTokens(match[0], match.index)) out.push(...this.pieces(letters));
    }
    return out;
  }

  // Words and single marks as lists of [letter, start, end].
  basicTokens(word, place) {
    const out = [[]];
    for (const letter of this.normalised(word, place)) {
      const alone = ALONE.test(letter[0]) || (this.spec.handle_chinese_chars && IDEOGRAPH.test(letter[0]));
      if (alone) out.push([letter], []);
      else out.at(-1).push(letter);
    }
    return out.filter((letters) => letters.length);
  }

  * normalised(word, place) {
    let at = place;
    for (const character of word) {
      const [start, end] = [at, at + character.length];
      at = end;
      if (character === REPLACEMENT || /\p{C}/u.test(character)) continue;
      for (const part of this.spec.strip_accents ? character.normalize("NFD") : character) {
        if (this.spec.strip_accents && /\p{Mn}/u.test(part)) continue;
        for (const letter of this.spec.lowercase ? part.toLowerCase() : part) yield [letter, start, end];
      }
    }
  }

  // The longest piece first; <unk> for the whole word if a rest has no piece.
  pieces(letters) {
    const unknown = [[UNK, letters[0][1], letters.at(-1)[2]]];
    if (letters.length > MAX_WORD) return unknown;
    const out = [];
    for (let start = 0; start < letters.length;) {
      let end = Math.min(letters.length, start + this.longest);
      const piece = () => (start ? CONTINUATION : "") + letters.slice(start, end).map(([letter]) => letter).join("");
      while (end > start && !this.ids.has(piece())) end -= 1;
      if (end === start) return unknown;
      out.push([this.ids.get(piece()), letters[start][1], letters[end - 1][2]]);
      start = end;
    }
    return out;
  }

  decode(ids) {
    const words = [];
    for (const shown of this.surfaces(ids)) {
      if (shown.startsWith(CONTINUATION) && words.length) words.push(words.pop() + shown.slice(CONTINUATION.length));
      else words.push(shown);
    }
    return words.join(" ").replace(BEFORE_MARK, "");
  }
}

const GPT2_SPACE = "\\t-\\r\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
const GPT2_WORD = new RegExp(
  `'(?:s|t|re|ve|m|ll|d)| ?\\p{L}+| ?\\p{N}+| ?[^ ${GPT2_SPACE}\\p{L}\\p{N}]+|[ ${GPT2_SPACE}]+(?![^ ${GPT2_SPACE}])|[ ${GPT2_SPACE}]+`, "gu");

class ByteLevelPieces extends Vocabulary {
  constructor(spec) {
    super(spec);
    this.ranks = new Map(spec.merges.map((pair, rank) => [pair, rank]));
    const shown = (byte) => (byte >= 0x21 && byte < 0x7f) || (byte >= 0xa1 && byte < 0xad) || byte >= 0xae;
    let hidden = 0x100;
    this.letters = Array.from({ length: 256 }, (_, byte) => String.fromCodePoint(shown(byte) ? byte : hidden++));
    this.byteOf = new Map(this.letters.map((letter, byte) => [letter, byte]));
  }

  encode(text) {
    const clean = wellFormed(text);
    const prefix = this.spec.add_prefix_space && clean && !clean.startsWith(" ") ? " " : "";
    const out = [];
    const place = (at) => Math.max(0, at - prefix.length);
    for (const match of (prefix + clean).matchAll(GPT2_WORD)) {
      const stops = []; // the place in the text after each byte; only the last byte of a character moves it
      let at = match.index;
      for (const character of match[0]) {
        stops.push(...Array(new TextEncoder().encode(character).length - 1).fill(at), at + character.length);
        at += character.length;
      }
      let [start, bytes] = [match.index, 0];
      for (const piece of this.merge(match[0])) {
        bytes += piece.length;
        out.push([this.id(piece), place(start), place(stops[bytes - 1])]);
        start = stops[bytes - 1];
      }
    }
    return out;
  }

  // Merge the pair of lowest rank, leftmost first, until no pair has one.
  merge(word) {
    const symbols = Array.from(new TextEncoder().encode(word), (byte) => this.letters[byte]);
    const after = symbols.map((_, index) => (index + 1 < symbols.length ? index + 1 : -1));
    const before = symbols.map((_, index) => index - 1);
    const rank = (left, right) => this.ranks.get(`${symbols[left]} ${symbols[right]}`) ?? -1;
    const heap = new Heap((one, other) => one[0] < other[0] || (one[0] === other[0] && one[1] < other[1]));
    const offer = (left, right) => { if (left >= 0 && right >= 0 && rank(left, right) >= 0) heap.push([rank(left, right), left]); };
    for (let left = 0; left + 1 < symbols.length; left += 1) offer(left, left + 1);
    for (let best = heap.pop(); best; best = heap.pop()) {
      const left = best[1];
      const right = after[left];
      if (!symbols[left] || right < 0 || rank(left, right) !== best[0]) continue;
      symbols[left] += symbols[right];
      symbols[right] = "";
      after[left] = after[right];
      if (after[left] >= 0) before[after[left]] = left;
      offer(before[left], left);
      offer(left, after[left]);
    }
    return symbols.filter(Boolean);
  }

  decode(ids) {
    const bytes = [];
    for (const id of ids) {
      const token = id === UNK ? SURFACE : this.tokens[id];
      if (UNSEEN.includes(id)) continue;
      const known = id !== UNK && [...token].every((letter) => this.byteOf.has(letter));
      bytes.push(...(known ? [...token].map((letter) => this.byteOf.get(letter)) : new TextEncoder().encode(token)));
    }
    const text = utf8(bytes);
    return this.spec.add_prefix_space && text.startsWith(" ") ? text.slice(1) : text;
  }
}

// A language tag such as <2de> at the very front of a text is one token.
class Tagged {
  constructor(inner, tags, size) {
    Object.assign(this, { inner, tags, size });
  }

  encode(text) {
    const [tag, rest] = splitTag(text, this.tags);
    const front = text.length - rest.length;
    const tokens = this.inner.encode(rest).map(([id, start, end]) => [id, start + front, end + front]);
    return tag ? [[this.size + this.tags.indexOf(tag), 0, front], ...tokens] : tokens;
  }

  piece(id) {
    return id >= this.size ? `<2${this.tags[id - this.size]}>` : this.inner.piece(id);
  }
}

export function splitTag(text, tags) {
  const match = /^<2([A-Za-z0-9._-]+)> /.exec(text);
  return match && tags.includes(match[1]) ? [match[1], text.slice(match[0].length)] : ["", text];
}

// Two texts with a tab between them; <sep> stands between their tokens.
class Pairs {
  constructor(inner, size) {
    Object.assign(this, { inner, size });
  }

  encode(text) {
    const out = [];
    let place = 0;
    text.split("\t").forEach((part, number) => {
      if (number) out.push([this.size, place - 1, place]);
      for (const [id, start, end] of this.inner.encode(part)) out.push([id, start + place, end + place]);
      place += part.length + 1;
    });
    return out;
  }

  piece(id) {
    return id === this.size ? "<sep>" : this.inner.piece(id);
  }
}

const KINDS = {
  characters: Characters, bytes: Bytes, words: Words, subwords: Subwords, sentencepiece: ImportedPieces, wordpiece: WordPieces,
  "byte-level-bpe": ByteLevelPieces,
};

export function makeTokenizer(spec) {
  if (!KINDS[spec.kind]) throw new Error(`tokenizer: found the kind "${spec.kind}", expected one of ${Object.keys(KINDS).join(", ")}`);
  let made = new KINDS[spec.kind](spec);
  let size = (spec.tokens ?? spec.model.pieces).length;
  if (spec.tags?.length) {
    made = new Tagged(made, spec.tags, size);
    size += spec.tags.length;
  }
  return spec.separator ? new Pairs(made, size) : made;
}

// The characters that training had, where a tokenizer reads every character; else null.
export function knownCharacters(table) {
  if (!["subwords", "bytes", "byte-level-bpe"].includes(table.source.kind)) return null;
  const pieces = table.characters ?? (table.source.kind === "subwords" ? table.source.model.pieces.filter((piece) => !/^<0x[0-9A-F]{2}>$/.test(piece)).join("") : null);
  return pieces === null ? null : new Set([...pieces, " "]);
}
