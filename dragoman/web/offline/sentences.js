// Running text in sentences, as dragoman/data/sentences.py cuts it: [text, white space after it].

import { SPACE_RUNS, strip } from "./characters.js";

const ABBREVIATIONS = new Set(`
  mr mrs ms dr prof rev gen sen rep st jr sr vs etc e.g i.e cf fig figs eq eqs sec no nos vol pp p ca approx inc ltd
  co al ed eds dept univ jan feb mar apr jun jul aug sep sept oct nov dec
  z.b d.h u.a o.ä bzw usw ggf evtl bspw hr fr nr str abs art bd evtl inkl max min mio mrd s.o s.u vgl
  m mm mme mlle me ex p.ex env av apr bd chap éd
  sr sra dña dn ud uds pág págs núm ej`.match(/\S+/g));
const END = /(?<![.!?…])([.!?…]+["'”’»)\]]*)(\s+)|([。！？]+[」』”’）]*)(\s*)/gu;
const OPENING = /^["'“‘«([¿¡„]+/u;

export function splitSentences(text) {
  const sentences = [];
  let spaces = "";
  const close = () => {
    if (!spaces) return;
    const last = sentences.pop() ?? ["", ""];
    sentences.push([last[0], last[1] + spaces]);
    spaces = "";
  };
  for (const line of text.match(/[^\n]*\n|[^\n]+/g) ?? []) {
    const body = strip(line);
    const start = body ? line.indexOf(body) : line.length;
    spaces += line.slice(0, start);
    if (!body) continue;
    close();
    sentences.push(...sentencesOfLine(body));
    spaces += line.slice(start + body.length);
  }
  close();
  return sentences;
}

function sentencesOfLine(line) {
  const out = [];
  let start = 0;
  for (const match of line.matchAll(END)) {
    const mark = match[1] ?? match[3];
    const [end, after] = [match.index + mark.length, match.index + match[0].length];
    if (after === line.length || (match[1] && !endsSentence(line, match.index, after, mark))) continue;
    out.push([line.slice(start, end), line.slice(end, after)]);
    start = after;
  }
  return [...out, [line.slice(start), ""]];
}

function endsSentence(line, before, after, mark) {
  const following = line.slice(after).replace(OPENING, "");
  if (/^\p{Ll}/u.test(following)) return false;
  if (mark !== ".") return true;
  const word = (line.slice(0, before).split(SPACE_RUNS).filter(Boolean).at(-1) ?? "").replace(OPENING, "").replace(/["'“‘«([¿¡„]+$/u, "").toLowerCase();
  const initial = /^\p{L}$/u.test(word);
  const ordinal = /^\p{Nd}{1,2}$/u.test(word); // "am 3. Oktober"
  return !(ABBREVIATIONS.has(word) || initial || ordinal);
}
