// Probabilities of the next token, recomputed in the page for any temperature, top-k and top-p.

import { el, figure, number, onState, percent, readState, setState, shown, slider, tensor, whole } from "./core.js";
import { bars } from "./chart.js";

// The same arithmetic as `tests/inspect/tempering.py`.
export function tempered(logits, rest, temperature, topK, topP) {
  const scaled = Array.from(logits, (one) => one / temperature);
  const kept = topK ? Math.min(topK, scaled.length) : scaled.length;
  const others = topK && topK <= scaled.length ? -Infinity : rest;
  const high = Math.max(scaled[0], others);
  const total = scaled.slice(0, kept).reduce((sum, one) => sum + Math.exp(one - high), Math.exp(others - high));
  let shares = scaled.map((one, index) => (index < kept ? Math.exp(one - high) / total : 0));
  if (topP < 1) {
    let before = 0;
    shares = shares.map((one) => { const keep = before < topP; before += one; return keep ? one : 0; });
    const sum = shares.reduce((left, right) => left + right, 0);
    shares = shares.map((one) => one / sum);
  }
  return shares;
}

export function drawNext(view) {
  const { pieces, tokens, temperatures, chosen, target, masks } = view.data;
  const logits = tensor(view.data.logits);
  const rest = tensor(view.data.rest);
  const state = () => {
    const found = readState();
    const near = Number.parseFloat(found.temperature ?? "1");
    const index = temperatures.reduce((best, one, place) => (Math.abs(one - near) < Math.abs(temperatures[best] - near) ? place : best), 0);
    return { step: whole(found.step, 0, 0, pieces.length - 1), index, topK: whole(found.topk, 0, 0, logits.shape[1]), topP: Math.min(1, Math.max(0.05, Number.parseFloat(found.topp ?? "1") || 1)) };
  };
  const readout = el("div", { class: "readout" });
  const now = () => { const { step, index, topK, topP } = state(); return tempered(logits.row(step), rest.at(step, index), temperatures[index], topK, topP); };
  const frame = figure({
    name: "next-token", title: "next-token probabilities",
    drawing: () => {
      const { step } = state();
      const shares = now();
      const place = tokens[step].indexOf(chosen[step]);
      return bars({ rows: shares.slice(0, 14).map((value, index) => ({ label: shown(pieces[step][index]), value, text: value ? percent(value) : "cut off", marked: index === place, faint: value === 0 })), low: 0, high: 1, label: "most probable next tokens" });
    },
    rows: () => { const { step } = state(); const shares = now(); return [["token", "log p", "probability"], shares.map((value, index) => [shown(pieces[step][index]), logits.at(step, index), value]), { numeric: [1, 2] }]; },
    data: () => view.data,
  });
  const update = () => {
    const { step, index, topK, topP } = state();
    const shares = now();
    const place = tokens[step].indexOf(chosen[step]);
    const before = target.tokens.slice(Math.max(0, step - 6), step).map(shown).join(" ");
    const entropy = shares.reduce((sum, one) => sum - (one > 0 ? one * Math.log2(one) : 0), 0);
    frame.draw();
    readout.replaceChildren(el("div", {}, masks ? `[MASK] ${step + 1} of ${pieces.length} is filled with ` : ["after ", el("strong", { dir: "auto" }, before || "the start"), " the output has "], el("strong", { dir: "auto" }, shown(target.tokens[step] ?? "")), place >= 0 ? ` with probability ${percent(shares[place])}` : " (not among the most probable)", `; ${number(entropy, 2)} bits of choice in the bars`),
      el("div", { class: "sum" }, "p = exp(", el("span", { class: "num" }, number(logits.at(step, 0), 3)), " / ", el("span", { class: "num" }, number(temperatures[index], 2)), ") / Σ exp(logit / T) = ", el("span", { class: "num" }, number(shares[0], 4)), topK ? `     top-k: ${topK}` : "", topP < 1 ? `     top-p: ${number(topP, 2)}` : ""));
  };
  onState(update);
  update();
  const first = state();
  return [
    el("div", { class: "controls" },
      slider("temperature", { low: temperatures[0], high: temperatures[temperatures.length - 1], step: 0.05, value: temperatures[first.index] }, (value) => setState({ temperature: value.toFixed(2) })),
      slider("top-k", { low: 0, high: logits.shape[1], step: 1, value: first.topK, show: (value) => (value ? String(value) : "off") }, (value) => setState({ topk: value || null })),
      slider("top-p", { low: 0.05, high: 1, step: 0.05, value: first.topP, show: (value) => (value < 1 ? number(value, 2) : "off") }, (value) => setState({ topp: value < 1 ? value.toFixed(2) : null }))),
    frame, readout];
}
