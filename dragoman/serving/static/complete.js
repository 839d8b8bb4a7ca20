// Continue a text with a language model, token by token.

import { el } from "/web/modules/core.js";
import { stream } from "/static/api.js";
import { copy, iconButton } from "/web/modules/panels.js";
import { codeBox, historyBox, remember } from "/static/parts.js";

export function completeView(root, model, models, change) {
  const area = el("textarea", { class: "text", dir: "auto", placeholder: "Begin a text", "aria-label": "Prompt", autofocus: true });
  const output = el("div", { class: "output", dir: "auto", "aria-live": "polite" });
  const field = (label, attributes) => { const input = el("input", { class: "field short", type: "number", ...attributes }); return [input, el("label", { class: "small" }, label, input)]; };
  const [length, lengthLabel] = field("Tokens", { value: 80, min: 1, max: 1000 });
  const [temperature, temperatureLabel] = field("Temperature", { value: 0.8, min: 0, max: 2, step: 0.1, title: "0 takes the most probable token at every step" });
  const [seed, seedLabel] = field("Seed", { value: 0, step: 1 });
  let running = null;
  let text = "";
  const go = el("button", { type: "button", class: "primary", onclick: () => (running ? running.abort() : ask()) }, "Continue");
  const ask = async () => {
    running = new AbortController();
    go.textContent = "Stop";
    text = area.value;
    output.replaceChildren(el("span", { class: "soft" }, area.value), el("span", {}));
    const body = { model: model.id, input: area.value, stream: true, max_length: Number(length.value) };
    if (Number(temperature.value) > 0) body.method = { kind: "sampling", temperature: Number(temperature.value), seed: Number(seed.value) };
    try {
      await stream("/v1/predict", body, (name, data) => {
        if (name === "error") throw new Error(data.error);
        if (name === "done") text = data.text;
        else output.lastChild.append(data.delta);
      }, running.signal);
      remember({ model: model.id, input: area.value, output: text });
    } catch (error) {
      if (error.name !== "AbortError") output.replaceChildren(el("p", { class: "bad" }, error.message));
    }
    running = null;
    go.textContent = "Continue";
    code.draw();
    past.draw();
  };
  area.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) ask(); });
  const code = codeBox();
  const past = historyBox((entry) => { if (entry.model !== model.id) change(entry.model); else area.value = entry.input; });
  root.replaceChildren(el("div", { class: "panels" }, el("section", { class: "panel" }, el("div", { class: "edit" }, area), el("div", { class: "foot wrap" }, lengthLabel, temperatureLabel, seedLabel, go)),
    el("section", { class: "panel result" }, output, el("div", { class: "foot" }, el("span", { class: "small soft grow" }, "Ctrl + Enter continues"), iconButton("copy", "Copy the text", () => copy(text))))),
    el("div", { class: "folds" }, past.node, code.node));
  output.append(el("span", { class: "soft" }, "The text goes on here"));
  return () => running?.abort();
}
