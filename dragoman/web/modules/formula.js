// Formulas: trees of MathML, [tag, child, …] with texts as leaves, as nodes of the page.

import { el } from "./core.js";

const MATH = "http://www.w3.org/1998/Math/MathML";

function node([tag, ...children]) {
  const made = document.createElementNS(MATH, tag);
  for (const child of children) made.append(Array.isArray(child) ? node(child) : child === " " ? "\u2009" : child.replaceAll(" ", "\u00a0"));
  if (tag === "mo" && "()[]|‖".includes(children[0])) made.setAttribute("stretchy", "false");
  return made;
}

export function formula(tree, text) {
  const math = node(["math", tree]);
  math.setAttribute("alttext", text);
  return el("div", { class: "formula" }, math);
}
