// Labels, numbers, tags and masked words: an answer while you type.

import { el, number, percent } from "/web/modules/core.js";
import { call } from "/static/api.js";
import { icon, later } from "/web/modules/panels.js";
import { codeBox, historyBox, remember, unknownText } from "/static/parts.js";

const HELP = {
  classify: ["Text to classify", ""], regress: ["Text or numbers", ""], tag: ["Words to tag", ""],
  "masked-language-model": ["Text with [MASK]", "Write [MASK] where a word is missing."],
};

export function labelView(root, model, models, change) {
  const [placeholder, one] = HELP[model.task] ?? ["Text", ""];
  const help = el("span", { class: "small soft" }, model.texts > 1 ? "Separate the two texts by a line break." : one);
  const unknown = el("p", { class: "small unknown", "aria-live": "polite" });
  const area = el("textarea", { class: "text", dir: "auto", placeholder, "aria-label": placeholder, autofocus: true });
  const result = el("div", { class: "output", "aria-live": "polite" });
  const look = el("a", { class: "quiet", target: "_blank", rel: "noopener" }, icon("eye"), "Look inside");
  let running = null;
  const ask = async () => {
    running?.abort();
    running = new AbortController();
    const input = model.texts > 1 ? area.value.trim().replace(/\n+/, "\t") : area.value.replaceAll("\n", " ");
    look.href = `/inspect?${new URLSearchParams({ model: model.id, q: input })}`;
    look.style.visibility = input.trim() ? "visible" : "hidden";
    unknown.textContent = "";
    if (!input.trim()) { result.replaceChildren(el("span", { class: "soft" }, "Answer")); return; }
    try {
      const data = await call("/v1/predict", { model: model.id, input }, { signal: running.signal });
      result.replaceChildren(...drawn(model, data.outputs[0], input));
      unknown.textContent = unknownText(data.outputs[0]);
      remember({ model: model.id, input: area.value, output: data.outputs[0].text });
      code.draw();
      past.draw();
    } catch (error) {
      if (error.name !== "AbortError") result.replaceChildren(el("p", { class: "bad" }, error.message));
    }
  };
  const soon = later(220, ask);
  area.addEventListener("input", soon);
  const code = codeBox();
  const past = historyBox((entry) => { if (entry.model !== model.id) change(entry.model); else { area.value = entry.input; ask(); } });
  root.replaceChildren(el("div", { class: "panels" }, el("section", { class: "panel" }, el("div", { class: "edit" }, area), unknown, el("div", { class: "foot" }, help)),
    el("section", { class: "panel result" }, result, el("div", { class: "foot" }, el("span", { class: "grow" }), look))), el("div", { class: "folds" }, past.node, code.node));
  ask();
  return () => running?.abort();
}

function drawn(model, output, input) {
  if (output.probabilities) return [bars(output.probabilities)];
  if (output.masks) return [el("p", { class: "big", dir: "auto" }, output.text), ...output.masks.map((candidates, index) => el("div", {}, el("h3", { class: "small soft" }, `[MASK] ${index + 1}`), bars(Object.fromEntries(candidates.map((one) => [one.text, one.probability])))))];
  if (model.task === "tag") {
    const tags = output.text.split(" ");
    return [el("p", { class: "tagged" }, input.trim().split(/\s+/).map((word, index) => el("span", { class: "tagged-word" }, el("span", { dir: "auto" }, word), el("small", {}, tags[index] ?? ""))))];
  }
  return [el("p", { class: "big" }, output.value === undefined ? output.text : number(output.value))];
}

function bars(probabilities) {
  const all = Object.entries(probabilities).sort((left, right) => right[1] - left[1]).slice(0, 8);
  return el("ul", { class: "plain bars" }, all.map(([name, share]) => el("li", {}, el("span", { dir: "auto" }, name), el("span", { class: "bar-track" }, el("span", { class: "bar-fill", style: { width: `${100 * share}%` } })), el("span", { class: "number" }, percent(share)))));
}
