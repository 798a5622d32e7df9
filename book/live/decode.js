"use strict";

// The loop: draft, verify, accept or reject, trim. nanogpt/generate.py and nanogpt/speculative.py.

/** K tokens drawn one after another from the draft, and the q that each was drawn from. */
function draftTokens(draft, context, K, temperature, rng) {
  const tokens = [...context], q = [];
  for (let n = 0; n < K; n++) {
    q.push(ofProbs(draft.getProbs(tokens), temperature));
    tokens.push(rng.categorical(q[n]));
  }
  return { candidates: tokens.slice(context.length), q };
}

/** The target's p for each candidate and for the token after them, from one pass. how: for a bug. */
function verifyCandidates(target, current, candidates, past, temperature, unread = [], how = {}) {
  const { logits, kvs } = target.forward([...unread, current, ...candidates], past, how);
  return { p: logits.slice(unread.length).map((row) => probsOf(row, temperature)), kvs };
}

/** The cache after a round: the entries before the current token, and as many more as were emitted. */
const trimKvCache = (kvs, emitted, before) => first(kvs, before + emitted);

const CHAIN = { draft: draftTokens, verify: verifyCandidates, accept: acceptReject, trim: trimKvCache };

/** One text that is being written: its tokens, and the cache of its context as far as it was read. */
class Text {
  constructor(target, prompt, maxNewTokens) {
    this.blockSize = target.blockSize;
    this.tokens = prompt.slice(-this.blockSize);
    this.nPrompt = this.tokens.length;
    Object.assign(this, { target, end: this.nPrompt + maxNewTokens, start: 0, past: null });
  }

  get position() {
    return this.tokens.length - 1 - this.start;
  }

  get unread() {
    return this.tokens.slice(this.start + cacheLength(this.past), -1);
  }

  get room() {
    return Math.min(this.end - this.tokens.length, this.blockSize - this.position) - 1;
  }

  get done() {
    return this.tokens.length >= this.end;
  }

  /** Where the context fills the window, go on from the last half of it, unread. Says whether it did. */
  restartIfFull() {
    if (this.position < this.blockSize) return false;
    Object.assign(this, { start: this.tokens.length - 1 - this.blockSize / 2, past: null });
    return true;
  }
}

/** Write the text to its end, one token a pass; yields each token. */
function* autoregressiveRounds(text, temperature, rng) {
  while (!text.done) {
    text.restartIfFull();
    const { p, kvs } = verifyCandidates(text.target, text.tokens.at(-1), [], text.past, temperature, text.unread);
    text.past = kvs;
    text.tokens.push(rng.categorical(p[0]));
    yield text.tokens.at(-1);
  }
}

/** Write the text to its end; yields each round when its tokens are there. */
function* speculativeRounds(text, draft, K, temperature, rng, steps = CHAIN) {
  const own = draft.fresh();
  while (!text.done) {
    const restart = text.restartIfFull(), k = Math.min(K, text.room), current = text.tokens.at(-1), n = text.position;

    const { candidates, q, dropped = null } = steps.draft(own, text.tokens, k, temperature, rng);
    const { p, kvs } = steps.verify(text.target, current, candidates, text.past, temperature, text.unread);
    const emitted = steps.accept(candidates, q, p, rng);
    text.past = steps.trim(kvs, emitted.length, n);

    text.tokens.push(...emitted);
    yield { candidates, q, p, emitted, restart, dropped };
  }
}
