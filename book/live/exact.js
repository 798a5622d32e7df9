"use strict";

// The exact distribution of a program that draws from a RandomSource: nanogpt/proof/exact.py.

/** Stands for a RandomSource on one path: follows `choices`, then takes the first possible ones. */
class Branch {
  constructor(choices) {
    Object.assign(this, { choices: [...choices], probability: 1, alternatives: [], depth: 0 });
  }

  choose(options) {
    options = options.filter(([, chance]) => chance > 0);
    if (this.depth === this.choices.length) {
      for (const [value] of options.slice(1)) this.alternatives.push([...this.choices, value]);
      this.choices.push(options[0][0]);
    }
    const value = this.choices[this.depth++];
    this.probability *= options.find(([other]) => other === value)[1];
    return value;
  }

  bernoulli(probability) {
    return this.choose([[true, probability], [false, 1 - probability]]);
  }

  categorical(probs) {
    checkProbabilities(probs);
    return this.choose([...probs].map((chance, x) => [x, chance]));
  }
}

/** {outcome: probability} of program(rng), an outcome as JSON, by walking every branch. */
function enumerateOutcomes(program) {
  const outcomes = {}, waiting = [[]];
  while (waiting.length) {
    const branch = new Branch(waiting.pop()), outcome = JSON.stringify(program(branch));
    outcomes[outcome] = (outcomes[outcome] ?? 0) + branch.probability;
    waiting.push(...branch.alternatives);
  }
  return outcomes;
}
