// The page of one text: fetch the numbers of an inspection and draw them with the shared views.

import { setContinueSearch } from "/web/modules/beam.js";
import { showInspection } from "/web/modules/inspect.js";
import { call } from "/static/api.js";

const root = document.getElementById("root");
const query = new URLSearchParams(location.search);
const body = { input: query.get("q") ?? "", numbers: "packed" };
for (const name of ["model", "output", "tag"]) if (query.get(name)) body[name] = query.get(name);
// A click on a pruned node of the beam tree goes on with the search from there.
setContinueSearch((node, tokens) => {
  const { input, model, tag } = body;
  return call("/v1/inspect/continue", { input, model, tag, tokens });
});
try {
  const data = await call("/v1/inspect", body);
  showInspection(data, root);
  document.title = `Dragoman: inside ${data.title}`;
} catch (error) {
  const line = document.createElement("p");
  line.className = "waiting bad";
  line.textContent = error.message;
  root.replaceChildren(line);
}
