// Recordings and pictures: drop a file, read its text, see where the model looked.

import { el } from "/web/modules/core.js";
import { showInspection } from "/web/modules/inspect.js";
import { upload } from "/static/api.js";
import { copy, icon, iconButton, toast } from "/web/modules/panels.js";
import { codeBox } from "/static/parts.js";

export function uploadView(root, model) {
  const sound = model.input === "audio";
  const what = sound ? "a recording" : model.task === "caption" ? "a picture" : "a picture of a line of text";
  const picker = el("input", { type: "file", class: "hidden-visually", accept: sound ? "audio/*" : "image/*", "aria-label": `Choose ${what}`, onchange: () => picker.files[0] && send(picker.files[0]) });
  const preview = el("div", { class: "preview" });
  const zone = el("button", { type: "button", class: "zone", onclick: () => picker.click() }, icon("file"), el("strong", {}, `Drop ${what} here`), el("span", { class: "soft" }, "or press to choose a file"));
  const output = el("div", { class: "output", dir: "auto", "aria-live": "polite" }, el("span", { class: "soft" }, "Its text"));
  const inside = el("div", { class: "inside" });
  let text = "";
  let file = null;
  let address = "";
  const look = el("button", { type: "button", class: "quiet", disabled: true, onclick: async () => {
    try {
      inside.replaceChildren(el("p", { class: "waiting" }, "Looking inside …"));
      showInspection(await upload("/v1/inspect/file", { file, model: model.id, numbers: "packed" }), inside);
    } catch (error) { inside.replaceChildren(); toast(error.message, true); }
  } }, icon("eye"), "Where it looked");

  async function send(chosen) {
    file = chosen;
    URL.revokeObjectURL(address);
    address = URL.createObjectURL(file);
    preview.replaceChildren(sound ? el("audio", { controls: true, src: address }) : el("img", { src: address, alt: `the chosen picture, ${file.name}` }), el("span", { class: "small soft" }, file.name));
    output.replaceChildren(el("span", { class: "soft" }, "Reading …"));
    inside.replaceChildren();
    try {
      const data = await upload("/v1/predict/file", { file, model: model.id, n_best: model.task === "caption" ? 3 : 1 });
      const best = data.outputs[0];
      text = best.text;
      output.replaceChildren(el("p", { class: "big" }, best.text || "(empty)"), ...(best.alternatives ?? []).map((one) => el("p", { class: "soft" }, one.text)));
      look.disabled = false;
      code.draw();
    } catch (error) { output.replaceChildren(el("p", { class: "bad" }, error.message)); }
    picker.value = "";
  }
  const over = (event) => { event.preventDefault(); zone.classList.add("over"); };
  const leave = () => zone.classList.remove("over");
  const drop = (event) => { event.preventDefault(); leave(); if (event.dataTransfer?.files?.[0]) send(event.dataTransfer.files[0]); };
  root.addEventListener("dragover", over);
  root.addEventListener("dragleave", leave);
  root.addEventListener("drop", drop);
  const code = codeBox();
  root.replaceChildren(el("div", { class: "panels" }, el("section", { class: "panel" }, zone, picker, preview),
    el("section", { class: "panel result" }, output, el("div", { class: "foot" }, el("span", { class: "grow" }), look, iconButton("copy", "Copy the text", () => copy(text))))), el("div", { class: "folds" }, code.node), inside);
  return () => { root.removeEventListener("dragover", over); root.removeEventListener("dragleave", leave); root.removeEventListener("drop", drop); URL.revokeObjectURL(address); };
}
