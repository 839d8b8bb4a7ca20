// The entry of the page: which models there are, and the view for the chosen one.

import { el } from "/web/modules/core.js";
import { get } from "/static/api.js";
import { toast } from "/web/modules/panels.js";
import { translateView } from "/static/translate.js";
import { labelView } from "/static/labels.js";
import { completeView } from "/static/complete.js";
import { uploadView } from "/static/upload.js";

const VIEWS = {
  translate: translateView, "language-model": completeView, transcribe: uploadView, caption: uploadView,
};
const work = document.getElementById("work");
const place = document.getElementById("model-place");

function theme() {
  const saved = localStorage.getItem("dragoman-theme");
  if (saved) document.documentElement.dataset.theme = saved;
  document.getElementById("theme").addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    document.documentElement.dataset.theme = now === "dark" ? "light" : "dark";
    localStorage.setItem("dragoman-theme", document.documentElement.dataset.theme);
  });
}

let cleanUp = null;

function show(models, id) {
  const model = models.find((one) => one.id === id) ?? models[0];
  localStorage.setItem("dragoman-model", model.id);
  cleanUp?.();
  const view = VIEWS[model.task] ?? labelView;
  cleanUp = view(work, model, models, (other) => { select.value = other; show(models, other); }) ?? null;
}

let select = null;

async function start() {
  theme();
  work.replaceChildren(el("p", { class: "soft small" }, "Loading the models …"));
  let models;
  try {
    models = (await get("/v1/models")).data;
  } catch (error) {
    work.replaceChildren();
    toast(error.message, true);
    return;
  }
  const wanted = new URLSearchParams(location.search).get("model") ?? localStorage.getItem("dragoman-model");
  const chosen = models.some((one) => one.id === wanted) ? wanted : models[0].id;
  select = el("select", { id: "model", "aria-label": "Model", onchange: () => show(models, select.value) });
  for (const one of models) select.append(el("option", { value: one.id, selected: one.id === chosen }, `${one.id} · ${one.task}`));
  place.replaceChildren(models.length > 1 ? select : el("span", { class: "soft small" }, `${models[0].id} · ${models[0].task}`));
  if (models.some((one) => one.suggestions)) document.querySelector(".bar nav").prepend(el("a", { class: "quiet", href: "/corrections" }, "Corrections"));
  show(models, chosen);
}

start();
