// Labels, tags and surprise: runs that label texts, and language models over a text.

import { css, el, figure, number, onState, percent, readState, setState, shown, tensor, whole } from "./core.js";
import { heatmap, shades } from "./heat.js";
import { bars } from "./chart.js";

export function drawLabels(view) {
  const { labels, rows, values } = view.data;
  const probabilities = tensor(view.data.probabilities);
  const row = () => whole(readState().step, 0, 0, rows.length - 1);
  const one = figure({
    name: "labels", title: "label probabilities",
    drawing: () => {
      const order = labels.map((name, index) => [probabilities.at(row(), index), name, index]).sort((a, b) => b[0] - a[0]).slice(0, 20);
      return bars({ rows: order.map(([value, name, index]) => ({ label: shown(name), value, text: percent(value), marked: index === values[row()] })), low: 0, high: 1, label: "probabilities of labels" });
    },
    rows: () => [["", ...labels], rows.map((name, index) => [name, ...labels.map((_, label) => probabilities.at(index, label))]), { numeric: labels.map((_, index) => index + 1) }],
    data: () => view.data,
  });
  const parts = [el("h3", {}, "Probabilities"), one];
  const maps = [];
  const map = (packed, names, title, text, signed, axes) => {
    const found = tensor(packed);
    const top = Math.max(...found.values.map(Math.abs));
    const frame = figure({ name: title.toLowerCase(), title, drawing: () => heatmap({ rows: found.shape[0], columns: found.shape[1], at: (r, c) => found.at(r, c), rowLabels: names, columnLabels: labels, top, signed, marked: [axes ? null : row(), null], label: title,
      rowTitle: axes?.[0] ?? "word", columnTitle: axes?.[1] ?? "tag", pick: axes ? null : (r) => setState({ step: r }) }),
      rows: () => [["", ...labels], names.map((name, index) => [name, ...labels.map((_, label) => found.at(index, label))]), { numeric: labels.map((_, index) => index + 1) }], data: () => packed });
    maps.push(frame);
    return el("section", {}, el("h3", {}, title), el("p", { class: "small soft" }, text), frame);
  };
  const more = [];
  if (view.data.emissions) more.push(map(view.data.emissions, rows, "Emissions", "Score of each tag for each word alone, before transitions.", true));
  if (view.data.transitions) more.push(map(view.data.transitions, labels, "Transitions", "Score of the tag in a column after the tag in a row.", true, ["from", "to"]));
  onState(() => { one.draw(); maps.forEach((frame) => frame.draw()); });
  if (more.length) parts.push(el("div", { class: "columns" }, more));
  return parts;
}

export function drawSurprise(view) {
  const bits = tensor(view.data.bits).values;
  const { tokens } = view.data.target;
  const top = Math.max(...bits, 1);
  const text = el("div", { class: "words" });
  const readout = el("div", { class: "readout" });
  const frame = figure({
    name: "surprise", title: "surprise of each token",
    drawing: () => bars({ rows: tokens.slice(0, 60).map((token, index) => ({ label: shown(token), value: bits[index], text: `${number(bits[index], 1)} bits`, marked: index === whole(readState().step, 0, 0, tokens.length - 1) })), low: 0, label: "bits of each token", pick: (index) => setState({ step: index }) }),
    rows: () => [["token", "bits", "probability"], tokens.map((token, index) => [shown(token), bits[index], 2 ** -bits[index]]), { numeric: [1, 2] }],
    data: () => view.data,
  });
  const update = () => {
    const step = whole(readState().step, 0, 0, tokens.length - 1);
    const scale = shades(top);
    text.replaceChildren(...tokens.map((token, index) => { const share = bits[index] / top; return el("button", { type: "button", class: "word", "aria-current": String(index === step), "aria-label": `${shown(token)}, ${number(bits[index], 1)} bits`, onclick: () => setState({ step: index }), style: { background: css(scale(bits[index])), color: share > 0.55 ? "var(--paper)" : "var(--ink)" } }, el("bdi", {}, shown(token))); }));
    const mean = bits.reduce((sum, one) => sum + one, 0) / bits.length;
    readout.replaceChildren(el("div", { class: "sum" }, "−log₂ p = ", el("span", { class: "num" }, number(bits[step], 3)), ` bits; mean ${number(mean, 3)} bits, perplexity 2^${number(mean, 2)} = ${number(2 ** mean, 1)}`));
    frame.draw();
  };
  onState(update);
  update();
  return [text, readout, frame];
}
