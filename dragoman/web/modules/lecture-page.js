// The page of a lecture: a tab for each topic; figures, the commands that drew them, questions that it checks.

import { arrows, el, notify, onState, put, readData, readState, setState, showTab } from "./core.js";

const data = readData();
const main = el("div", { id: "topic", role: "tabpanel", tabindex: "-1" });
const tabs = el("nav", { role: "tablist", class: "topics", "aria-label": "Topics" }, data.topics.map((topic) =>
  el("button", { type: "button", role: "tab", id: `tab-${topic.name}`, "aria-controls": "topic", onclick: () => setState({ topic: topic.name }, { replace: false }) }, topic.title)));
const right = new Set();
let open = null;
arrows(tabs, "[role=tab]");

function command(text) {
  const button = el("button", { type: "button", "aria-label": `Copy: ${text}`, onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code); // a page of a file may not write to the clipboard
      button.textContent = "Selected";
    }
  } }, "Copy");
  const code = el("code", {}, text);
  return el("div", { class: "command" }, el("pre", { tabindex: "0", role: "region", "aria-label": "command" }, code), button);
}

function picture(figure) {
  if (!figure.file) return el("pre", { class: "printed", tabindex: "0", role: "region", "aria-label": figure.title }, figure.text);
  const link = el("p", { class: "small" }, el("a", { href: figure.file }, figure.file.endsWith(".html") ? "Open this page alone" : "Open this picture alone"));
  return figure.file.endsWith(".html")
    ? [el("iframe", { src: figure.file, title: figure.title, loading: "lazy" }), link]
    : [el("img", { class: "slide", src: figure.file, alt: figure.title, loading: "lazy" }), link];
}

function typed(text) {
  const plain = text.trim().replaceAll("−", "-").replaceAll(" ", "").replace(/%$/, "");
  const comma = /^-?\d{1,3}(,\d{3})+(\.\d+)?$/.test(plain) ? plain.replaceAll(",", "") : plain.replace(",", ".");
  return /^-?(\d+\.?\d*|\.\d+)(e-?\d+)?$/i.test(comma) ? Number(comma) : null;
}

function question(figure, key) {
  const { answer } = figure;
  const said = el("p", { role: "status" });
  const name = `answer-${key}`;
  const say = (good, text) => {
    said.className = good ? "good" : "bad";
    put(said, el("strong", {}, good ? "Right. " : "Wrong. "), text);
    if (good) right.add(name);
    count();
  };
  const input = answer.choices
    ? answer.choices.map((choice) => el("label", { class: "choice" }, el("input", { type: "radio", name, value: choice }), choice))
    : el("label", { class: "choice" }, "Your number", el("input", { class: "field", type: "text", inputmode: "decimal", autocomplete: "off", name, size: 10 }),
      answer.digits ? ` (${answer.digits === 1 ? "one decimal is" : `${answer.digits} decimals are`} enough)` : null);
  const check = (event) => {
    event.preventDefault();
    if (answer.choices) {
      const chosen = form.querySelector("input:checked");
      if (!chosen) return put(said, "Choose an answer first.");
      return say(chosen.value === answer.right, chosen.value === answer.right ? answer.why : "Look at the figure, and try again.");
    }
    const value = typed(form.querySelector("input").value);
    if (value === null) return put(said, "Type a number first.");
    const good = Math.abs(value - answer.right) <= answer.tolerance * 1.000001;
    return say(good, good ? answer.why : "Look at the figure, and try again.");
  };
  const form = el("form", { onsubmit: check },
    el("fieldset", {}, el("legend", {}, figure.question), input, el("div", { class: "controls" },
      el("button", { type: "submit", class: "primary" }, "Check"),
      el("button", { type: "button", onclick: () => { said.className = ""; put(said, el("strong", {}, `${answer.text}. `), answer.why); } }, "Show the answer")), said));
  return form;
}

const counted = el("p", { class: "small soft", "aria-live": "polite" });
function count() {
  const all = open.figures.filter((figure) => figure.answer).length;
  const good = open.figures.filter((_, index) => right.has(`answer-${open.name}-${index}`)).length;
  counted.textContent = all ? `${good} of ${all} questions answered right` : "";
}

function missing(figure, topic) {
  return el("p", { class: "notice" }, figure.slow ? "This figure takes minutes. Run the command in this folder, or draw it with " : "Not drawn yet. Draw it with ",
    el("code", {}, `dragoman lecture ${topic.name}${figure.slow ? " --slow" : ""}`), ", with the same --output.");
}

function list(title, items) {
  return [el("h3", {}, title), el("ul", {}, items.map((item) => el("li", {}, item)))];
}

function draw(state) {
  const topic = data.topics.find((one) => one.name === state.topic) ?? data.topics.find((one) => one.name === data.first);
  if (topic === open) return;
  open = topic;
  for (const tab of tabs.children) {
    const chosen = tab.id === `tab-${topic.name}`;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen) showTab(tab);
  }
  main.setAttribute("aria-labelledby", `tab-${topic.name}`);
  document.title = `${topic.title}: lecture`;
  put(main, el("h2", {}, topic.title), el("p", {}, topic.about), counted,
    topic.figures.map((figure, index) => el("section", { class: "card", "aria-labelledby": `figure-${index}` },
      el("h3", { id: `figure-${index}` }, figure.title[0].toUpperCase() + figure.title.slice(1)), figure.answer ? picture(figure) : missing(figure, topic), command(figure.command),
      figure.answer && question(figure, `${topic.name}-${index}`))),
    el("section", { class: "card columns" }, el("div", {}, list("To discuss", topic.ask)), el("div", {}, list("What is often got wrong", topic.mistakes)),
      topic.runs.length > 0 && el("div", {}, el("h3", {}, "The runs of this topic"),
        topic.runs.map((run) => [el("p", { class: "small" }, run.about), command(run.command)]))));
  count();
}

document.body.append(el("main", { class: "page" },
  el("header", { class: "masthead" }, el("div", {}, el("h1", {}, "Every figure of the lecture runs"),
    el("p", {}, "Each figure was drawn by the command below it, in this folder. Change the command and draw your own. ",
      data.toys && el("a", { href: data.toys }, "Toys to type in")))),
  tabs, main));
onState(draw);
addEventListener("hashchange", notify);
addEventListener("popstate", notify);
draw(readState());
