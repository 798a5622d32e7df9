"use strict";

// Rounds as the player reads them. A trace is a list of rounds. A round has drafts [{text, p, q, u,
// fate}], the last token {text, fate, p, residual}, cache [before, after the pass, trimmed], and
// restart. Rounds and steps count from 0. A draft whose parent is not the one before it names it (-1:
// the current token). One whose siblings were refused has left: what they left of p, by which it was
// judged. A round judged as a block has block, and its drafts a chance that they and all before them
// stay, and the u of that coin, if it was tossed. Live rounds also have all of p and q, what the cache
// held, and what a bug did: a guess that was dropped, or where the right trim would have ended.

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

/** The same where a bug tosses them from the first on: what is after the first failure had no coin. */
function judgedForward(round, us) {
  const kept = round.emitted.length - 1;
  return judgedAsBlock(round, us).map((draft, i) => ({ ...draft, u: us[i] ?? null, fate: i < kept ? "accepted" : i === kept ? "rejected" : "unexamined" }));
}

const JUDGED = { false: judgedOneByOne, back: judgedAsBlock, forward: judgedForward };

/** One round as the player reads it. block: false, or which way its coins were tossed. */
function roundOf(round, us, block, letters) {
  const { candidates, q, p, emitted, restart, dropped } = round, kept = emitted.length - 1, token = emitted.at(-1);
  const drafts = JUDGED[block](round, us).map((draft, i) => ({ text: letters[candidates[i]], ...draft }));
  const resampled = kept < candidates.length, last = { text: letters[token], fate: resampled ? "resampled" : "bonus", p: p[kept][token] };
  if (resampled) last.residual = residual(block ? p[kept].map((mass) => mass * drafts[kept].P) : p[kept], q[kept])[token];
  return { restart, block, drafts, last, rows: { p, q }, dropped: dropped && { text: letters[dropped.token], q: dropped.q } };
}

/** The rounds of a text, and what its cache holds before each: [letter, whether it was rejected]. */
function* tracedRounds(text, rounds, rng, block) {
  const letters = text.target.vocabulary, entries = (tokens) => tokens.map((token) => [letters[token], false]);
  let held = null; // nothing was read yet
  for (const round of rounds) {
    const at = text.tokens.length - round.emitted.length - 1, unread = held === null || round.restart; // at: of the current token
    if (unread) held = entries(text.tokens.slice(text.start, at));
    const made = roundOf(round, rng.noted.splice(0), block, letters), kept = round.emitted.length - 1, right = held.length + 1 + kept;
    const guesses = made.drafts.map((draft, i) => [draft.text, i >= kept]), after = [...held, ...entries([text.tokens[at]]), ...guesses];
    const trimmed = cacheLength(text.past);
    yield { ...made, held, unread, right, cache: [held.length, after.length, trimmed] };
    held = after.slice(0, trimmed);
  }
}

/** A text written both ways: the trace of the speculative one, and the letters of the plain one. */
function writeBoth({ target, draft, prompt, length, K, temperature, seed, steps, block = false, uniforms = undefined }) {
  const letters = target.vocabulary, text = new Text(target, prompt, length), rng = new NotingSource(seed, uniforms), rounds = [];
  let stopped = null;
  try {
    for (const round of tracedRounds(text, speculativeRounds(text, draft, K, temperature, rng, steps), rng, block)) rounds.push(round);
  } catch (error) {
    if (!(error instanceof RangeError) || rounds.length === 0) throw error;
    stopped = error.message; // a bug that keeps too much runs past the window
  }
  const plain = [...autoregressiveRounds(new Text(target, prompt, length), temperature, new RandomSource(seed))];
  return { prompt: prompt.slice(-target.blockSize).map((token) => letters[token]).join(""), rounds, stopped, plain: plain.map((token) => letters[token]) };
}
