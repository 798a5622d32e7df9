"use strict";

// From logits to probabilities to tokens: nanogpt/sampling.py. A seed gives the numbers that it
// gives in Python, so that the same seed writes the same text.

/** Logits -> probabilities. At temperature 0, all of it on the first best one. */
function probsOf(logits, temperature) {
  let best = 0;
  logits.forEach((logit, x) => { if (logit > logits[best]) best = x; });
  if (temperature === 0) return Float64Array.from(logits, (_, x) => (x === best ? 1 : 0));
  return softmax(Float64Array.from(logits, (logit) => (logit - logits[best]) / temperature));
}

/** The same rule for probabilities instead of logits; those of 0 stay 0. */
const ofProbs = (probs, temperature) => (temperature === 1 ? probs : probsOf(probs.map(Math.log), temperature));

/** NumPy's default generator, PCG64 seeded through SeedSequence: its uniform numbers in [0, 1). */
class Uniforms {
  constructor(seed) {
    const [stateHigh, stateLow, incrementHigh, incrementLow] = Uniforms.spread(seed);
    this.increment = (((incrementHigh << 64n) | incrementLow) << 1n | 1n) & Uniforms.MASK;
    this.state = 0n;
    this.step();
    this.state = (this.state + ((stateHigh << 64n) | stateLow)) & Uniforms.MASK;
    this.step();
  }

  step() {
    this.state = (this.state * 0x2360ed051fc65da44385df649fccf645n + this.increment) & Uniforms.MASK;
  }

  random() {
    this.step();
    const turn = this.state >> 122n, word = BigInt.asUintN(64, (this.state >> 64n) ^ this.state);
    const turned = BigInt.asUintN(64, (word >> turn) | (word << ((64n - turn) & 63n)));
    return Number(turned >> 11n) / 2 ** 53;
  }

  /** SeedSequence(seed).generate_state(4, uint64): four numbers of 64 bits from one of 32. */
  static spread(seed) {
    const mix = (hash, factor) => (value) => {
      value ^= hash;
      hash = Math.imul(hash, factor);
      value = Math.imul(value, hash);
      return value ^ (value >>> 16);
    };
    const hashed = mix(0x43b0d7e5, 0x931e8875), pool = [hashed(seed), hashed(0), hashed(0), hashed(0)];
    for (let from = 0; from < 4; from++)
      for (let to = 0; to < 4; to++)
        if (from !== to) {
          const value = Math.imul(pool[to], 0xca01f9dd) - Math.imul(hashed(pool[from]), 0x4973f715);
          pool[to] = value ^ (value >>> 16);
        }
    const out = mix(0x8b51f9dd, 0x58f38ded), words = Array.from({ length: 8 }, (_, i) => BigInt(out(pool[i % 4]) >>> 0));
    return [0, 2, 4, 6].map((i) => words[i] | (words[i + 1] << 32n));
  }
}
Uniforms.MASK = (1n << 128n) - 1n;

class RandomSource {
  /** uniforms: an object whose random() returns the next u; NumPy's of that seed if left out. */
  constructor(seed, uniforms = new Uniforms(seed)) {
    this.uniforms = uniforms;
  }

  bernoulli(probability) {
    if (!(0 <= probability && probability <= 1)) throw new RangeError(`probability is ${probability}; it must be in [0, 1]`);
    return this.uniforms.random() < probability;
  }

  /** A token drawn from probs: the place in their running sums where u falls. */
  categorical(probs) {
    checkProbabilities(probs);
    const sums = new Float64Array(probs.length);
    probs.reduce((sum, prob, x) => (sums[x] = sum + prob), 0);
    const u = this.uniforms.random() * sums[sums.length - 1];
    return sums.findIndex((sum) => u < sum);
  }
}

/** Throws unless probs are non-negative and sum to 1 within 1e-6. */
function checkProbabilities(probs) {
  const sum = probs.reduce((total, prob) => (prob >= 0 ? total + prob : NaN), 0);
  if (!(Math.abs(sum - 1) <= 1e-6)) throw new RangeError(`these are no probabilities: they sum to ${sum}`);
}
