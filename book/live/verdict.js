"use strict";

// Is it still the target's text? Samples, each letter judged by the target's own p of it, given the
// letters before it: score of nanogpt/proof/statistics.py.

const LEVEL = 1e-4; // a right decoder is refused so rarely, by all tests at all looks together
const LEAST = 5; // outcomes expected in a cell of a χ² test, and the variance of what it sums

/** ln Γ(x) for x >= 1/2: Stirling's series, after going up to where it is exact. */
function lnGamma(x) {
  let shift = 0;
  for (; x < 10; x++) shift += Math.log(x);
  return (x - 0.5) * Math.log(x) - x + 0.5 * Math.log(2 * Math.PI) + 1 / (12 * x) - 1 / (360 * x ** 3) + 1 / (1260 * x ** 5) - shift;
}

/** How likely chance alone is to exceed a χ² of so many degrees of freedom. */
function pValue(statistic, freedom) {
  const a = freedom / 2, x = statistic / 2, front = Math.exp(a * Math.log(x) - x - lnGamma(a));
  if (statistic === Infinity) return 0;
  if (x <= 0) return 1;
  if (x < a + 1) { // the series of the lower part
    let term = 1 / a, sum = term;
    for (let n = 1; term > sum * 1e-16; n++) sum += term *= x / (a + n);
    return 1 - front * sum;
  }
  let f = 0; // the continued fraction of the upper part, from its end
  for (let n = 300; n > 0; n--) f = (n * (n - a)) / (x + 2 * n + 1 - a - f);
  return front / (x + 1 - a - f);
}

/** The new number of each of the cells: the rarest become cell 0, in which `least` are expected. */
function merged(expected, least = LEAST) {
  const order = [...expected.keys()].sort((a, b) => expected[a] - expected[b]);
  let total = 0, short = 0;
  for (const x of order) short += (total += expected[x]) < least;
  const n = Math.min(expected.length, Math.max(expected.filter((mass) => mass < least).length, 1 + short));
  const cell = expected.map(() => 0);
  order.slice(n).forEach((x, i) => (cell[x] = i + 1));
  return cell;
}

/** Eigenvalues of a symmetric matrix (rows of numbers), and its eigenvectors as rows: Jacobi's turns. */
function eigen(matrix) {
  const n = matrix.length, A = matrix.map((row) => Float64Array.from(row));
  const vectors = A.map((_, i) => Float64Array.from(A, (_, j) => (i === j ? 1 : 0)));
  const size = Math.max(...A.map((row, i) => Math.abs(row[i])), 1e-300);
  for (let sweep = 0; sweep < 60; sweep++) {
    let left = 0;
    for (let i = 0; i < n; i++) {
      for (let j = i + 1; j < n; j++) {
        if (Math.abs(A[i][j]) < 1e-14 * size) continue;
        left += 1;
        const theta = (A[j][j] - A[i][i]) / (2 * A[i][j]);
        const t = Math.sign(theta || 1) / (Math.abs(theta) + Math.sqrt(theta * theta + 1)), c = 1 / Math.sqrt(t * t + 1), s = t * c;
        for (let k = 0; k < n; k++) [A[k][i], A[k][j]] = [c * A[k][i] - s * A[k][j], s * A[k][i] + c * A[k][j]];
        for (const M of [A, vectors]) {
          for (let k = 0; k < n; k++) [M[i][k], M[j][k]] = [c * M[i][k] - s * M[j][k], s * M[i][k] + c * M[j][k]];
        }
      }
    }
    if (left === 0) break;
  }
  return { values: A.map((row, i) => row[i]), vectors };
}

/** Outcomes, each with probabilities of its own, added up: what came, what was expected, how it varies. */
class Tally {
  constructor(cells) {
    this.n = 0;
    this.impossible = false;
    this.came = new Float64Array(cells);
    this.expected = new Float64Array(cells);
    this.products = Array.from({ length: cells }, () => new Float64Array(cells)); // Σ p pᵀ
  }

  /** row: the exact probabilities of the cells; cell: the one it fell into. */
  add(row, cell) {
    this.n += 1;
    this.came[cell] += 1;
    if (row[cell] === 0) this.impossible = true;
    row.forEach((p, x) => {
      if (p === 0) return;
      this.expected[x] += p;
      const products = this.products[x];
      for (let y = 0; y < row.length; y++) products[y] += p * row[y];
    });
  }

  /** Add what another tally of the same cells has, or its data. */
  take({ n, impossible, came, expected, products }) {
    this.n += n;
    this.impossible ||= impossible;
    for (const [mine, other] of [[this.came, came], [this.expected, expected], ...this.products.map((row, x) => [row, products[x]])]) other.forEach((count, x) => (mine[x] += count));
  }

  /** χ² of what came, its degrees of freedom, and its p-value; χ² is infinite if the impossible came. */
  score() {
    const cell = merged([...this.expected]), C = Math.max(...cell) + 1, sums = (row) => row.reduce((all, x, i) => ((all[cell[i]] += x), all), new Float64Array(C));
    const expected = sums(this.expected), came = sums(this.came), covariance = Array.from({ length: C }, () => new Float64Array(C));
    this.products.forEach((row, x) => sums(row).forEach((mass, y) => (covariance[cell[x]][y] -= mass)));
    expected.forEach((mass, x) => (covariance[x][x] += mass));
    const { values, vectors } = eigen(covariance);
    let statistic = this.impossible ? Infinity : 0;
    vectors.forEach((vector, i) => (statistic += vector.reduce((sum, v, x) => sum + v * (came[x] - expected[x]), 0) ** 2 / Math.max(values[i], LEAST)));
    const freedom = Math.max(1, values.filter((value) => value > 1e-9 * this.n).length);
    return { statistic, freedom, p: pValue(statistic, freedom) };
  }

  /** Half the sum of |came − expected|, as a share: 0 if all is as expected. And what chance leaves of it. */
  distance() {
    const off = this.came.reduce((sum, n, x) => sum + Math.abs(n - this.expected[x]), 0) / 2 / this.n;
    const spread = this.expected.reduce((sum, mass, x) => sum + Math.sqrt(Math.max(0, mass - this.products[x][x])), 0);
    return { off, chance: spread / Math.sqrt(2 * Math.PI) / this.n };
  }
}

const RANKS = [1, 2, 3, 5, 9]; // the likeliest letter, the second, the third, the 4th and 5th, …

/** The cell of each letter by how likely it is, and what those cells have of p. */
function byRank(p) {
  const cell = new Int32Array(p.length), row = new Float64Array(RANKS.length + 1);
  [...p.keys()].sort((a, b) => p[b] - p[a] || a - b).forEach((x, rank) => (cell[x] = RANKS.filter((edge) => edge <= rank).length));
  p.forEach((mass, x) => (row[cell[x]] += mass));
  return { row, cell };
}

/** Cell 0: the letters that the draft likes more than the target does; cell 1: all others. */
function byFavour(p, q) {
  const cell = p.map((mass, x) => (q[x] > mass ? 0 : 1)), row = new Float64Array(2);
  p.forEach((mass, x) => (row[cell[x]] += mass));
  return { row, cell };
}

/** Texts of one prompt, and what the target thinks of each of their letters. */
class Samples {
  constructor({ target, draft, prompt, length, K, temperature, seed, steps }) {
    Object.assign(this, { target, draft, prompt, length, K, temperature, seed, steps, made: 0 });
    this.past = prompt.length > 1 ? target.forward(prompt.slice(0, -1)).kvs : null;
    this.letters = new Tally(target.vocabSize);
    this.ranks = new Tally(RANKS.length + 1);
    this.favour = new Tally(2);
  }

  /** Write text i, and read it again: one pass of the target that no bug touches. */
  one(i) {
    const text = new Text(this.target, this.prompt, this.length), rng = new RandomSource((this.seed * 100003 + i) % 2 ** 32);
    text.past = this.past;
    for (const _ of speculativeRounds(text, this.draft, this.K, this.temperature, rng, this.steps)) continue;
    const made = text.tokens.slice(this.prompt.length, this.prompt.length + this.length), own = this.draft.fresh();
    const { logits } = this.target.forward([this.prompt.at(-1), ...made.slice(0, -1)], this.past);
    made.forEach((token, i) => {
      const p = probsOf(logits[i], this.temperature), q = ofProbs(own.getProbs([...this.prompt, ...made.slice(0, i)]), this.temperature);
      this.letters.add(p, token);
      for (const [tally, { row, cell }] of [[this.ranks, byRank(p)], [this.favour, byFavour(p, q)]]) tally.add(row, cell[token]);
    });
    this.made += 1;
  }

  /** What was counted, as data; and take: add what another one counted. */
  counts() {
    return { made: this.made, letters: this.letters, ranks: this.ranks, favour: this.favour };
  }

  take({ made, ...tallies }) {
    this.made += made;
    for (const [name, tally] of Object.entries(tallies)) this[name].take(tally);
  }

  /** Three tests at each of five looks, at LEVEL together: refused if one of them is. */
  verdict() {
    const tests = { letters: this.letters.score(), ranks: this.ranks.score(), favour: this.favour.score() };
    const p = Math.min(1, 3 * LOOKS.length * Math.min(...Object.values(tests).map((test) => test.p)));
    return { ...tests, p, refused: p < LEVEL };
  }
}
