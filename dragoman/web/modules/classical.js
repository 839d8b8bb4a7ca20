// Models without gradients: phrases and their search, translation tables, Kalman estimates.

import { el, figure, fitted, number, onState, percent, put, readState, select, setState, shortened, shown, svg, table, whole } from "./core.js";
import { bars, colourOf, lineChart } from "./chart.js";

export function drawPhrases(view) {
  const { source, phrases, features, weights, values, score } = view.data;
  const own = () => whole(readState().phrase, 0, 0, phrases.length - 1);
  const total = (row) => row.reduce((sum, value, index) => sum + value * weights[index], 0);
  const terms = figure({
    name: "phrase-terms", title: "terms of the score",
    drawing: () => bars({ rows: features.map((name, index) => ({ label: name, value: weights[index] * values[own()][index], text: `${number(weights[index], 2)} · ${number(values[own()][index], 2)}` })), label: "weight times feature" }),
    rows: () => [["phrase", ...features, "score"], phrases.map((phrase, index) => [phrase.target.join(" "), ...values[index], total(values[index])]), { numeric: [...features, ""].map((_, index) => index + 1) }],
    data: () => view.data,
  });
  const cut = figure({ name: "segmentation", title: "phrases of source and target", drawing: () => segmentation(source, phrases, own()), data: () => view.data });
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const update = () => {
    const phrase = phrases[own()];
    cut.draw();
    terms.draw();
    readout.replaceChildren(el("strong", { dir: "auto" }, source.slice(phrase.start, phrase.end).join(" ") || "end"), " → ", el("strong", { dir: "auto" }, phrase.target.join(" ")),
      el("div", { class: "sum" }, "Σ weight · feature = ", el("span", { class: "num" }, number(total(values[own()]), 3)), `     score of the output = ${values.map((row) => number(total(row), 2)).join(" + ")} = ${number(score, 3)}`));
  };
  onState(update);
  update();
  return [el("h3", {}, "Segmentation"), cut, readout, el("div", { class: "columns" }, el("section", {}, el("h3", {}, "Terms of the phrase"), terms), choices(view.data)), ...stacks(view.data)];
}

// Source above, target below; a band joins every phrase with its translation.
function segmentation(source, phrases, own) {
  const width = (text) => Math.max(26, shortened(text, 14).length * 8 + 14);
  const places = [];
  source.reduce((x, text) => { places.push([x, width(text)]); return x + width(text) + 6; }, 4);
  let x = 4;
  const targets = phrases.map((phrase) => { const size = Math.max(26, phrase.target.reduce((sum, text) => sum + width(text), 0)); const box = [x, size]; x += size + 12; return box; });
  const across = Math.max(x, places.reduce((sum, [, size]) => sum + size + 6, 8));
  const image = svg("svg", { viewBox: `0 0 ${across} 170`, width: across, height: 170, role: "group", "aria-label": "phrases" });
  phrases.forEach((phrase, index) => {
    const [left, size] = targets[index];
    const first = places[Math.min(phrase.start, source.length - 1)];
    const last = places[Math.min(Math.max(phrase.end - 1, phrase.start), source.length - 1)];
    const colour = colourOf(index);
    const chosen = index === own;
    image.append(svg("polygon", { points: `${first[0]},36 ${last[0] + last[1]},36 ${left + size},134 ${left},134`, fill: colour, "fill-opacity": chosen ? 0.4 : 0.14 }));
    const choose = () => setState({ phrase: index });
    image.append(svg("g", { tabindex: "0", role: "button", "aria-pressed": String(chosen), onclick: choose, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); } } },
      svg("rect", { x: left, y: 134, width: size, height: 32, rx: 8, fill: "var(--card)", stroke: colour, "stroke-width": chosen ? 3 : 1.4 }),
      svg("text", { x: left + size / 2, y: 151, "text-anchor": "middle", "dominant-baseline": "central" }, phrase.target.map((text) => shortened(text, 14)).join(" "))));
  });
  source.forEach((text, index) => image.append(svg("rect", { x: places[index][0], y: 4, width: places[index][1], height: 32, rx: 8, fill: "var(--card)", stroke: "var(--line)" }),
    svg("text", { x: places[index][0] + places[index][1] / 2, y: 21, "text-anchor": "middle", "dominant-baseline": "central" }, shortened(text, 14))));
  return image;
}

function choices({ source, options, phrases }) {
  const spans = [...new Set(options.map((one) => `${one.start} ${one.end}`))];
  const start = `${phrases[0].start} ${phrases[0].end}`;
  const span = () => (spans.includes(readState().span) ? readState().span : start);
  const controls = el("div", { class: "controls" });
  const own = () => options.filter((one) => `${one.start} ${one.end}` === span());
  const frame = figure({
    name: "phrase-table", title: "translations of a span",
    drawing: () => bars({ rows: own().map((one) => ({ label: one.target.join(" ") || "∅", value: one.estimate, text: number(one.estimate, 2), marked: one.used })), label: "estimates before the search" }),
    rows: () => [["span", "translation", "estimate"], options.map((one) => [source.slice(one.start, one.end).join(" "), one.target.join(" "), one.estimate]), { numeric: [2] }],
    data: () => options,
  });
  const update = () => {
    put(controls, select("source", spans.map((one) => { const [from, to] = one.split(" ").map(Number); return [one, source.slice(from, to).join(" ")]; }), span(), (value) => setState({ span: value })));
    frame.draw();
  };
  onState(update);
  update();
  return el("section", {}, el("h3", {}, "Translations to choose from"), controls, frame);
}

function stacks({ source, stacks: all }) {
  const at = new Map();
  all.forEach((stack, column) => stack.hypotheses.forEach((one, row) => at.set(one.number, [column, row, one])));
  const [wide, tall] = [150, 30];
  const most = Math.max(...all.map((stack) => stack.hypotheses.length));
  const chosen = () => at.get(whole(readState().hypothesis, all[all.length - 1].hypotheses.find((one) => one.best)?.number ?? 0, 0, 1e9)) ?? at.values().next().value;
  const readout = el("div", { class: "readout", "aria-live": "polite" });
  const centre = ([column, row]) => [column * wide + 66, 40 + row * tall];
  const drawing = () => {
    const image = svg("svg", { viewBox: `0 0 ${all.length * wide} ${most * tall + 50}`, width: all.length * wide, height: most * tall + 50, role: "group", "aria-label": "search lattice" });
    for (const node of at.values()) {
      const parent = at.get(node[2].parent);
      if (!parent) continue;
      const [[x1, y1], [x2, y2]] = [centre(parent), centre(node)];
      const best = node[2].best && parent[2].best;
      image.append(svg("path", { d: `M${x1 + 60} ${y1} C ${x1 + 78} ${y1}, ${x2 - 78} ${y2}, ${x2 - 60} ${y2}`, fill: "none", stroke: best ? "var(--accent)" : "var(--line)", "stroke-width": best ? 3 : 1 }));
    }
    all.forEach((stack, column) => image.append(svg("text", { x: column * wide + 66, y: 14, "text-anchor": "middle", class: "axis" }, `${stack.covered} covered: ${stack.kept} of ${stack.generated}`)));
    for (const node of at.values()) {
      const [x, y] = centre(node);
      const mark = node === chosen();
      const pick = () => setState({ hypothesis: node[2].number });
      image.append(svg("g", { tabindex: "0", role: "button", onclick: pick, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(); } } },
        svg("rect", { x: x - 60, y: y - 12, width: 120, height: 24, rx: 6, fill: mark ? "var(--accent-soft)" : "var(--card)", stroke: node[2].best ? "var(--accent)" : "var(--line)", "stroke-width": mark ? 2.5 : 1.2 }),
        svg("text", { x, y, "text-anchor": "middle", "dominant-baseline": "central" }, shortened(node[2].phrase.join(" ") || "start", 14))));
    }
    return image;
  };
  const frame = figure({
    name: "lattice", title: "search lattice", drawing,
    rows: () => [["covered", "phrase", "covers", "score", "future", "sum"], [...at.values()].map(([column, , one]) => [all[column].covered, one.phrase.join(" "), one.covers.map((place) => source[place]).join(" "), one.score, one.future, one.score + one.future]), { numeric: [0, 3, 4, 5] }],
    data: () => all,
  });
  const update = () => {
    const one = chosen()[2];
    frame.draw();
    readout.replaceChildren(el("strong", { dir: "auto" }, one.phrase.join(" ") || "start"), " · ", ...source.slice(0, -1).map((text, place) => el("span", { class: one.covers.includes(place) ? null : "soft", style: one.covers.includes(place) ? { "font-weight": 700 } : {} }, shown(text), " ")),
      el("div", { class: "sum" }, "score ", el("span", { class: "num" }, number(one.score, 3)), " + future cost ", el("span", { class: "num" }, number(one.future, 3)), " = ", el("span", { class: "num" }, number(one.score + one.future, 3)), one.best ? "     on the path of the output" : ""));
  };
  onState(update);
  update();
  return [el("h3", {}, "Stacks and search lattice"), el("p", { class: "small soft" }, "A column is a stack: hypotheses that cover the same number of source tokens, best first by score and future cost. Bold words are covered. Each stack shows its best; hypotheses with equal states were merged."), frame, readout];
}

export function drawLexicon(view) {
  const { words, jumps, furthest } = view.data;
  const index = () => whole(readState().word, Math.min(1, words.length - 1), 0, words.length - 1);
  const controls = el("div", { class: "controls" });
  const translations = figure({
    name: "translations", title: "translation probabilities",
    drawing: () => { const one = words[index()]; return bars({ rows: one.targets.map((name, place) => ({ label: shown(name), value: one.probabilities[place], text: percent(one.probabilities[place]) })), low: 0, high: 1, label: "t(target | source)" }); },
    rows: () => [["source", "target", "t(target | source)"], words.flatMap((one) => one.targets.map((name, place) => [one.word, name, one.probabilities[place]])), { numeric: [2] }],
    data: () => words,
  });
  const fertility = el("div", {});
  const update = () => {
    const one = words[index()];
    put(controls, select("source word", words.map((word, place) => [place, word.word]), index(), (value) => setState({ word: value })));
    translations.draw();
    fertility.replaceChildren(...(one.fertility ? [el("h3", {}, "Fertility"), el("p", { class: "small soft" }, "How many target words the source word has."), fitted(() => bars({ rows: one.fertility.map((value, size) => ({ label: String(size), value, text: percent(value) })), low: 0, high: 1, label: "fertility" }))] : []));
  };
  onState(update);
  update();
  const shares = jumps ? [el("h3", {}, "Jumps"), el("p", { class: "small soft" }, "From the source word of one target word to that of the next; 1 goes straight on."),
    figure({ name: "jumps", title: "jump probabilities", drawing: () => lineChart({ series: [{ name: "p(jump)", points: jumps.map((value, place) => [place - furthest, value]) }], xTitle: "distance", yTitle: "share", zero: true, label: "jump probabilities" }), rows: () => [["jump", "share"], jumps.map((value, place) => [place - furthest, value]), { numeric: [0, 1] }], data: () => jumps })] : [];
  return [controls, translations, fertility, ...shares];
}

export function drawSeries(view) {
  const { values, curves } = view.data;
  const names = Object.keys(curves);
  const channel = () => whole(readState().channel, 0, 0, values.length - 1);
  const hidden = () => new Set((readState().hide ?? "").split(".").filter(Boolean));
  const controls = el("div", { class: "controls" });
  const points = (name) => curves[name][channel()].map(([centre, low, high], step) => [step + 1, centre, low, high]);
  const frame = figure({
    name: "estimates", title: "values and estimates",
    drawing: () => lineChart({ series: [...names.map((name, index) => ({ name, points: points(name), colour: colourOf(index + 1), band: true, dots: false })).filter((one) => !hidden().has(one.name)), { name: "value", points: values[channel()].map((value, step) => [step + 1, value]), colour: "var(--ink)", dash: "1 4" }], xTitle: "step", yTitle: "value", label: "values and estimates" }),
    rows: () => [["step", "value", ...names.flatMap((name) => [name, "low", "high"])], points(names[0]).map((_, step) => [step + 1, values[channel()][step] ?? "", ...names.flatMap((name) => curves[name][channel()][step])]), { numeric: Array.from({ length: 2 + 3 * names.length }, (_, index) => index) }],
    data: () => view.data,
  });
  const update = () => {
    const off = hidden();
    put(controls, values.length > 1 ? select("series", values.map((_, index) => [index, `series ${index + 1}`]), channel(), (value) => setState({ channel: value })) : null,
      names.map((name, index) => el("button", { type: "button", "aria-pressed": String(!off.has(name)), onclick: () => setState({ hide: names.filter((one) => (one === name) !== off.has(one)).join(".") }) }, el("span", { style: { color: colourOf(index + 1) } }, "■ "), name)));
    frame.draw();
  };
  onState(update);
  update();
  return [controls, frame, el("p", { class: "small soft" }, "Black dots: the values of the series.")];
}
