"use strict";

// The target, in plain JavaScript: nanogpt/model.py, read from the very file that Python loads.
// A row is a Float64Array; a cache is past[layer][head] = {k, v}, each (P, hs) as one long array.

/** The tensors of a safetensors file (an ArrayBuffer), and what stands in its header. */
function safetensors(buffer) {
  const size = Number(new DataView(buffer).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(new Uint8Array(buffer, 8, size)));
  const { __metadata__: { nanogpt }, ...entries } = header, tensors = {};
  for (const [name, { dtype, data_offsets: [start, end] }] of Object.entries(entries)) {
    const bytes = buffer.slice(8 + size + start, 8 + size + end);
    tensors[name] = dtype === "F32" ? Float64Array.from(new Float32Array(bytes)) : new Uint8Array(bytes);
  }
  return { header: JSON.parse(nanogpt), tensors };
}

/** x (T rows) times weight (out, in) transposed, plus bias: torch's linear. Four sums at a time. */
function linear(x, weight, bias = null) {
  const n = x[0].length, out = weight.length / n;
  return x.map((row) => {
    const y = new Float64Array(out);
    for (let o = 0, w = 0; o < out; o++) {
      let a = 0, b = 0, c = 0, d = 0;
      for (let i = 0; i < n; i += 4, w += 4) {
        a += row[i] * weight[w];
        b += row[i + 1] * weight[w + 1];
        c += row[i + 2] * weight[w + 2];
        d += row[i + 3] * weight[w + 3];
      }
      y[o] = a + b + c + d + (bias ? bias[o] : 0);
    }
    return y;
  });
}

function layerNorm(x, weight, bias) {
  return x.map((row) => {
    let mean = 0, square = 0;
    for (const value of row) mean += value / row.length;
    for (const value of row) square += (value - mean) ** 2 / row.length;
    const scale = 1 / Math.sqrt(square + 1e-5);
    return row.map((value, i) => (value - mean) * scale * weight[i] + bias[i]);
  });
}

const added = (x, y) => x.map((row, t) => row.map((value, i) => value + y[t][i]));

/** The probabilities of scores, in place. */
function softmax(scores) {
  let most = -Infinity, sum = 0;
  for (const score of scores) most = Math.max(most, score);
  for (let i = 0; i < scores.length; i++) sum += scores[i] = Math.exp(scores[i] - most);
  for (let i = 0; i < scores.length; i++) scores[i] /= sum;
  return scores;
}

/** Number of tokens that the cache holds. */
const cacheLength = (past) => (past ? past[0][0].k.length / past[0][0].size : 0);

/** The cache's first n entries. */
const first = (past, n) => past.map((heads) => heads.map(({ k, v, size }) => ({ k: k.subarray(0, n * size), v: v.subarray(0, n * size), size })));

/** Old entries, and the new rows after them. */
function grown(old, rows) {
  const size = rows[0].length, from = old ? old.length : 0, all = new Float64Array(from + rows.length * size);
  if (old) all.set(old);
  rows.forEach((row, t) => all.set(row, from + t * size));
  return all;
}

const causal = (row, column, P) => column <= P + row;

class GPT {
  constructor(file) {
    const { header, tensors } = safetensors(file);
    Object.assign(this, { config: header.config, vocabulary: header.vocabulary, tensors });
    this.vocabSize = header.config.vocab_size;
    this.blockSize = header.config.block_size;
  }

  /** One head: what its rows see, weighed, and its keys and values. */
  head(x, name, past, P, maySee) {
    const [query, key, value] = ["query", "key", "value"].map((part) => linear(x, this.tensors[`${name}.${part}.weight`]));
    const k = grown(past?.k, key), v = grown(past?.v, value), size = key[0].length, scale = size ** -0.5;
    const out = query.map((q, row) => {
      const scores = new Float64Array(P + x.length).fill(-Infinity), seen = new Float64Array(size);
      for (let column = 0, at = 0; column < scores.length; column++, at += size) {
        if (!maySee(row, column, P)) continue;
        let dot = 0;
        for (let i = 0; i < size; i++) dot += q[i] * k[at + i];
        scores[column] = dot * scale;
      }
      softmax(scores);
      for (let column = 0, at = 0; column < scores.length; column++, at += size) {
        const weight = scores[column];
        for (let i = 0; i < size; i++) seen[i] += weight * v[at + i];
      }
      return seen;
    });
    return { out, kv: { k, v, size } };
  }

  /** Attention, then feed-forward, each after a LayerNorm and added to the stream. */
  block(x, layer, past, P, maySee) {
    const w = (name) => this.tensors[`blocks.${layer}.${name}`], normal = layerNorm(x, w("ln1.weight"), w("ln1.bias"));
    const heads = Array.from({ length: this.config.n_head }, (_, h) => this.head(normal, `blocks.${layer}.sa.heads.${h}`, past?.[h], P, maySee));
    const together = x.map((row, t) => {
      const all = new Float64Array(row.length);
      heads.forEach(({ out }, h) => all.set(out[t], h * out[t].length));
      return all;
    });
    x = added(x, linear(together, w("sa.proj.weight"), w("sa.proj.bias")));
    const wide = linear(layerNorm(x, w("ln2.weight"), w("ln2.bias")), w("ffwd.net.0.weight"), w("ffwd.net.0.bias"));
    x = added(x, linear(wide.map((row) => row.map((value) => Math.max(0, value))), w("ffwd.net.2.weight"), w("ffwd.net.2.bias")));
    return { x, kvs: heads.map(({ kv }) => kv) };
  }

  /** One pass over tokens (T) after the cache: logits, T rows, and the new cache of P + T tokens. */
  forward(tokens, past = null, { positions = null, maySee = causal } = {}) {
    const P = cacheLength(past), C = this.config.n_embd, t = this.tensors, kvs = [];
    if (P + tokens.length > this.blockSize) throw new RangeError(`${tokens.length} tokens after ${P} run past the window of ${this.blockSize}`);
    let x = tokens.map((token, i) => {
      const position = positions ? positions(P, i) : P + i;
      const row = t["token_embedding_table.weight"].slice(token * C, (token + 1) * C);
      return row.map((value, c) => value + t["position_embedding_table.weight"][position * C + c]);
    });
    for (let layer = 0; layer < this.config.n_layer; layer++) {
      const made = this.block(x, layer, past?.[layer], P, maySee);
      x = made.x;
      kvs.push(made.kvs);
    }
    return { logits: linear(layerNorm(x, t["ln_f.weight"], t["ln_f.bias"]), t["lm_head.weight"]), kvs };
  }
}
