// Classes of characters as Python has them, where JavaScript's regular expressions differ.

const WHITE = "\\t-\\r\\x1c-\\x20\\x85\\xa0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000";
export const SPACES = new RegExp(`^[${WHITE}]+$`, "u"); // what str.isspace() calls white space
export const RUNS = new RegExp(`[^${WHITE}]+`, "gu");
export const RUN_OR_SPACE = new RegExp(`[^${WHITE}]+|[${WHITE}]`, "gu");
export const EDGES = new RegExp(`^[${WHITE}]+|[${WHITE}]+$`, "gu");
export const SENTENCE_ENDS = new RegExp(`[.!?…]['")\\]»”]*[${WHITE}]+|[。！？][${WHITE}]*`, "gu");
export const SPACE_RUNS = new RegExp(`[${WHITE}]+`, "gu");
export const REPLACEMENT = "\ufffd";

// The text without white space at its ends, as str.strip() leaves it.
export function strip(text) {
  return text.replace(EDGES, "");
}

// A lone surrogate is no character.
export function wellFormed(text) {
  return text.replace(/\p{Surrogate}/gu, REPLACEMENT);
}

// Bytes that are no UTF-8 become U+FFFD as in Python: one for each longest part of a character.
export function utf8(bytes) {
  return new TextDecoder("utf-8", { ignoreBOM: true }).decode(Uint8Array.from(bytes));
}
