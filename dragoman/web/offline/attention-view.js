// The attention of an exported model over the text that a reader typed, as `dragoman inspect` draws it.

import { drawAttention } from "./attention.js";

// The layers of one output of a Translator, in the form of inspect's data.
export function attentionLayers({ heads, layers, rows, columns }) {
  const [all, size] = [layers.reduce((left, right) => left + right, 0), columns.tokens.length];
  let first = 0;
  return layers.map((count, layer) => {
    const own = Array.from({ length: count }, (_, head) => first + head);
    first += count;
    const weights = packed([count, heads.length, size], own.flatMap((head) => heads.flatMap((step) => Array.from(step.subarray(head * size, (head + 1) * size)))));
    if (heads.some((step) => step.length !== all * size)) throw new Error("attention: found another number of source tokens than the text has");
    return { name: `layer ${layer + 1}`, about: "attention over the input", kind: "cross", weights, rows, columns, sums_to_one: true, entropy: null, summaries: own.map(() => "") };
  });
}

// A tensor as pages hold it.
function packed(shape, values) {
  const bytes = new Uint8Array(Float32Array.from(values).buffer);
  return { shape, f32: btoa(Array.from(bytes, (one) => String.fromCharCode(one)).join("")) };
}

export function drawHeads(attention) {
  return drawAttention({ data: { layers: attentionLayers(attention), attribution: {}, measure: "", earlier: "earlier output" } }, { views: [] });
}
