// Translate as you type: words linked to their source, alternatives, terminology, two models side by side, files.

import { el } from "/web/modules/core.js";
import { call, upload } from "/static/api.js";
import { clipped, copy, difference, icon, iconButton, later, linkedWords, markWords, toast } from "/web/modules/panels.js";
import { codeBox, historyBox, remember, unknownText } from "/static/parts.js";
import { suggestButton } from "/static/suggest.js";

const DELAY = 220;
const EXAMPLES = "dragoman-text";

export function translateView(root, model, models, change) {
  const translators = models.filter((one) => one.task === "translate");
  const reverse = translators.find((one) => one.source?.code === model.targets[0]?.code && one.targets.some((target) => target.code === model.source?.code) && one !== model);
  const state = { model, tag: model.tags[0] ?? "", terms: [], other: "", text: sessionStorage.getItem(EXAMPLES) ?? "" };
  const outputs = [outputPanel(state, model)];

  // --- the source: a text area over a mirror that marks words
  const mirror = el("div", { class: "mirror", "aria-hidden": "true" });
  const area = el("textarea", { class: "text", id: "source", dir: "auto", spellcheck: "false", autofocus: true, placeholder: "Type or paste text", "aria-label": `Text in ${model.source?.name ?? "the source language"}` });
  area.value = state.text;
  area.addEventListener("scroll", () => { mirror.scrollTop = area.scrollTop; });
  const count = el("span", { class: "small soft", "aria-live": "off" });
  const unknown = el("p", { class: "small unknown", "aria-live": "polite" });
  const clear = iconButton("close", "Clear the text", () => { area.value = ""; changed(); area.focus(); });
  const filePicker = el("input", { type: "file", class: "hidden-visually", "aria-label": "File to translate", accept: ".txt,.md,.html,.htm,.srt,.vtt,.po,.xlf,.xliff,.tmx,.docx,.pptx,.odt,.odp,.epub", onchange: () => filePicker.files[0] && translateFile(filePicker.files[0]) });
  const fileButton = el("button", { type: "button", class: "quiet", onclick: () => filePicker.click() }, icon("file"), "Translate a file");

  const mark = (sentence, words) => markWords(mirror, area, sentence, words);

  // --- requests
  let running = null;
  const ask = async () => {
    running?.abort();
    running = new AbortController();
    const { signal } = running;
    const text = area.value;
    sessionStorage.setItem(EXAMPLES, text);
    unknown.textContent = "";
    if (!text.trim()) { for (const one of outputs) one.show(null); return; }
    for (const one of outputs) one.busy(true);
    await Promise.all(outputs.map(async (one) => {
      const body = { model: one.model.id, input: text, split: true, n_best: Math.min(4, Math.max(one.model.beam ?? 4, 4)), alignment: true, checks: Boolean(one.model.source && one.model.source.code !== "und") };
      if (one.model.tags.length) body.tag = one.model.tags.includes(state.tag) ? state.tag : one.model.tags[0];
      const terms = state.terms.filter(([from, to]) => from.trim() && to.trim());
      if (terms.length) body.terminology = Object.fromEntries(terms.map(([from, to]) => [from.trim(), to.trim()]));
      try {
        const data = await call("/v1/predict", body, { signal, remember: one === outputs[0] });
        one.show(data.outputs[0], mark);
        if (one === outputs[0]) { unknown.textContent = unknownText(data.outputs[0]); remember({ model: model.id, input: text, output: data.outputs[0].text }); code.draw(); past.draw(); }
      } catch (error) {
        if (error.name !== "AbortError") one.fail(error);
      } finally {
        if (!signal.aborted) one.busy(false);
      }
    }));
  };
  const soon = later(DELAY, ask);
  const changed = () => {
    mark(null, new Set());
    count.textContent = area.value ? `${[...area.value].length.toLocaleString("en")} characters` : "";
    clear.style.visibility = area.value ? "visible" : "hidden";
    soon();
  };
  area.addEventListener("input", changed);

  async function translateFile(file) {
    toast(`Translating ${file.name} …`);
    try {
      const data = await upload("/translate_file", { file, source: model.source.code, target: state.tag || model.targets[0].code });
      const link = el("a", { href: new URL(data.translatedFileUrl).pathname, download: "" }, "download");
      document.body.append(link);
      link.click();
      link.remove();
      toast(`${file.name} is translated`);
      code.draw();
    } catch (error) {
      toast(error.message, true);
    }
    filePicker.value = "";
  }
  const drop = (event) => {
    const file = event.dataTransfer?.files?.[0];
    if (!file) return;
    event.preventDefault();
    translateFile(file);
  };

  // --- languages
  const languages = el("div", { class: "languages" },
    el("span", { class: "language" }, model.source?.code === "und" ? "Text" : model.source.name),
    reverse ? iconButton("swap", `Translate from ${reverse.source.name} instead`, () => {
      const text = outputs[0].text();
      if (text) sessionStorage.setItem(EXAMPLES, text);
      change(reverse.id);
    }) : el("span", { class: "arrow", "aria-hidden": "true" }, "→"),
    model.tags.length > 1 ? tagSelect(model, state, ask) : el("span", { class: "language" }, model.targets[0].code === "und" ? "Output" : model.targets[0].name));

  // --- terminology
  const rows = el("div", { class: "terms" });
  const addRow = (from = "", to = "") => {
    const pair = [from, to];
    state.terms.push(pair);
    const field = (index, label) => el("input", { class: "field", value: pair[index], dir: "auto", placeholder: label, "aria-label": label, oninput: (event) => {
      pair[index] = event.target.value;
      localStorage.setItem(`dragoman-terms-${model.id}`, JSON.stringify(state.terms.filter(([left, right]) => left || right)));
      if (pair === state.terms.at(-1) && pair[0]) addRow();
      soon();
    } });
    const row = el("div", { class: "term" }, field(0, "source term"), el("span", { "aria-hidden": "true" }, "→"), field(1, "translation"),
      iconButton("close", "Remove this term", () => { state.terms.splice(state.terms.indexOf(pair), 1); row.remove(); if (!state.terms.length) addRow(); soon(); }));
    rows.append(row);
  };
  let saved = [];
  try { saved = JSON.parse(localStorage.getItem(`dragoman-terms-${model.id}`) ?? "[]"); } catch { /* none */ }
  for (const [from, to] of saved) addRow(from, to);
  addRow();
  const terminology = el("details", { class: "fold", open: saved.length > 0 }, el("summary", {}, "Terminology"),
    el("p", { class: "small soft" }, "If the text has a term on the left, the translation has the one on the right."), rows);

  // --- a second model
  const comparable = translators.filter((one) => one !== model && (one.source?.code === model.source?.code || one.source?.code === "und"));
  const compare = comparable.length ? el("label", { class: "compare small" }, "Compare with ", el("select", { onchange: (event) => {
    state.other = event.target.value;
    const other = translators.find((one) => one.id === state.other);
    outputs.splice(1);
    if (other) outputs.push(outputPanel(state, other));
    panels.classList.toggle("three", outputs.length > 1);
    for (const one of outputs) one.name(outputs.length > 1);
    panels.replaceChildren(source, ...outputs.map((one) => one.node));
    ask();
  } }, el("option", { value: "" }, "no other model"), comparable.map((one) => el("option", { value: one.id }, one.id)))) : null;

  const code = codeBox();
  const past = historyBox((entry) => {
    sessionStorage.setItem(EXAMPLES, entry.input);
    if (entry.model !== model.id && models.some((one) => one.id === entry.model)) { change(entry.model); return; }
    area.value = entry.input;
    changed();
  });
  const source = el("section", { class: "panel", "aria-label": "Source" }, el("div", { class: "edit" }, mirror, area, clear), unknown, el("div", { class: "foot" }, count, fileButton, filePicker));
  const panels = el("div", { class: "panels" }, source, ...outputs.map((one) => one.node));
  root.replaceChildren(languages, panels, compare ?? "", el("div", { class: "folds" }, terminology, past.node, code.node));
  root.addEventListener("dragover", prevent);
  root.addEventListener("drop", drop);
  changed();
  return () => { running?.abort(); root.removeEventListener("dragover", prevent); root.removeEventListener("drop", drop); };
}

function prevent(event) {
  event.preventDefault();
}

function tagSelect(model, state, ask) {
  return el("select", { class: "language", "aria-label": "Target language", onchange: (event) => { state.tag = event.target.value; ask(); } },
    model.targets.map((one) => el("option", { value: one.code }, one.name)));
}

// One output: words that point to their source, alternatives of the chosen sentence, tools.
function outputPanel(state, model) {
  const body = el("div", { class: "output", dir: "auto", role: "group", "aria-label": `Translation by ${model.id}`, "aria-live": "polite" });
  const hint = el("p", { class: "hint small soft" });
  const others = el("div", { class: "others" });
  const findings = el("ul", { class: "plain small findings", "aria-label": "Findings" });
  const look = el("a", { class: "quiet", target: "_blank", rel: "noopener" }, icon("eye"), "Look inside");
  const copyButton = iconButton("copy", "Copy the translation", () => copy(text));
  const suggest = model.suggestions ? suggestButton(model, () => chosen, () => state.tag) : null;
  const foot = el("div", { class: "foot" }, hint, suggest?.button ?? "", look, copyButton);
  const title = el("h2", { class: "panel-name small soft", hidden: true }, model.id);
  const node = el("section", { class: "panel result", "aria-label": `Output of ${model.id}` }, title, body, findings, others, suggest?.form ?? "", foot);
  let chosen = null; // the sentence whose alternatives are shown
  let text = "";
  let several = false;

  function show(output, mark) {
    body.replaceChildren();
    others.replaceChildren();
    findings.replaceChildren(...(output?.findings ?? []).map((one) => el("li", { class: one.hard ? "bad" : "soft" }, `${one.kind}: ${one.message}`)));
    text = output?.text ?? "";
    foot.style.visibility = output ? "visible" : "hidden";
    hint.textContent = "";
    suggest?.close();
    if (!output) { body.append(el("span", { class: "soft" }, "Translation")); return; }
    const sentences = output.sentences ?? [];
    let place = 0;
    for (const sentence of sentences) {
      sentence.place = place;
      place += sentence.source.length + sentence.space.length;
    }
    const real = sentences.filter((one) => one.source);
    for (const sentence of sentences) body.append(...linkedWords(sentence, mark, hint, () => choose(sentence)), sentence.space);
    body.append("\n");
    several = real.length > 1;
    if (real.length) choose(real[0]);
    const unit = byLetter(real[0]) ? "letter" : "word";
    hint.textContent = `${matchMedia("(hover: none)").matches ? "Tap" : "Hover"} a ${unit} to see where it comes from${model.calibrated ? " and how sure it is" : ""}.`;
    setLook(real[0]);
  }

  function setLook(sentence) {
    const query = new URLSearchParams({ model: model.id, q: sentence?.source ?? "" });
    if (model.tags.length) query.set("tag", model.tags.includes(state.tag) ? state.tag : model.tags[0]);
    look.href = `/inspect?${query}`;
  }

  function choose(sentence) {
    chosen = sentence;
    suggest?.close();
    setLook(sentence);
    const all = (sentence.alternatives ?? []).filter((one) => one.text && one.text !== sentence.text);
    others.replaceChildren(...(all.length ? [el("h3", { class: "small soft" }, several ? ["Alternatives for ", el("bdi", {}, clipped(sentence.source)), " · click another sentence for its own"] : "Alternatives"), el("ul", { class: "plain" }, all.map((one) => el("li", {},
      el("button", { type: "button", class: "entry", title: "Copy", dir: "auto", onclick: () => copy(one.text) }, ...difference(sentence.text, one.text)))))] : []));
  }

  show(null);
  return {
    node, model, show, text: () => text,
    name: (on) => { title.hidden = !on; },
    busy: (on) => node.classList.toggle("busy", on),
    fail: (error) => { show(null); body.replaceChildren(el("p", { class: "bad" }, error.message)); },
  };
}

function byLetter(sentence) {
  const names = sentence?.target_words ?? [];
  return names.length > 1 && names.every((one) => [...one].length === 1);
}
