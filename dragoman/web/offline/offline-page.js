// The page of an exported model: type and see, which word comes from where, alternatives, files. Nothing leaves the browser.

import { drawHeads } from "./attention-view.js";
import { el, percent, put, redraw } from "./core.js";
import { clipped, copy, difference, icon, iconButton, later, linkedWords, markWords, toast } from "./panels.js";
import { SUFFIXES, unitsOf } from "./documents.js";
import { configured, load } from "./dragoman.js";
import { splitSentences } from "./sentences.js";

const DELAY = 180;
const ALTERNATIVES = 4;
const MOST_LABELS = 6; // shown of a classifier
const embedded = document.getElementById("files");

// The files of a page that has everything inside: each is compressed and written as base64.
async function readEmbedded(name) {
  const text = JSON.parse(embedded.textContent)[name];
  if (!text) throw new Error(`${name}: missing in this page; export the run anew`);
  const bytes = Uint8Array.fromBase64?.(text) ?? Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function open() {
  if (!embedded) return load("./model/");
  const ort = configured(globalThis.embeddedRuntime, null, await readEmbedded("runtime.wasm"));
  return load("./", { ort, read: readEmbedded });
}

const ready = open();
// For scripts, from the first moment on: `await window.dragoman.translate("Hello!", { beam: 5, nBest: 3 })`.
window.dragoman = {
  ready,
  load,
  translate: async (text, options) => (await ready).translate(text, options),
  translateAll: async (texts, options) => (await ready).translateAll(texts, options),
  label: async (text) => (await ready).label(text),
  labelAll: async (texts, options) => (await ready).labelAll(texts, options),
};

function theme() {
  const stored = () => { try { return localStorage.getItem("dragoman-theme"); } catch { return null; } };
  if (stored()) document.documentElement.dataset.theme = stored();
  return el("button", { type: "button", class: "round", "aria-label": "Switch between light and dark", onclick: () => {
    const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    try { localStorage.setItem("dragoman-theme", document.documentElement.dataset.theme); } catch { /* not allowed here */ }
  } }, "◐");
}

function frame(main) {
  const name = document.title;
  document.body.append(
    el("a", { class: "skip", href: "#source" }, "Skip to the text"),
    el("header", { class: "top" }, el("div", { class: "bar" }, el("span", { class: "brand" }, el("img", { src: document.querySelector("link[rel=icon]").href, alt: "", width: 28, height: 28 }), el("span", {}, name)),
      el("nav", { "aria-label": "page" }, theme()))),
    main, el("div", { id: "toast", role: "status", "aria-live": "polite" }));
}

function translatePage(main, model) {
  const { table } = model;
  const state = { tag: model.tags[0], beam: table.search.beam };
  const mirror = el("div", { class: "mirror", "aria-hidden": "true" });
  const area = el("textarea", { class: "text", id: "source", dir: "auto", spellcheck: "false", placeholder: "Type or paste text, or drop a file", "aria-label": "Source text" });
  area.addEventListener("scroll", () => { mirror.scrollTop = area.scrollTop; });
  const unknown = el("p", { class: "small unknown", "aria-live": "polite" });
  const count = el("span", { class: "small soft" });
  const picker = el("input", { type: "file", class: "hidden-visually", tabindex: "-1", "aria-label": "File to translate", accept: SUFFIXES.join(","), onchange: () => picker.files[0] && translateFile(picker.files[0]) });
  const clear = iconButton("close", "Clear the text", () => { area.value = ""; changed(); area.focus(); });
  const body = el("div", { class: "output", dir: "auto", role: "group", "aria-label": "Translation", "aria-live": "polite" });
  const hint = el("p", { class: "hint small soft" });
  const others = el("div", { class: "others" });
  const foot = el("div", { class: "foot" }, hint, searchSelect(), iconButton("copy", "Copy the translation", () => copy(body.textContent.trimEnd())));
  const result = el("section", { class: "panel result", "aria-label": "Output" }, body, others, foot);
  const heads = el("div", {});
  const inside = el("details", { class: "fold", hidden: true, ontoggle: () => look() }, el("summary", {}, "Attention: where the model looks while it writes"), heads);
  let looked = null; // the attention of the chosen sentence
  const look = () => {
    inside.hidden = !looked;
    if (looked && inside.open) redraw(heads, () => drawHeads(looked));
  };
  const mark = (sentence, words) => markWords(mirror, area, sentence, words);
  let running = null;

  function searchSelect() {
    const widths = [...new Set([1, table.search.beam])];
    const name = (width) => (width === 1 ? "greedy" : `beam ${width}`);
    const box = el("select", { class: "quiet", "aria-label": "Search", title: "A wider beam is slower and often better", onchange: () => { state.beam = Number(box.value); ask(); } },
      widths.map((width) => el("option", { value: width, selected: width === state.beam }, name(width))));
    return widths.length > 1 ? box : null;
  }

  async function ask() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    const text = area.value;
    unknown.textContent = "";
    if (!text.trim()) { empty(); return; }
    result.classList.add("busy");
    try {
      const sentences = splitSentences(text);
      const real = sentences.filter(([sentence]) => sentence);
      const options = { beam: Math.max(state.beam, 1), nBest: Math.min(ALTERNATIVES, state.beam), tag: state.tag, signal };
      const outputs = await model.translateAll(real.map(([sentence]) => sentence), options);
      if (signal.aborted) return;
      show(sentences, outputs);
    } catch (error) {
      if (error.name !== "AbortError") fail(error);
    } finally {
      if (!signal.aborted) result.classList.remove("busy");
    }
  }

  function show(sentences, outputs) {
    let [place, number] = [0, 0];
    put(body);
    put(others);
    const shown = [];
    for (const [source, space] of sentences) {
      const output = source ? outputs[number++] : null;
      if (output) {
        const sentence = { source, place, text: output.text, alignment: output.alignment, source_words: output.sourceWords, target_words: output.targetWords, word_confidences: output.wordConfidences, attention: output.attention, alternatives: output.alternatives };
        shown.push(sentence);
        body.append(...linkedWords(sentence, mark, hint, () => choose(sentence, shown.length > 1)));
      }
      body.append(space);
      place += source.length + space.length;
    }
    foot.style.visibility = "visible";
    hint.textContent = outputs.some((one) => one.alignment?.length) ? "Hover a word to see where it comes from and how probable it is." : "";
    if (shown.length) choose(shown[0], shown.length > 1);
    unknown.textContent = unknownText(outputs);
  }

  function choose(sentence, several) {
    looked = sentence.attention ?? null;
    look();
    const all = sentence.alternatives.filter((one) => one.text && one.text !== sentence.text);
    put(others, all.length > 0 && el("h3", { class: "small soft" }, several ? ["Alternatives for ", el("bdi", {}, clipped(sentence.source)), " · click another sentence for its own"] : "Alternatives"),
      el("ul", { class: "plain" }, all.map((one) => el("li", {}, el("button", { type: "button", class: "entry", title: "Copy", dir: "auto", onclick: () => copy(one.text) }, ...difference(sentence.text, one.text))))));
  }

  function empty() {
    looked = null;
    look();
    put(others);
    put(body, el("span", { class: "soft" }, "Translation"));
    foot.style.visibility = "hidden";
    result.classList.remove("busy");
  }

  function fail(error) {
    put(others);
    put(body, el("p", { class: "bad" }, error.message));
  }

  async function translateFile(file) {
    picker.value = "";
    try {
      const units = unitsOf(file.name, await file.text());
      const texts = units.filter(([, read]) => read).map(([text]) => text);
      const progress = (done, all) => toast(`${file.name}: ${percent(done / Math.max(1, all))}`);
      toast(`Translating ${file.name} …`);
      const outputs = await model.translateAll(texts, { beam: state.beam, tag: state.tag, progress });
      let number = 0;
      const text = units.map(([part, read]) => (read ? outputs[number++].text : part)).join("");
      const link = el("a", { href: `data:text/plain;charset=utf-8,${encodeURIComponent(text)}`, download: file.name.replace(/(\.\w+)$/, ".translated$1") });
      document.body.append(link);
      link.click();
      link.remove();
      toast(`${file.name} is translated`);
    } catch (error) {
      toast(error.message, true);
    }
  }

  const soon = later(DELAY, ask);
  function changed() {
    mark(null, new Set());
    count.textContent = area.value ? `${[...area.value].length.toLocaleString("en")} characters` : "";
    clear.style.visibility = area.value ? "visible" : "hidden";
    soon();
  }
  area.addEventListener("input", changed);
  document.addEventListener("dragover", (event) => event.preventDefault());
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    const file = event.dataTransfer?.files?.[0];
    if (file) translateFile(file);
  });
  const tags = model.tags.length > 1 && el("select", { class: "language", "aria-label": "Target language", onchange: (event) => { state.tag = event.target.value; ask(); } }, model.tags.map((tag) => el("option", { value: tag }, tag)));
  put(main,
    el("div", { class: "languages" }, el("span", { class: "language" }, table.languages[0] || "Text"), el("span", { class: "arrow", "aria-hidden": "true" }, "→"), tags || el("span", { class: "language" }, table.languages[1] || "Output")),
    el("div", { class: "panels" },
      el("section", { class: "panel", "aria-label": "Source" }, el("div", { class: "edit" }, mirror, area, clear), unknown, el("div", { class: "foot" }, count, el("button", { type: "button", class: "quiet", onclick: () => picker.click() }, icon("file"), "Translate a file"), picker)),
      result),
    el("div", { class: "folds" }, inside), about(table));
  empty();
  changed();
  area.focus();
}

// A classifier or tagger: every line is an input.
function labelPage(main, model) {
  const area = el("textarea", { class: "text", id: "source", dir: "auto", spellcheck: "false", placeholder: "Type or paste text, one input a line", "aria-label": "Text" });
  const unknown = el("p", { class: "small unknown", "aria-live": "polite" });
  const body = el("div", { class: "output", role: "group", "aria-label": "Labels", "aria-live": "polite" });
  let running = null;

  async function ask() {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    const lines = area.value.split("\n").filter((line) => line.trim());
    unknown.textContent = "";
    if (!lines.length) { put(body, el("span", { class: "soft" }, model.tagger ? "Tags" : "Labels")); return; }
    try {
      const outputs = await model.labelAll(lines, { signal });
      if (signal.aborted) return;
      put(body, outputs.map((output, number) => (model.tagger ? taggedWords(output) : labelBars(lines[number], output))));
      unknown.textContent = unknownText(outputs);
    } catch (error) {
      if (error.name !== "AbortError") put(body, el("p", { class: "bad" }, error.message));
    }
  }

  area.addEventListener("input", later(DELAY, ask));
  put(main, el("div", { class: "panels" }, el("section", { class: "panel", "aria-label": "Source" }, el("div", { class: "edit" }, area), unknown), el("section", { class: "panel result", "aria-label": "Output" }, body)), about(model.table));
  ask();
  area.focus();
}

function taggedWords({ words, tags, probabilities }) {
  return el("p", { class: "tagged", dir: "auto" }, words.map((word, number) => el("span", { class: "w", title: `${tags[number]}: ${percent(probabilities[number][tags[number]])}` }, el("bdi", {}, word), el("small", { class: "soft" }, tags[number]))));
}

function labelBars(line, { probabilities }) {
  const rows = Object.entries(probabilities).sort((left, right) => right[1] - left[1]).slice(0, MOST_LABELS);
  return el("div", { class: "labelled" }, el("p", { class: "small soft", dir: "auto" }, clipped(line)),
    rows.map(([label, share]) => el("div", { class: "share" }, el("span", {}, label), el("meter", { min: 0, max: 1, value: share, "aria-label": label }), el("span", { class: "small soft" }, percent(share)))));
}

function unknownText(outputs) {
  const strange = [...new Set(outputs.flatMap((one) => one.unknown))];
  const names = strange.slice(0, 12).map((one) => (one.trim() ? `“${one}”` : "space")).join(", ");
  return strange.length ? `Not in the training data: ${names}${strange.length > 12 ? ", …" : ""}. Check the output.` : "";
}

function about(table) {
  const rows = table.about.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]);
  return el("div", { class: "folds" }, el("details", { class: "fold" }, el("summary", {}, "About this model"),
    el("p", { class: "small soft" }, "The model runs in this browser. No text leaves it."), el("dl", { class: "text-pair small" }, rows)));
}

const main = el("main", { class: "shell", id: "work" }, el("p", { class: "waiting", role: "status" }, "Loading the model …"));
frame(main);
ready.then((model) => (model.table.task === "translate" ? translatePage : labelPage)(main, model), (error) => put(main, el("p", { class: "notice bad", role: "alert" }, error.message)));
if (!embedded && navigator.serviceWorker && isSecureContext) navigator.serviceWorker.register("./service-worker.js").catch(() => { /* the page works without */ });
