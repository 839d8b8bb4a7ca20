// What pages with panels share: messages, copying, icons, words with their places, differences between texts.

import { el, percent } from "./core.js";

let timer = 0;

export function toast(text, bad = false) {
  const box = document.getElementById("toast");
  box.textContent = text;
  box.className = bad ? "shown wrong" : "shown";
  clearTimeout(timer);
  timer = setTimeout(() => { box.className = ""; }, bad ? 6000 : 1800);
}

export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch { // without a secure context browsers have no clipboard
    const area = el("textarea", { class: "hidden-visually" });
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
  toast("Copied");
}

export function icon(name) {
  const shapes = {
    copy: "M8 8V5.500A1.500 1.500 0 0 1 9.500 4h9A1.500 1.500 0 0 1 20 5.500v9a1.500 1.500 0 0 1-1.500 1.500H16M5.500 8h9A1.500 1.500 0 0 1 16 9.500v9a1.500 1.500 0 0 1-1.500 1.500h-9A1.500 1.500 0 0 1 4 18.500v-9A1.500 1.500 0 0 1 5.500 8z",
    swap: "M7 7h12l-3.500-3.500M17 17H5l3.500 3.500", close: "M6 6l12 12M18 6L6 18", eye: "M2.500 12S6 5.500 12 5.500 21.500 12 21.500 12 18 18.500 12 18.500 2.500 12 2.500 12zM12 9.200a2.800 2.800 0 1 1 0 5.600 2.800 2.800 0 0 1 0-5.600z",
    file: "M12 16V5m0 0L8 9m4-4l4 4M5 15v3.500A1.500 1.500 0 0 0 6.500 20h11a1.500 1.500 0 0 0 1.500-1.500V15", stop: "M7 7h10v10H7z",
  };
  const holder = el("span", { class: "icon", "aria-hidden": "true" });
  const picture = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  picture.setAttribute("viewBox", "0 0 24 24");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", shapes[name]);
  picture.append(path);
  holder.append(picture);
  return holder;
}

export function iconButton(name, label, click) {
  return el("button", { type: "button", class: "round", "aria-label": label, title: label, onclick: click }, icon(name));
}

export function later(milliseconds, action) {
  let waiting = 0;
  return (...values) => { clearTimeout(waiting); waiting = setTimeout(() => action(...values), milliseconds); };
}

// The words of an alignment (letters, for single words) with their places in a text; else words by spaces.
function placed(text, names) {
  const found = [];
  let end = 0;
  for (const name of names ?? []) {
    const first = text.indexOf(name, end);
    if (first < 0) break;
    found.push([first, name]);
    end = first + name.length;
  }
  return found.length && found.length === names.length ? found : [...text.matchAll(/\S+/g)].map((match) => [match.index, match[0]]);
}

// How sure a word is, as a class of style.
function level(sure) {
  if (sure === undefined || sure === null || sure >= 0.85) return "";
  return sure >= 0.5 ? "unsure" : "doubtful";
}

// For each word of a text whether another text has it too, in the same order: the longest common subsequence.
export function sharedWords(words, others) {
  const longest = Array.from({ length: others.length + 1 }, () => new Array(words.length + 1).fill(0));
  for (let i = others.length - 1; i >= 0; i -= 1) {
    for (let j = words.length - 1; j >= 0; j -= 1) {
      longest[i][j] = others[i] === words[j] ? longest[i + 1][j + 1] + 1 : Math.max(longest[i + 1][j], longest[i][j + 1]);
    }
  }
  let i = 0;
  return words.map((word, j) => {
    while (i < others.length && others[i] !== word && longest[i + 1][j] === longest[i][j]) i += 1;
    if (others[i] !== word) return false;
    i += 1;
    return true;
  });
}

// Words of an alternative that the translation does not have there stand out; of single words the letters that differ.
export function difference(text, other) {
  if (!/\s/.test(text.trim() + other.trim())) {
    const [mine, theirs] = [[...text], [...other]];
    let [start, end] = [0, 0];
    while (start < Math.min(mine.length, theirs.length) && mine[start] === theirs[start]) start += 1;
    while (end < Math.min(mine.length, theirs.length) - start && mine.at(-1 - end) === theirs.at(-1 - end)) end += 1;
    const stop = theirs.length - end;
    return [theirs.slice(0, start).join(""), el("b", {}, theirs.slice(start, stop).join("")), theirs.slice(stop).join("")];
  }
  const parts = other.split(/(\s+)/);
  const shared = sharedWords(parts.filter((part) => part.trim()), text.trim().split(/\s+/));
  return parts.map((part) => (!part.trim() || shared.shift() ? part : el("b", {}, part)));
}

// Mark some words of a sentence in the mirror behind a text area.
export function markWords(mirror, area, sentence, words) {
  mirror.replaceChildren();
  if (!sentence || !words.size) return;
  let place = 0;
  const text = area.value;
  for (const [index, [first, word]] of placed(sentence.source, sentence.source_words).entries()) {
    if (!words.has(index)) continue;
    const start = sentence.place + first;
    mirror.append(text.slice(place, start), el("mark", {}, word));
    place = start + word.length;
  }
  mirror.append(`${text.slice(place)}\n`);
  mirror.scrollTop = area.scrollTop;
}

// The words of a sentence as elements; hovering or focusing one marks its source.
export function linkedWords(sentence, mark, hint, choose) {
  const links = new Map();
  for (const [from, to] of sentence.alignment ?? []) links.set(to, (links.get(to) ?? new Set()).add(from));
  const parts = [];
  const text = sentence.text ?? "";
  let end = 0;
  for (const [number, [first, part]] of placed(text, sentence.target_words).entries()) {
    parts.push(text.slice(end, first));
    end = first + part.length;
    const sure = sentence.word_confidences?.[number];
    const from = links.get(number) ?? new Set();
    const names = [...from].map((one) => sentence.source_words?.[one]).filter(Boolean);
    const about = [names.length ? `${part} ← ${names.join(" ")}` : part, sure === undefined || sure === null ? "" : `${percent(sure)} sure`].filter(Boolean).join(" · ");
    const enter = () => { mark(sentence, from); hint.textContent = about; };
    const leave = () => mark(null, new Set());
    parts.push(el("span", { class: `w ${level(sure)}`, tabindex: "0", "aria-label": about, onpointerenter: enter, onpointerleave: leave, onfocus: enter, onblur: leave, onclick: choose }, part));
  }
  return [...parts, text.slice(end)];
}

export function clipped(text) {
  const letters = [...text];
  return letters.length > 40 ? `${letters.slice(0, 39).join("")}…` : text;
}
