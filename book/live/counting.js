"use strict";

// Many texts, counted in pieces of a few. The page asks two workers, which run this very code, or
// does it itself where it may have none.

const LOOKS = [100, 200, 500, 1000, 2000]; // after so many texts they are judged; LEVEL is for all looks together
const FURTHER = 4; // how many letters more than K a counted text has, where chance has a say
const PIECE = 5; // texts

/** What a page counts: Samples of a count that is asked for in plain data (rule, and the bug's number). */
function samplesOf(models, asked) {
  return new Samples({ ...asked, target: models.target, draft: models[asked.draft], steps: decoderOf(asked.rule, asked.bug) });
}

const breathe = () => new Promise((resolve) => setTimeout(resolve));

/** Texts from … to − 1 of what is asked: what each tally counted. pause: called before each text. */
async function countPiece(models, { asked, from, to }, pause) {
  const samples = samplesOf(models, asked);
  for (let i = from; i < to; i++) {
    await pause();
    samples.one(i);
  }
  return samples.counts();
}

/** Models that came as data, with their classes again. */
function revived({ target, bigram, distilled, transformer }) {
  for (const gpt of [target, transformer.model]) Object.setPrototypeOf(gpt, GPT.prototype);
  for (const [draft, kind] of [[bigram, BigramDraftModel], [distilled, NGramDraft], [transformer, TransformerDraft]]) Object.setPrototypeOf(draft, kind.prototype);
  return { target, bigram, distilled, transformer };
}

/** What a worker does with its messages: first the models, then pieces, each with its number. */
function answerMessages() {
  let models = null;
  self.onmessage = async ({ data: { given, number, piece } }) => {
    try {
      if (given) models = revived(given);
      self.postMessage({ number, counts: piece ? await countPiece(models, piece, () => null) : null });
    } catch (error) {
      self.postMessage({ number, error: error.message });
    }
  };
}
if (typeof document === "undefined") answerMessages();

/** A worker that counts: a function that takes a piece and promises its counts. */
async function workerThatCounts(address, models) {
  const worker = new Worker(address), waiting = new Map();
  let asked = 0, broken = null;
  worker.onmessage = ({ data: { number, counts, error } }) => {
    const { resolve, reject } = waiting.get(number);
    waiting.delete(number);
    if (error) reject(new Error(error));
    else resolve(counts);
  };
  worker.onerror = (event) => {
    event.preventDefault();
    broken = new Error(event.message);
    for (const { reject } of waiting.values()) reject(broken);
  };
  const ask = (message) => new Promise((resolve, reject) => {
    if (broken) throw broken;
    waiting.set(asked, { resolve, reject });
    worker.postMessage({ ...message, number: asked++ });
  });
  await ask({ given: models });
  return (piece) => ask({ piece });
}

/** All that count: workers, or the page itself, a text at a time so that it stays awake. */
async function counters(models) {
  const engine = [...document.querySelectorAll("script.engine")].map((script) => script.textContent).join("\n");
  const own = [(piece) => countPiece(models, piece, breathe)];
  try {
    const address = URL.createObjectURL(new Blob([engine], { type: "text/javascript" }));
    return await Promise.all(Array.from({ length: Math.min(2, navigator.hardwareConcurrency ?? 1) }, () => workerThatCounts(address, models)));
  } catch {
    return own;
  }
}

/**
 * Count for all of these Samples until one is refused, or `most` texts of each are there. Calls
 * `shown` after each piece and, with the verdicts, after each look; stops where that returns false.
 */
async function countAll(all, most, counting, shown) {
  let verdicts = null, wanted = true;
  for (const look of [...LOOKS.filter((n) => n < most), most]) {
    const pieces = [];
    for (let from = all[0].samples.made; from < look; from += PIECE) {
      for (const { asked, samples } of all) pieces.push({ samples, asked, from, to: Math.min(from + PIECE, look) });
    }
    await Promise.all(counting.map(async (count) => {
      while (wanted && pieces.length) {
        const { samples, ...piece } = pieces.shift(), counts = await count(piece);
        if (!wanted) return;
        samples.take(counts);
        wanted = shown(null) !== false;
      }
    }));
    if (!wanted) return null;
    verdicts = all.map(({ samples }) => samples.verdict());
    if (shown(verdicts) === false) return null;
    if (verdicts.some(({ refused }) => refused)) break;
  }
  return verdicts;
}
