// The module for other pages:
//
//   import { load } from "./dragoman.js";
//   const model = await load("./model/");
//   const { text, score, tokens, alignment } = await model.translate("Hello!", { beam: 5, nBest: 1 });
//   const { text, probabilities } = await model.label("A fine film."); // of a classifier or tagger

import { Labeler } from "./labeler.js";
import { Network } from "./network.js";
import { Translator } from "./translator.js";

const FORMAT = 1;
const RUNTIME = "ort.wasm.bundle.min.mjs";
const BINARY = "ort-wasm-simd-threaded.wasm";
let runtime = null; // onnxruntime-web, one for all models of a page

// The model of a folder. `read(name)` gives the bytes of one of its files where they are not beside this module, `ort` the runtime.
export async function load(folder = "./model/", { read, ort } = {}) {
  const base = new URL(folder, document.baseURI);
  const files = read ?? ((name) => download(new URL(name, base)));
  const table = parse(await files("model.json"));
  const engine = ort ?? await openRuntime();
  try {
    return table.task === "translate" ? new Translator(await Network.open(engine, files, table), table) : await Labeler.open(engine, files, table);
  } catch (error) {
    throw new Error(`the model cannot be opened (${error.message ?? error}); export it anew, and copy the whole folder`);
  }
}

function parse(bytes) {
  let table;
  try {
    table = JSON.parse(new TextDecoder().decode(bytes));
  } catch (error) {
    throw new Error(`model.json: damaged (${error.message}); export the run anew`);
  }
  if (table?.format !== FORMAT) throw new Error(`model.json: found format ${table?.format}, expected ${FORMAT}; export the run anew with the version of this page`);
  return table;
}

async function download(url) {
  let answer;
  try {
    answer = await fetch(url);
  } catch (error) {
    const advice = url.protocol === "file:" ? "browsers read no files beside a page that is opened from the disk: serve the folder (python -m http.server), or export with --single" : "the connection failed";
    throw new Error(`${url.pathname.split("/").pop()}: cannot be read; ${advice} (${error.message})`);
  }
  if (!answer.ok) throw new Error(`${url.pathname.split("/").pop()}: found status ${answer.status}, expected the file; copy the whole folder of the export`);
  return new Uint8Array(await answer.arrayBuffer());
}

function openRuntime() {
  runtime ??= (async () => {
    const place = new URL("./runtime/", import.meta.url);
    const ort = await import(new URL(RUNTIME, place).href).catch((error) => {
      throw new Error(`runtime/${RUNTIME}: cannot be read; copy the whole folder of the export (${error.message})`);
    });
    return configured(ort, { wasm: new URL(BINARY, place).href });
  })();
  return runtime;
}

// The runtime with its settings; `place` says where its WebAssembly is, `binary` has it.
export function configured(ort, place, binary) {
  const { wasm } = ort.env;
  if (place) wasm.wasmPaths = place;
  if (binary) wasm.wasmBinary = binary;
  // Threads need shared memory, which browsers allow to pages that are isolated from others.
  wasm.numThreads = globalThis.crossOriginIsolated && place ? Math.min(4, navigator.hardwareConcurrency || 1) : 1;
  ort.env.logLevel = "error";
  return ort;
}
