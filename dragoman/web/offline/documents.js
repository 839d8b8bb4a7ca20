// Files whose text is translated and whose layout stays: plain text, subtitles, Markdown.

import { splitSentences } from "./sentences.js";

const TIMES = /^\s*[\d:.,]+\s*-->\s*[\d:.,]+/;
const FENCE = /^\s*(`{3,}|~{3,})/;
const MARKERS = /^(?:\s*(?:#{1,6}\s+|[-*+]\s+(?:\[[ xX]\]\s+)?|\d+[.)]\s+|>\s?))*\s*/;
const MARKUP = /^\s*(?:[-*_=|:\s]*|!?\[[^\]]*\]:.*|<[^>]*>)$/; // rules, tables' lines, references, tags alone

const FORMATS = { txt: plainUnits, md: markdownUnits, markdown: markdownUnits, srt: subtitleUnits, vtt: subtitleUnits };
export const SUFFIXES = Object.keys(FORMATS).map((name) => `.${name}`);

// The parts of a file: [text, whether it is translated]; joined they are the file.
export function unitsOf(name, content) {
  const suffix = name.toLowerCase().split(".").pop();
  if (!FORMATS[suffix]) throw new Error(`${name}: found a file of another kind, expected one of ${SUFFIXES.join(", ")}`);
  return FORMATS[suffix](content);
}

function plainUnits(text) {
  return splitSentences(text).flatMap(([sentence, space]) => [[sentence, true], [space, false]]).filter(([part]) => part);
}

function linesOf(text) {
  return text.match(/[^\n]*\n|[^\n]+/g) ?? [];
}

function markdownUnits(text) {
  const units = [];
  let fence = "";
  let front = false;
  linesOf(text).forEach((line, number) => {
    const mark = FENCE.exec(line)?.[1];
    const rule = line.trim() === "---";
    if (number === 0 && rule) front = true;
    else if (front && rule) front = false;
    else if (mark && !fence) fence = mark;
    else if (mark && fence && mark.startsWith(fence)) fence = "";
    else if (!front && !fence && !MARKUP.test(line)) {
      const markers = MARKERS.exec(line)[0];
      units.push([markers, false], ...plainUnits(line.slice(markers.length)));
      return;
    }
    units.push([line, false]);
  });
  return units.filter(([part]) => part);
}

// A cue is one text, whatever lines it has; numbers, times, notes and styles stay.
function subtitleUnits(text) {
  const units = [];
  let cue = false;
  let words = [];
  const flush = () => {
    if (words.length) units.push([words.join(" "), true], ["\n", false]);
    words = [];
  };
  for (const line of linesOf(text)) {
    if (cue && line.trim()) {
      words.push(line.trim());
      continue;
    }
    flush();
    cue = TIMES.test(line);
    units.push([line, false]);
  }
  flush();
  return units;
}
