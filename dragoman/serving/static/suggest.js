// "Suggest a better translation": the translation of a sentence to edit, sent to /suggest.

import { el } from "/web/modules/core.js";
import { call } from "/static/api.js";
import { toast } from "/web/modules/panels.js";

export function suggestButton(model, sentence, tag) {
  const area = el("textarea", { class: "field", rows: "3", dir: "auto", "aria-label": "A better translation" });
  const about = el("p", { class: "small soft" });
  const send = el("button", { type: "submit", class: "primary" }, "Send");
  const cancel = el("button", { type: "button", class: "quiet", onclick: () => { close(); button.focus(); } }, "Cancel");
  const form = el("form", { class: "suggest", hidden: true }, about, area, el("div", { class: "buttons" }, send, cancel));
  const button = el("button", { type: "button", class: "quiet", "aria-expanded": "false", onclick: () => (form.hidden ? open() : close()) }, "Suggest a better translation");

  function open() {
    if (!sentence()) return;
    about.replaceChildren("A better translation of ", el("bdi", {}, sentence().source));
    area.value = sentence().text;
    form.hidden = false;
    button.setAttribute("aria-expanded", "true");
    area.focus();
  }

  function close() {
    form.hidden = true;
    button.setAttribute("aria-expanded", "false");
  }

  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const { source, text } = sentence();
    const better = area.value.trim();
    if (!better || better === text.trim()) { toast("Change the translation first", true); return; }
    const target = model.tags.length ? (model.tags.includes(tag()) ? tag() : model.tags[0]) : model.targets[0].code;
    send.disabled = true;
    try {
      await call("/suggest", { q: source, s: better, source: model.source.code, target, output: text, model: model.id }, { remember: false });
      close();
      toast("Thank you. A person will look at it.");
    } catch (error) { toast(error.message, true); }
    send.disabled = false;
  });
  return { button, form, close };
}
