"use strict";

// Who guesses: nanogpt/drafts, bigram, ngram and transformer. A draft has vocabSize, and
// getProbs(context), q of the next token at temperature 1. fresh() is the same draft for another text.

/** What follows a letter in the corpus, counted, with one added (counts: V rows of V). */
class BigramDraftModel {
  constructor(counts) {
    this.vocabSize = counts.length;
    this.rows = counts.map((row) => {
      const total = row.reduce((sum, count) => sum + count, 0);
      return Float64Array.from(row, (count) => count / total);
    });
  }

  getProbs(context) {
    return this.rows[context.at(-1)];
  }

  fresh() {
    return this;
  }
}

/** The bytes that zlib made of these, unpacked. */
async function unpacked(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Where each of `sizes` begins, laid one after another from `first`. */
function begins(sizes, first = 0) {
  const found = new Int32Array(sizes.length + 1);
  found[0] = first;
  sizes.forEach((size, i) => (found[i + 1] = found[i] + size));
  return found;
}

/** The tree of contexts that was distilled from the target; the longest one that it knows decides. */
class NGramDraft {
  static async load(file) {
    const { header, tensors } = safetensors(file), draft = new NGramDraft();
    const [children, tokens, sizes, followers, weights] = await Promise.all(
      ["children", "tokens", "sizes", "followers", "weights"].map((name) => unpacked(tensors[name])));
    draft.vocabSize = header.vocabulary.length;
    Object.assign(draft, { tokens, followers, weights, child: begins(children, 1), entry: begins(sizes), kept: new Map() });
    return draft;
  }

  /** The nodes from the empty context to the longest end of `context` that is known. */
  path(context) {
    const nodes = [0];
    for (let back = context.length - 1; back >= 0; back--) {
      const node = nodes.at(-1), from = this.child[node];
      const longer = this.tokens.subarray(from, this.child[node + 1]).indexOf(context[back]);
      if (longer < 0) break;
      nodes.push(from + longer);
    }
    return nodes;
  }

  /** The row of the last node: its own entries, and of what they leave, its parent's row. */
  row(nodes) {
    const node = nodes.at(-1);
    if (this.kept.has(node)) return this.kept.get(node);
    const parent = nodes.length > 1 ? this.row(nodes.slice(0, -1)) : new Float32Array(this.vocabSize).fill(1 / this.vocabSize);
    const row = new Float32Array(this.vocabSize);
    let used = 0;
    for (let i = this.entry[node]; i < this.entry[node + 1]; i++) used += row[this.followers[i]] = (this.weights[i] / 255) ** 2;
    const rest = Math.max(1 - used, 0);
    row.forEach((weight, x) => (row[x] = weight + rest * parent[x]));
    const sum = row.reduce((total, weight) => total + weight, 0);
    row.forEach((weight, x) => (row[x] = weight / sum));
    this.kept.set(node, row);
    return row;
  }

  getProbs(context) {
    const row = this.row(this.path(context)), sum = row.reduce((total, weight) => total + weight, 0);
    return Float64Array.from(row, (weight) => weight / sum); // to the last bit: the claimed q is the drawn q
  }

  fresh() {
    return this;
  }
}

/** How many tokens a and b have in common from the start. */
function commonPrefix(a, b) {
  const differs = a.findIndex((token, i) => token !== b[i]);
  return differs < 0 ? a.length : differs;
}

/** Where a window's view of a text of `length` starts: a multiple of half a window. */
function windowStart(length, blockSize) {
  const half = Math.max(1, Math.floor(blockSize / 2));
  return Math.max(0, Math.ceil((length - blockSize) / half) * half);
}

/** A small GPT that reads only what it has not read yet, and forgets what was rejected. */
class TransformerDraft {
  constructor(model) {
    Object.assign(this, { model, vocabSize: model.vocabSize, tokens: [], past: null });
  }

  getProbs(context) {
    context = context.slice(windowStart(context.length, this.model.blockSize));
    const kept = commonPrefix(this.tokens, context.slice(0, -1)); // the last token is always read
    const past = kept ? first(this.past, kept) : null;
    const { logits, kvs } = this.model.forward(context.slice(kept), past);
    Object.assign(this, { tokens: context, past: kvs });
    return probsOf(logits.at(-1), 1);
  }

  fresh() {
    return new TransformerDraft(this.model);
  }
}
