// SentencePiece: normalise a text, cut it into pieces by BPE or a unigram model, and put pieces together again.

import { REPLACEMENT, wellFormed } from "./characters.js";

const MARK = "\u2581"; // a space
const UNKNOWN_PENALTY = 10;
const [NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE, UNUSED] = [1, 2, 3, 4, 6, 5];

export class SentencePieceModel {
  // `spec`: pieces, scores, types, algorithm and the settings of the normaliser.
  constructor(spec) {
    this.spec = { ...spec, scores: Float32Array.from(spec.scores) };
    this.ids = new Map(); // of pieces that a text may be cut into
    this.bytes = new Map();
    this.byteOf = new Map(); // id → byte
    let [low, high] = [Infinity, -Infinity];
    this.longest = 0;
    this.unknown = 0;
    const symbols = [];
    spec.pieces.forEach((piece, id) => {
      const type = spec.types[id];
      if (type === UNKNOWN) this.unknown = id;
      else if (type === BYTE) {
        const byte = Number.parseInt(piece.slice(3, 5), 16);
        this.bytes.set(byte, id);
        this.byteOf.set(id, byte);
      } else if (type !== CONTROL) {
        this.ids.set(piece, id);
        this.longest = Math.max(this.longest, piece.length);
        if (type === USER_DEFINED) symbols.push(piece);
        if (type === NORMAL) {
          low = Math.min(low, this.spec.scores[id]);
          high = Math.max(high, this.spec.scores[id]);
        }
      }
    });
    this.low = low;
    this.high = high;
    this.symbols = symbols.sort((left, right) => right.length - left.length);
    this.map = spec.charsmap ? new CharacterMap(spec.charsmap) : null;
  }

  // The pieces of a text: [piece, id, start, end] with places in the text.
  encode(text) {
    const { characters, places } = this.normalise(wellFormed(text));
    if (!characters.length) return [];
    const cuts = this.spec.algorithm === "unigram" ? this.unigram(characters) : this.bpe(characters);
    const out = [];
    let unknownBefore = false;
    for (const [first, last] of cuts) {
      const piece = characters.slice(first, last).join("");
      const id = this.ids.get(piece) ?? this.unknown;
      const [start, end] = [places[first], places[last]];
      const isUnknown = id === this.unknown;
      if (isUnknown && this.spec.byte_fallback) {
        const bytes = [...new TextEncoder().encode(piece)];
        // The last byte of a character covers it.
        bytes.forEach((byte, number) => out.push([this.spec.pieces[this.bytes.get(byte)], this.bytes.get(byte), start, number + 1 < bytes.length ? start : end]));
      } else if (isUnknown && unknownBefore) {
        const last = out.at(-1);
        last[0] += piece;
        last[3] = end;
      } else out.push([piece, id, start, end]);
      unknownBefore = isUnknown && !this.spec.byte_fallback;
    }
    return out;
  }

  // The characters of the normalised text, and where each begins in the text; one place more for the end.
  normalise(text) {
    const { add_dummy_prefix: prefix, remove_extra_whitespaces: squeeze, whitespace_as_suffix: suffix } = this.spec;
    const characters = [];
    const places = [];
    let place = 0;
    const put = (part, where) => { for (const one of part) { characters.push(one === " " ? MARK : one); places.push(where); } };
    if (squeeze) {
      while (place < text.length) {
        const [part, size] = this.next(text, place);
        if (part !== " ") break;
        place += size;
      }
    }
    if (place === text.length) return { characters, places };
    if (prefix && !suffix) put(" ", place);
    let afterSpace = squeeze;
    while (place < text.length) {
      let [part, size] = this.next(text, place);
      while (afterSpace && part.startsWith(" ")) part = part.slice(1);
      if (part) {
        put(part, place);
        afterSpace = part.endsWith(" ");
      }
      place += size;
      if (!squeeze) afterSpace = false;
    }
    let end = place;
    while (squeeze && characters.at(-1) === MARK) {
      characters.pop();
      end = places.pop();
    }
    if (prefix && suffix) put(" ", end);
    places.push(end);
    return { characters, places };
  }

  // What the text at a place becomes, and how much of the text that is.
  next(text, place) {
    const symbol = this.symbols.find((one) => text.startsWith(one, place));
    if (symbol) return [symbol, symbol.length];
    const mapped = this.map?.longest(text, place);
    if (mapped) return mapped;
    const character = String.fromCodePoint(text.codePointAt(place));
    return [character, character.length];
  }

  // Merge the neighbours whose piece has the best score, the leftmost of equal ones, until no piece is left to make.
  bpe(characters) {
    const count = characters.length;
    const pieces = [...characters];
    const after = Int32Array.from({ length: count }, (_, index) => (index + 1 < count ? index + 1 : -1));
    const before = Int32Array.from({ length: count }, (_, index) => index - 1);
    const heap = new Heap((one, other) => one.score > other.score || (one.score === other.score && one.left < other.left));
    const offer = (left, right) => {
      if (left < 0 || right < 0) return;
      const piece = pieces[left] + pieces[right];
      const id = piece.length <= this.longest ? this.ids.get(piece) : undefined;
      if (id !== undefined) heap.push({ left, right, piece, score: this.spec.scores[id] });
    };
    for (let left = 0; left + 1 < count; left += 1) offer(left, left + 1);
    for (let best = heap.pop(); best; best = heap.pop()) {
      const { left, right, piece } = best;
      // One of the two was merged since.
      if (!pieces[left] || !pieces[right] || after[left] !== right || pieces[left] + pieces[right] !== piece) continue;
      pieces[left] = piece;
      pieces[right] = "";
      after[left] = after[right];
      if (after[left] >= 0) before[after[left]] = left;
      offer(before[left], left);
      offer(left, after[left]);
    }
    const cuts = [];
    for (let at = 0; at >= 0; at = after[at]) cuts.push([at, after[at] >= 0 ? after[at] : count]);
    return cuts;
  }

  // The pieces of highest probability (Viterbi), in the single precision of SentencePiece.
  unigram(characters) {
    const count = characters.length;
    const best = new Float32Array(count + 1);
    const from = new Int32Array(count + 1).fill(-1);
    const unknown = Math.fround(this.low - UNKNOWN_PENALTY);
    for (let start = 0; start < count; start += 1) {
      const reach = (end, score) => {
        const total = Math.fround(score + best[start]);
        if (from[end] < 0 || total > best[end]) {
          best[end] = total;
          from[end] = start;
        }
      };
      let piece = "";
      let single = false;
      for (let end = start + 1; end <= count; end += 1) {
        piece += characters[end - 1];
        if (piece.length > this.longest) break;
        const id = this.ids.get(piece);
        if (id === undefined || this.spec.types[id] === UNUSED) continue;
        const own = this.spec.types[id] === USER_DEFINED;
        reach(end, own ? Math.fround((end - start) * this.high) - 0.1 : this.spec.scores[id]);
        if (end === start + 1) single = true;
      }
      if (!single) reach(start + 1, unknown);
    }
    const cuts = [];
    for (let end = count; end > 0; end = from[end]) cuts.unshift([from[end], end]);
    return cuts;
  }

  // The text of pieces: [piece, id], id undefined for one that the model does not have.
  decode(pieces) {
    const { add_dummy_prefix: prefix, remove_extra_whitespaces: squeeze, types } = this.spec;
    let text = "";
    let atStart = true;
    let startSeen = false;
    let bytes = [];
    const flush = () => { text += decodeBytes(bytes); bytes = []; };
    for (const [piece, id] of pieces) {
      const type = types[id] ?? UNKNOWN;
      if (type === BYTE) { bytes.push(this.byteOf.get(id)); continue; }
      flush();
      if (startSeen || text) atStart = false;
      startSeen = false;
      if (type === CONTROL) continue;
      if (type === UNKNOWN) { text += this.spec.pieces[this.unknown] === piece ? this.spec.unk_surface : piece; continue; }
      let shown = piece;
      if (atStart && (prefix || squeeze) && shown.startsWith(MARK)) {
        shown = shown.slice(1);
        startSeen = !squeeze;
      }
      text += shown.replaceAll(MARK, " ");
    }
    flush();
    return text;
  }
}

// UTF-8 as SentencePiece reads it: every byte that is not part of a character becomes U+FFFD.
function decodeBytes(bytes) {
  let text = "";
  const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  for (let at = 0; at < bytes.length;) {
    const size = bytes[at] < 0x80 ? 1 : bytes[at] < 0xe0 ? 2 : bytes[at] < 0xf0 ? 3 : 4;
    let character = "";
    try {
      character = decoder.decode(Uint8Array.from(bytes.slice(at, at + size)));
    } catch { /* no character */ }
    text += character || REPLACEMENT;
    at += character ? size : 1;
  }
  return text;
}

// The table of a normaliser (NFKC and the like): a double array of UTF-8 prefixes, and the texts they become.
class CharacterMap {
  constructor(base64) {
    const bytes = Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
    const size = new DataView(bytes.buffer).getUint32(0, true);
    this.units = new Uint32Array(bytes.slice(4, 4 + size).buffer);
    this.texts = bytes.subarray(4 + size);
  }

  longest(text, place) {
    const offset = (unit) => (unit >>> 10) << ((unit & 0x200) >>> 6);
    let found = null;
    let node = offset(this.units[0]);
    let at = place;
    while (at < text.length) {
      const character = String.fromCodePoint(text.codePointAt(at));
      for (const byte of new TextEncoder().encode(character)) {
        node ^= byte;
        const unit = this.units[node];
        if ((unit & 0x800000ff) >>> 0 !== byte) return found;
        node ^= offset(unit);
        // The last byte of a character alone can end a prefix: prefixes are whole characters.
        if ((unit >>> 8) & 1) found = [this.text(this.units[node] & 0x7fffffff), at + character.length - place];
      }
      at += character.length;
    }
    return found;
  }

  text(start) {
    return new TextDecoder("utf-8", { ignoreBOM: true }).decode(this.texts.subarray(start, this.texts.indexOf(0, start)));
  }
}

export class Heap {
  constructor(precedes) {
    this.precedes = precedes;
    this.items = [];
  }

  push(item) {
    const { items } = this;
    let at = items.push(item) - 1;
    while (at > 0) {
      const parent = (at - 1) >> 1;
      if (!this.precedes(items[at], items[parent])) break;
      [items[at], items[parent]] = [items[parent], items[at]];
      at = parent;
    }
  }

  pop() {
    const { items } = this;
    const top = items[0];
    const last = items.pop();
    if (items.length) {
      items[0] = last;
      for (let at = 0; ;) {
        let first = at;
        for (const child of [2 * at + 1, 2 * at + 2]) if (child < items.length && this.precedes(items[child], items[first])) first = child;
        if (first === at) break;
        [items[at], items[first]] = [items[first], items[at]];
        at = first;
      }
    }
    return top;
  }
}
