"use strict";

// Rounds as the player reads them. A trace is a list of rounds. A round has drafts [{text, p, q, u,
// fate}], the last token {text, fate, p, residual}, cache [before, after the pass, trimmed], and
// restart. Rounds and steps count from 0. A draft whose parent is not the one before it names it (-1:
// the current token). One whose siblings were refused has left: what they left of p, by which it was
// judged. A round judged as a block has block, and its drafts a chance that they and all before them
// stay, and the u of that coin, if it was tossed. Live rounds keep all of p and q, too.

/** Uniform numbers of a seed; those that bernoulli asked for are noted. */
class NotingSource extends RandomSource {
  constructor(seed, uniforms) {
    super(seed, uniforms);
    this.noted = [];
    const { random } = this.uniforms, inner = this.uniforms;
    this.uniforms = { random: () => (this.latest = random.call(inner)) };
  }

  bernoulli(probability) {
    const happened = super.bernoulli(probability);
    this.noted.push(this.latest);
    return happened;
  }
}

/** The drafts of a round judged one by one; us: the numbers that its coins were. */
function judgedOneByOne({ candidates, q, p, emitted }, us) {
  const kept = emitted.length - 1;
  return candidates.map((token, i) => ({
    p: p[i][token], q: q[i][token], u: us[i] ?? null,
    fate: i < kept ? "accepted" : us[i] === undefined ? "unexamined" : "rejected",
  }));
}

/** The drafts of a round judged as a block, whose coins were tossed from the last candidate back. */
function judgedAsBlock({ candidates, q, p, emitted }, us) {
  const chances = prefixChances(candidates, q, p), K = candidates.length, kept = emitted.length - 1;
  return candidates.map((token, i) => {
    const { excess } = i + 1 < K ? blockExcess(i + 1, chances, q, p) : {}, off = excess + (1 - chances[i + 1]);
    const chance = i + 1 === K ? chances[K] : off > 0 ? excess / off : 1;
    return { p: p[i][token], q: q[i][token], P: chances[i], chance, u: us[K - 1 - i] ?? null, fate: i < kept ? "accepted" : "rejected" };
  });
}

/** One round as the player reads it. */
function roundOf(round, us, block, letters) {
  const { candidates, q, p, emitted, restart, cacheLen } = round, kept = emitted.length - 1, token = emitted.at(-1);
  const drafts = (block ? judgedAsBlock : judgedOneByOne)(round, us).map((draft, i) => ({ text: letters[candidates[i]], ...draft }));
  const resampled = kept < candidates.length, last = { text: letters[token], fate: resampled ? "resampled" : "bonus", p: p[kept][token] };
  if (resampled) last.residual = residual(block ? p[kept].map((mass) => mass * drafts[kept].P) : p[kept], q[kept])[token];
  const cache = [cacheLen, cacheLen + 1 + drafts.length, cacheLen + 1 + kept];
  return { restart, block, cache, drafts, last, rows: { p, q } };
}

/** A text written both ways: the trace of the speculative one, and the letters of the plain one. */
function writeBoth({ target, draft, prompt, length, K, temperature, seed, steps, block = false, uniforms = undefined }) {
  const letters = target.vocabulary, text = new Text(target, prompt, length), rng = new NotingSource(seed, uniforms), rounds = [];
  let stopped = null;
  try {
    for (const round of speculativeRounds(text, draft, K, temperature, rng, steps)) rounds.push(roundOf(round, rng.noted.splice(0), block, letters));
  } catch (error) {
    if (!(error instanceof RangeError) || rounds.length === 0) throw error;
    stopped = error.message; // a bug that keeps too much runs past the window
  }
  const plain = [...autoregressiveRounds(new Text(target, prompt, length), temperature, new RandomSource(seed))];
  return { prompt: prompt.slice(-target.blockSize).map((token) => letters[token]).join(""), rounds, stopped, plain: plain.map((token) => letters[token]) };
}
