"use strict";

// What is accepted, and what comes instead: accept_reject of nanogpt/speculative.py, and
// accept_blockwise of nanogpt/trees/rules.py. p is the target's, q the draft's: rows of probabilities.

/** max(0, p − q) normalised: p's excess over q. p itself where nothing is left. */
function residual(p, q) {
  const excess = p.map((mass, x) => Math.max(0, mass - q[x])), total = excess.reduce((sum, mass) => sum + mass, 0);
  return total > 0 ? excess.map((mass) => mass / total) : p;
}

/** The tokens that a round emits, judged one by one: 1 … K + 1 of them, distributed as the target's own. */
function acceptReject(candidates, q, p, rng) {
  for (const [i, token] of candidates.entries()) {
    if (!rng.bernoulli(Math.min(1, p[i][token] / q[i][token]))) return [...candidates.slice(0, i), rng.categorical(residual(p[i], q[i]))];
  }
  return [...candidates, rng.categorical(p[candidates.length])];
}

/** P_0 … P_K: with what chance a block keeps its first i candidates, or more. */
function prefixChances(candidates, q, p) {
  const chances = [1];
  candidates.forEach((token, i) => chances.push(Math.min(1, (chances[i] * p[i][token]) / q[i][token])));
  return chances;
}

/** What is left of the target after i candidates of a block: max(0, P_i p − q), and its sum. */
function blockExcess(i, chances, q, p) {
  const above = p[i].map((mass, x) => Math.max(0, chances[i] * mass - q[i][x]));
  return { above, excess: above.reduce((sum, mass) => sum + mass, 0) };
}

/** The tokens that a round emits, judged as a block: coins are tossed from the last candidate back. */
function acceptBlockwise(candidates, q, p, rng) {
  const chances = prefixChances(candidates, q, p), K = candidates.length;
  if (rng.bernoulli(chances[K])) return [...candidates, rng.categorical(p[K])];
  for (let i = K - 1; ; i--) {
    const { above, excess } = blockExcess(i, chances, q, p), off = excess + (1 - chances[i]);
    if (i === 0 || rng.bernoulli(off > 0 ? excess / off : 1)) {
      return [...candidates.slice(0, i), rng.categorical(excess > 0 ? above.map((mass) => mass / excess) : p[i])];
    }
  }
}
