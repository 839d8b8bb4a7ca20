// Review corrections: accept or reject what clients of this server have sent.

import { el } from "/web/modules/core.js";
import { call, get } from "/static/api.js";
import { difference, toast } from "/web/modules/panels.js";

const root = document.getElementById("work");
const STATES = ["pending", "accepted", "rejected"];
const ACTIONS = { accepted: "Accept", rejected: "Reject", pending: "Decide later" };
const saved = localStorage.getItem("dragoman-theme");
if (saved) document.documentElement.dataset.theme = saved;
let state = "pending";

async function decide(ids, decision) {
  try {
    await call("/v1/corrections", { ids, state: decision });
    toast(`${decision}: ${ids.length}`);
  } catch (error) { toast(error.message, true); }
  await draw();
}

function row(item) {
  const line = (label, ...content) => [el("dt", { class: "small soft" }, label), el("dd", { dir: "auto" }, ...content)];
  const about = [item.model, item.version === null ? "" : `version ${item.version}`, `${item.source_language} → ${item.target_language}`, item.time.replace("T", " ").slice(0, 16), item.id];
  return el("li", { class: "panel correction" },
    el("dl", {}, ...line("source", item.source), ...(item.output === null ? [] : line("output", item.output)),
      ...line("better", ...difference(item.output ?? item.correction, item.correction))),
    el("div", { class: "foot" }, el("span", { class: "small soft grow" }, about.filter(Boolean).join(" · ")),
      ...STATES.filter((one) => one !== item.state).toReversed().map((one) => el("button", { type: "button", class: one === "accepted" ? "primary" : "quiet", onclick: () => decide([item.id], one) }, ACTIONS[one]))));
}

async function draw() {
  let data;
  try {
    data = await get(`/v1/corrections?state=${state}`);
  } catch (error) {
    const again = el("button", { type: "button", onclick: draw }, "Try again");
    root.replaceChildren(el("h1", {}, "Corrections"), el("p", { class: "bad" }, error.message), again);
    return;
  }
  const tabs = el("div", { class: "segments", role: "group", "aria-label": "State" }, STATES.map((one) =>
    el("button", { type: "button", "aria-pressed": String(one === state), onclick: () => { state = one; draw(); } }, `${one} ${data.counts[one].toLocaleString("en")}`)));
  const items = data.corrections;
  const all = STATES.filter((one) => state === "pending" && one !== "pending" && items.length > 1).map((one) =>
    el("button", { type: "button", class: "quiet", onclick: () => decide(items.map((item) => item.id), one) }, `${ACTIONS[one]} these ${items.length}`));
  root.replaceChildren(el("h1", {}, "Corrections"), el("div", { class: "fold-tools" }, tabs, el("span", {}, ...all)),
    el("ul", { class: "plain corrections" }, items.length ? items.map(row) : el("li", { class: "waiting" }, "None.")),
    el("p", { class: "small soft" }, "Accepted corrections are used by: dragoman adapt RUN --from-server FOLDER"));
}

draw();
