// Batches with their padding, and what accuracy would be if padding counted.

import { el, figure, onState, percent, table } from "./core.js";
import { heatmap } from "./heat.js";

function batchFigure(batch, side) {
  const lengths = batch[side];
  const columns = Math.max(...lengths);
  return figure({
    name: `padding-${side}-${batch.name.replaceAll(" ", "-")}`, title: `${side}s, ${batch.name}`,
    drawing: () => heatmap({ rows: lengths.length, columns, at: (row, column) => (column < lengths[row] ? 0.8 : 0), rowLabels: batch.rows, columnLabels: Array.from({ length: columns }, (_, place) => String(place + 1)), top: 1, columnTitle: "position", label: `mask of ${side}s, ${batch.name}`, square: false }),
    rows: () => [["row", "tokens", "padding"], lengths.map((length, row) => [batch.rows[row], length, columns - length]), { numeric: [1, 2] }],
    data: () => batch,
  });
}

export function drawPadding(view) {
  const { batches, systems, size, tokens } = view.data;
  const frames = batches.map((batch) => ["source", "target"].map((side) => batchFigure(batch, side)));
  const share = (batch) => 1 - tokens / batch.positions;
  // Each system has its own tokens; what is added is padding in the same proportion.
  const counted = (one, batch) => (one.right_forced / one.tokens) * (1 - share(batch)) + share(batch);
  onState(() => frames.flat().forEach((frame) => frame.draw()));
  return [...batches.map((batch, index) => el("section", {}, el("h3", {}, `A batch of ${batch.rows.length} pairs, ${batch.name}`),
    el("p", {}, `In batches of ${size} targets ${percent(share(batch))} of all positions are padding. Filled: real tokens, <eos> included. Empty: padding, which the mask hides.`),
    el("div", { class: "columns" }, frames[index].map((frame, side) => el("div", {}, el("h4", {}, side ? "Targets" : "Sources"), frame))))),
  el("h3", {}, "Accuracy"), table(["system", "real tokens", ...batches.map((batch) => `padding counted as right, ${batch.name}`)],
    systems.map((one) => [one.name, percent(one.right_forced / one.tokens), ...batches.map((batch) => percent(counted(one, batch)))]), { numeric: [1, 2, 3] })];
}
