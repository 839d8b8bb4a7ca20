// Requests to the server that sent this page; nothing else is ever contacted.

let token = sessionStorage.getItem("dragoman-token") ?? "";
let last = null; // the last request and its answer, for the code view

export function lastExchange() {
  return last;
}

// Every request goes through here. Where the server wants a token, a person is asked for it and the request is sent again.
async function send(path, init = {}) {
  for (;;) {
    const sent = token;
    const authorization = `Bearer ${String.fromCharCode(...new TextEncoder().encode(sent))}`; // headers have bytes
    const response = await fetch(path, { ...init, headers: { ...init.headers, ...(sent && { authorization }) } });
    if (response.status !== 401 && response.status !== 403) return response;
    if (token !== sent) continue; // typed meanwhile, for another request
    const typed = window.prompt("This server needs a token.");
    if (!typed) return response;
    token = typed;
    sessionStorage.setItem("dragoman-token", typed);
  }
}

async function answer(response) {
  const text = await response.text();
  let data = null;
  try { data = JSON.parse(text); } catch { /* not JSON: said below */ }
  if (response.ok) return data;
  const problem = typeof data?.error === "string" ? data.error : data?.error?.message;
  const error = new Error(problem ?? `The server answered ${response.status}.`);
  error.status = response.status;
  error.retry = Number(response.headers.get("retry-after") ?? 0);
  throw error;
}

function post(path, body, signal) {
  return send(path, { method: "POST", body: JSON.stringify(body), headers: { "content-type": "application/json" }, signal });
}

// POST JSON; a busy server is asked again once after the time it names.
export async function call(path, body, { signal, remember = true } = {}) {
  for (let attempt = 0; ; attempt += 1) {
    const response = await post(path, body, signal);
    if (response.status === 503 && attempt === 0) {
      const wait = Math.min(5, Number(response.headers.get("retry-after") ?? 1));
      await new Promise((done) => setTimeout(done, 1000 * wait));
      continue;
    }
    const data = await answer(response);
    if (remember) last = { path, body, data };
    return data;
  }
}

export async function get(path) {
  return answer(await send(path));
}

export async function upload(path, fields) {
  const form = new FormData();
  for (const [name, value] of Object.entries(fields)) if (value !== null && value !== undefined && value !== "") form.append(name, value);
  const data = await answer(await send(path, { method: "POST", body: form }));
  last = { path, form: Object.fromEntries([...form].map(([name, value]) => [name, value instanceof File ? `@${value.name}` : value])), data };
  return data;
}

// Server-sent events of a POST: `onEvent(name, data)` for each.
export async function stream(path, body, onEvent, signal) {
  const response = await post(path, body, signal);
  if (!response.ok) return answer(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    waiting += value;
    for (let end = waiting.indexOf("\n\n"); end >= 0; end = waiting.indexOf("\n\n")) {
      const lines = waiting.slice(0, end).split("\n");
      waiting = waiting.slice(end + 2);
      const name = lines.find((line) => line.startsWith("event: "))?.slice(7) ?? "message";
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      if (data && data !== "[DONE]") onEvent(name, JSON.parse(data));
    }
  }
  last = { path, body, data: "(server-sent events)" };
  return null;
}

export function asCode(exchange, kind) {
  const origin = location.origin;
  if (!exchange) return "Nothing sent yet.";
  const { path, body, form, data } = exchange;
  if (kind === "response") return JSON.stringify(data, null, 2);
  if (form) {
    const parts = Object.entries(form).map(([name, value]) => `-F '${name}=${String(value).replaceAll("'", "'\\''")}'`).join(" ");
    if (kind === "curl") return `curl ${origin}${path} ${parts}`;
    const fields = Object.entries(form).filter(([, value]) => !String(value).startsWith("@"));
    const file = Object.entries(form).find(([, value]) => String(value).startsWith("@"));
    return `import requests\n\nanswer = requests.post(\n    "${origin}${path}",\n    files={"${file?.[0]}": open(${JSON.stringify(String(file?.[1] ?? "").slice(1))}, "rb")},\n    data=${python(Object.fromEntries(fields))},\n)\nprint(answer.json())`;
  }
  if (kind === "curl") return `curl ${origin}${path} \\\n  -H 'content-type: application/json' \\\n  -d '${JSON.stringify(body).replaceAll("'", "'\\''")}'`;
  return `import requests\n\nanswer = requests.post("${origin}${path}", json=${python(body)})\nprint(answer.json())`;
}

function python(value) {
  return JSON.stringify(value, null, 4).replaceAll(/\btrue\b(?=[,\n}\]])/g, "True").replaceAll(/\bfalse\b(?=[,\n}\]])/g, "False").replaceAll(/\bnull\b(?=[,\n}\]])/g, "None");
}
