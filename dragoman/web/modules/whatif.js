// What changes when a head, a gate or a source word is taken away, or another token is forced.

import { el, figure, number, onState, put, readState, select, setState, shown, whole } from "./core.js";
import { bars } from "./chart.js";

const NAMES = { head: "mask a head", gate: "hold a gate", token: "force a token" };

function signed(value) {
  return Math.abs(value) < 0.005 ? "0" : `${value > 0 ? "+" : "−"}${Math.abs(value).toFixed(2)}`;
}

export function drawWhatIf(view, data) {
  const { changes, before, measure, target, unit } = view.data;
  const names = { word: `leave out a ${unit}`, ...NAMES };
  const kinds = [...new Set(changes.map((change) => change.kind))];
  const kind = () => (kinds.includes(readState().kind) ? readState().kind : kinds.includes("word") ? "word" : kinds[0]);
  const own = () => { const found = changes.map((change, index) => ({ ...change, index })).filter((change) => change.kind === kind()); return kind() === "word" || kind() === "token" ? found : found.sort((a, b) => a.difference - b.difference).slice(0, 40); };
  const selected = () => changes[whole(readState().change, own()[0]?.index ?? 0, 0, changes.length - 1)];
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const controls = el("div", { class: "controls" });
  const frame = figure({
    name: "what-if", title: `change of ${measure}`,
    drawing: () => bars({ rows: own().map((change) => ({ label: change.name, value: change.difference, text: signed(change.difference), marked: changes[change.index] === selected() })), layers: kind() === "gate" || kind() === "head", pick: (index) => setState({ change: own()[index].index }), label: `change of ${measure}` }),
    rows: () => [["change", `${measure} after`, "difference", "output"], own().map((change) => [change.name, change.score, change.difference, change.output ?? ""]), { numeric: [1, 2] }],
    data: () => view.data,
  });
  const tokens = figure({
    name: "what-if-tokens", title: "change of each output token",
    drawing: () => bars({ rows: (selected().tokens.length ? selected().tokens : [0]).slice(0, 40).map((value, index) => ({ label: shown(target.tokens[index] ?? String(index + 1)), value, text: signed(value) })), label: "change of each token" }),
    rows: () => [["token", "difference"], selected().tokens.map((value, index) => [shown(target.tokens[index] ?? String(index + 1)), value]), { numeric: [1] }],
    data: () => selected(),
  });
  const caption = el("h3", {}, "Token by token");
  const update = () => {
    put(controls, select("what if we", kinds.map((one) => [one, names[one]]), kind(), (value) => setState({ kind: value, change: null })), el("span", { class: "small soft" }, `${measure}${measure === "log p" ? " of the output" : ""} as it is: ${number(before, 2)}`));
    const change = selected();
    frame.draw();
    tokens.draw();
    tokens.hidden = !change.tokens.length;
    caption.hidden = tokens.hidden;
    readout.replaceChildren(el("strong", { dir: "auto" }, change.name), change.kind === "token" ? `: ${measure} of the output that follows ${number(change.score, 2)}, of the original ${number(before, 2)}` : `: ${measure} ${number(before, 2)} → ${number(change.score, 2)}`,
      change.output === null ? "" : el("div", {}, change.output === data.target.text ? "the model's own output stays the same: " : "the model's own output becomes: ", el("strong", { dir: "auto" }, change.output || "(empty)")));
  };
  onState(update);
  update();
  return [controls, el("div", { class: "columns" }, el("section", {}, frame), el("section", {}, readout, caption, tokens))];
}
