// An encoder-decoder of two ONNX graphs as `start` and `step` over a state that is a value.

const CHUNK = 32; // the cache of keys and values grows by so many positions

export class Network {
  // `table`: special, caches and prompt of model.json.
  constructor(ort, encoder, decoder, table) {
    Object.assign(this, { ort, encoder, decoder, table });
    this.attends = decoder.outputNames.includes("attention");
    this.used = new Set(decoder.inputNames);
  }

  static async open(ort, read, table) {
    const options = { executionProviders: ["wasm"], logSeverityLevel: 3 };
    const sessions = [];
    for (const name of ["encoder.onnx", "decoder.onnx"]) sessions.push(await ort.InferenceSession.create(await read(name), options));
    return new Network(ort, ...sessions, table);
  }

  // The state before <sos>, one row for each source; sources are rows of ids without <eos>.
  async start(sources) {
    const { special, caches, prompt } = this.table;
    const width = Math.max(...sources.map((row) => row.length)) + 1;
    const ids = new BigInt64Array(sources.length * width).fill(BigInt(special.pad));
    sources.forEach((row, number) => [...row, special.eos].forEach((id, place) => { ids[number * width + place] = BigInt(id); }));
    const outputs = await this.encoder.run({ source: new this.ort.Tensor("int64", ids, [sources.length, width]) });
    const tensors = new Map(Object.entries(outputs).map(([name, one]) => [name, { type: one.type, data: one.data, shape: [...one.dims] }]));
    for (const { name, shape } of caches) {
      if (shape) tensors.set(name, emptyCache(shape, sources.length));
    }
    let state = { tensors, length: 0, rows: sources.length };
    for (const token of prompt) ({ state } = await this.step(Array(sources.length).fill(token), state));
    return state;
  }

  // Log-probabilities (rows × vocabulary), attention (rows × source) and that of all heads (rows × heads × source), both
  // null for a model that does not attend, and the next state.
  async step(tokens, state) {
    const { Tensor } = this.ort;
    const feeds = { tokens: new Tensor("int64", BigInt64Array.from(tokens, BigInt), [tokens.length]), length: new Tensor("int64", [BigInt(state.length)], []) };
    const shapes = new Map(this.table.caches.map(({ name, shape }) => [name, shape]));
    for (const [name, one] of state.tensors) {
      const grown = shapes.get(name) ? withRoom(one, shapes.get(name), state.length + 1) : one;
      if (this.used.has(name)) feeds[name] = new Tensor(grown.type, grown.data, grown.shape);
    }
    for (const name of Object.keys(feeds)) if (!this.used.has(name)) delete feeds[name];
    const outputs = await this.decoder.run(feeds);
    const tensors = new Map(state.tensors);
    for (const { name } of this.table.caches) {
      const fresh = outputs[`new_${name}`];
      tensors.set(name, { type: fresh.type, data: fresh.data, shape: [...fresh.dims] });
    }
    const scores = outputs.log_probabilities;
    const { attention: weights, attention_heads: heads } = outputs;
    return {
      state: { tensors, length: state.length + 1, rows: state.rows },
      scores: scores.data, vocabulary: scores.dims[1], attention: weights?.data ?? null, heads: heads?.data ?? null,
    };
  }
}

function emptyCache(shape, rows) {
  const sizes = shape.map((size) => ({ batch: rows, capacity: CHUNK })[size] ?? size);
  return { type: "float32", data: new Float32Array(sizes.reduce((left, right) => left * right, 1)), shape: sizes };
}

// The cache with room for so many positions; new ones are zero.
function withRoom(cache, shape, needed) {
  const axis = shape.indexOf("capacity");
  const old = cache.shape[axis];
  if (old >= needed) return cache;
  const size = Math.ceil(needed / CHUNK) * CHUNK;
  const inner = cache.shape.slice(axis + 1).reduce((left, right) => left * right, 1);
  const outer = cache.data.length / (old * inner);
  const data = new cache.data.constructor(outer * size * inner);
  for (let row = 0; row < outer; row += 1) data.set(cache.data.subarray(row * old * inner, (row + 1) * old * inner), row * size * inner);
  return { type: cache.type, data, shape: cache.shape.map((length, number) => (number === axis ? size : length)) };
}

// The state of these rows, in this order; a row may be dropped or repeated.
export function selectRows(state, rows) {
  if (rows.length === state.rows && rows.every((row, place) => row === place)) return state;
  const tensors = new Map();
  for (const [name, { type, data, shape }] of state.tensors) {
    const size = data.length / shape[0];
    const kept = new data.constructor(rows.length * size);
    rows.forEach((row, place) => kept.set(data.subarray(row * size, (row + 1) * size), place * size));
    tensors.set(name, { type, data: kept, shape: [rows.length, ...shape.slice(1)] });
  }
  return { tensors, length: state.length, rows: rows.length };
}
