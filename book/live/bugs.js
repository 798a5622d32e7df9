"use strict";

// Ten bugs of the gallery (nanogpt/proof/bugs.py), with its numbers and titles: each puts another
// function in the place of one of the four steps. rule: of which the bug is, if it is of one.

/** accept_reject with another residual, chance or bonus. */
function acceptRejectWith({ instead = residual, chance = (i, token, q, p) => p[i][token] / q[i][token], bonus = (row, rng) => rng.categorical(row) }) {
  return (candidates, q, p, rng) => {
    for (const [i, token] of candidates.entries()) {
      if (!rng.bernoulli(Math.min(1, chance(i, token, q, p)))) return [...candidates.slice(0, i), rng.categorical(instead(p[i], q[i], token))];
    }
    return [...candidates, bonus(p[candidates.length], rng)];
  };
}

const normalised = (row) => {
  const total = row.reduce((sum, mass) => sum + mass, 0);
  return row.map((mass) => mass / total);
};

/** draft_tokens that looks at each token, and drops it, and all that would follow, where q is small. */
function draftThatPeeks(draft, context, K, temperature, rng) {
  const { candidates, q } = draftTokens(draft, context, K, temperature, rng);
  const dropped = candidates.findIndex((token, n) => q[n][token] < 0.3), n = dropped < 0 ? K : dropped;
  return { candidates: candidates.slice(0, n), q: q.slice(0, n) };
}

/** accept_blockwise with its coins tossed from the first candidate on, until one falls wrong. */
function acceptBlockwiseForward(candidates, q, p, rng) {
  const chances = prefixChances(candidates, q, p), K = candidates.length;
  for (let i = 1; i <= K; i++) {
    const { excess } = i < K ? blockExcess(i, chances, q, p) : {}, off = excess + (1 - chances[i]);
    if (rng.bernoulli(i === K ? chances[K] : off > 0 ? excess / off : 1)) continue;
    return [...candidates.slice(0, i - 1), rng.categorical(residual(p[i - 1].map((mass) => chances[i - 1] * mass), q[i - 1]))];
  }
  return [...candidates, rng.categorical(p[K])];
}

const BUGS = [
  { number: 1, title: "on rejection, resample from p instead of the residual", rule: "reject",
    says: "A rejected guess is replaced by a draw from p, as if nothing had been guessed. But the letters that the draft likes too much had their chance already, and get another.",
    steps: { accept: acceptRejectWith({ instead: (p) => p }) } },
  { number: 2, title: "residual not clamped at 0: the sign is dropped", rule: "reject",
    says: "The difference p − q lost its sign, so that a letter that the draft guesses too often is put in place of a rejected one as well.",
    steps: { accept: acceptRejectWith({ instead: (p, q) => (p.some((mass, x) => mass !== q[x]) ? normalised(p.map((mass, x) => Math.abs(mass - q[x]))) : p) }) } },
  { number: 4, title: "on rejection, only the rejected token is removed from p", rule: "reject",
    says: "What replaces a rejected guess is drawn from p without that one letter. All the others should give up what the draft has of them, too.",
    steps: { accept: acceptRejectWith({ instead: (p, q, token) => normalised(p.map((mass, x) => (x === token ? 0 : mass))) }) } },
  { number: 8, title: "bonus token by argmax while sampling", rule: "reject",
    says: "The bonus is always the likeliest letter. Where it would have been another one, it never is.",
    steps: { accept: acceptRejectWith({ bonus: (row) => row.indexOf(Math.max(...row)) }) } },
  { number: 11, title: "every draft is accepted", rule: "reject",
    says: "Nobody checks: what you read is mostly the draft's text. It is the fastest decoder of all.",
    steps: { accept: acceptRejectWith({ chance: () => 1 }) } },
  { number: 12, title: "p is read one position off", rule: "reject",
    says: "A guess is judged by p of the place after it, which knows nothing of this one.",
    steps: { accept: acceptRejectWith({ chance: (i, token, q, p) => p[i + 1][token] / q[i][token] }) } },
  { number: 13, title: "trim keeps one entry too many: a rejected token stays", rule: null,
    says: "After a rejection, the target still sees the letter that it rejected, in every pass to come.",
    steps: { trim: (kvs, emitted, before) => first(kvs, Math.min(before + emitted + 1, cacheLength(kvs))) } },
  { number: 17, title: "positions restart at 0 with a cache", rule: null,
    says: "New tokens are told that they stand at the beginning of the text. Nothing crashes; the target merely reads a jumbled text.",
    steps: { verify: (target, current, candidates, past, temperature, unread) => verifyCandidates(target, current, candidates, past, temperature, unread, { positions: (P, i) => i }) } },
  { number: 20, title: "a stop rule looks at a drafted token, discards it, and p is sampled instead", rule: null,
    says: "Where the draft drew an unlikely letter, it stops and lets the target draw. So unlikely letters get a second throw, and likely ones are kept.",
    steps: { draft: draftThatPeeks } },
  { number: 40, title: "block verification stops at the first failure", rule: "block",
    says: "The coins are tossed from the first guess on, and the first that falls wrong ends the block. But each was made to be tossed only where all later ones have failed.",
    steps: { accept: acceptBlockwiseForward } },
];
