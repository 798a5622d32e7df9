"use strict";

// Ten bugs of the gallery (nanogpt/proof/bugs.py), with its numbers and titles: each puts another
// function in the place of one of the four steps. rule: the rule that has the bug, if only one has.
// acts: whether it changes what happens at a step of a round, as the player has them.

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
  const n = candidates.findIndex((token, i) => q[i][token] < 0.3);
  if (n < 0) return { candidates, q };
  return { candidates: candidates.slice(0, n), q: q.slice(0, n), dropped: { token: candidates[n], q: q[n][candidates[n]] } };
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

const replaced = ({ now, round }) => now.kind === "last" && round.last.fate === "resampled";

const BUGS = [
  { number: 1, title: "on rejection, resample from p instead of the residual", rule: "reject", acts: replaced,
    says: "A rejected guess is replaced by a draw from p. The draft's favourites had their chance already; now they get a second one.",
    steps: { accept: acceptRejectWith({ instead: (p) => p }) } },
  { number: 2, title: "residual not clamped at 0: the sign is dropped", rule: "reject", acts: replaced,
    says: "p − q has lost its sign. So letters that the draft guesses too often replace rejected guesses, too.",
    steps: { accept: acceptRejectWith({ instead: (p, q) => (p.some((mass, x) => mass !== q[x]) ? normalised(p.map((mass, x) => Math.abs(mass - q[x]))) : p) }) } },
  { number: 4, title: "on rejection, only the rejected token is removed from p", rule: "reject", acts: replaced,
    says: "What replaces a rejected guess is drawn from p without that one letter. The other letters should lose their q as well.",
    steps: { accept: acceptRejectWith({ instead: (p, q, token) => normalised(p.map((mass, x) => (x === token ? 0 : mass))) }) } },
  { number: 8, title: "bonus token by argmax while sampling", rule: "reject",
    acts: ({ now, round }) => now.kind === "last" && round.last.fate === "bonus",
    says: "The bonus is always the likeliest letter. No other letter ever gets a turn.",
    steps: { accept: acceptRejectWith({ bonus: (row) => row.indexOf(Math.max(...row)) }) } },
  { number: 11, title: "every draft is accepted", rule: "reject",
    acts: ({ now, draft }) => now.kind === "judge" && draft.u >= Math.min(1, draft.p / draft.q),
    says: "Nobody checks: what you read is mostly the draft's text. No decoder is faster, and none is more wrong.",
    steps: { accept: acceptRejectWith({ chance: () => 1 }) } },
  { number: 12, title: "p is read one position off", rule: "reject", acts: ({ now }) => now.kind === "judge",
    says: "A guess is judged by the wrong row of p: the one that says what should come after the guess.",
    steps: { accept: acceptRejectWith({ chance: (i, token, q, p) => p[i + 1][token] / q[i][token] }) } },
  { number: 13, title: "trim keeps one entry too many: a rejected token stays", rule: null,
    acts: ({ now, round }) => now.kind === "trim" && round.cache[2] > round.right,
    says: "After a rejection, the rejected letter stays in the cache. The target goes on reading it.",
    steps: { trim: (kvs, emitted, before) => first(kvs, Math.min(cacheLength(kvs), before + emitted + 1)) } },
  { number: 17, title: "positions restart at 0 with a cache", rule: null,
    acts: ({ now, round }) => now.kind === "verify" && !round.unread,
    says: "New letters get the positions 0, 1, 2 …, as if the text began there. Nothing crashes; the target reads a jumble.",
    steps: { verify: (target, current, candidates, past, temperature, unread) => verifyCandidates(target, current, candidates, past, temperature, unread, { positions: (P, i) => i }) } },
  { number: 20, title: "a stop rule looks at a drafted token, discards it, and p is sampled instead", rule: null,
    acts: ({ now }) => now.kind === "drop",
    says: "When the draft draws a letter below q = 0.3, it drops it and lets the target draw. Likely guesses are kept, so they come too often.",
    steps: { draft: draftThatPeeks } },
  { number: 40, title: "block verification stops at the first failure", rule: "block", acts: ({ now }) => now.kind === "judge",
    says: "The coins are tossed from the first guess on, and the first that fails ends the block. They must be tossed from the last guess back.",
    steps: { accept: acceptBlockwiseForward } },
];

/** The four steps of a decoder: the rule's, and what a bug of this number (or null) puts in their place. */
function decoderOf(rule, number = null) {
  return { ...CHAIN, accept: rule === "block" ? acceptBlockwise : acceptReject, ...BUGS.find((bug) => bug.number === number)?.steps };
}
