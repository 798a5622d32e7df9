"use strict";

// The page: what the reader chooses, the text that is written with it, and the counts of many.

const ABOUT = {
  bigram: "Draft: a bigram, counted in {corpus}. It looks at the last letter only",
  distilled: "Draft: an n-gram tree distilled from the target (chapter 10)",
  transformer: "Draft: a one-layer transformer distilled from the target (chapter 11)",
};
const models = {}; // target, and the drafts by name
const defaults = {}; // what the fields hold at first
let count = null; // the count that is going on

// In JupyterLab, this page stands under …/files/book/, in a tab of its own or in the HTML viewer's frame:
// there the chapters are notebooks, each to be opened in another tab, and there is no book. Alone, it
// has nothing to lead to; the book's build shows the links.
function leadToChapters() {
  const inLab = new URL(document.baseURI).pathname.split("/files/book/");
  if (inLab.length !== 2) return;
  document.querySelector("nav").hidden = false;
  for (const link of document.querySelectorAll("nav a")) {
    const [, chapter] = link.getAttribute("href").match(/^notebooks\/(.*)\.html$/) || [];
    if (chapter) link.href = `${inLab[0]}/lab/tree/notebooks/${chapter}.ipynb`;
    else link.hidden = true;
    if (window.top !== window) link.target = "_blank";
  }
}

// ---- what is chosen ------------------------------------------------------------------------

/** The reader's settings. Throws one line that says what is wrong with them. */
function settings() {
  const number = (id) => {
    const field = $(id), name = field.labels[0].firstChild.textContent.trim();
    if (!field.checkValidity()) throw new RangeError(`${name} is ${field.value === "" ? "empty, or no number" : `“${field.value}”`}; it must be ${field.step === "1" ? "a whole number" : "a number"} from ${field.min} to ${field.max}.`);
    return Number(field.value);
  };
  const letters = [...typed($("prompt").value)], unknown = letters.findIndex((letter) => !models.target.vocabulary.includes(letter));
  if (letters.length > 80) throw new RangeError(`The prompt has ${letters.length} letters; 80 are the most.`);
  if (letters.length === 0) throw new RangeError("The prompt is empty. Type at least one letter.");
  if (unknown >= 0) throw new RangeError(`The model does not know “${letters[unknown]}” (letter ${unknown + 1} of the prompt). It knows A to Z, a to z, the space, ⏎, and ! $ & ' , - . 3 : ; ?`);
  const bug = BUGS.find(({ number }) => `${number}` === $("bug").value) ?? null;
  return {
    draft: $("draft").value, rule: $("rule").value, bug, K: number("K"), temperature: number("temperature"), seed: number("seed"), length: number("length"),
    prompt: letters.map((letter) => models.target.vocabulary.indexOf(letter)),
  };
}

/** What keyboards write by themselves, in the model's letters. */
const typed = (text) => text.replaceAll("⏎", "\n").replace(/[‘’“”]/g, "'").replace(/[–—]/g, "-").replaceAll("…", "...");

const LAST = " (The text below is the last one.)";

/** What `make` returns, or null after the reader was told what is wrong with the settings. */
function orRefused(make) {
  try {
    const made = make();
    $("refused").hidden = true;
    return made;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    stop();
    $("refused").textContent = error.message + LAST;
    $("refused").hidden = false;
    return null;
  }
}

/** Write a text with the settings, both ways, and show it at its start. uniforms: for a test. */
function write(uniforms = undefined) {
  const chosen = orRefused(settings);
  if (!chosen) return false;
  const { bug, draft, rule, K, temperature } = chosen, block = rule === "block" && (bug?.number === 40 ? "forward" : "back");
  const made = writeBoth({ ...chosen, target: models.target, draft: models[draft], steps: decoderOf(rule, bug?.number), block, uniforms });
  const about = `${ABOUT[draft]}. ${plural(K, "guess")} a round${block ? ", judged as a block" : ""}`;
  traces[LIVE] = prepare({ ...chosen, ...made, about, block, live: true, source: null });
  $("says").textContent = bug ? `⚠ Bug ${bug.number}: ${bug.title}. ${bug.says}` : "";
  $("says").hidden = !bug;
  $("cold").checked = temperature === 0;
  $("warm").checked = temperature === 1;
  watch(null);
  keepInAddress();
  return true;
}

/** Whether the two texts are the same, and what that means. done: whether both are there. */
function sameness({ temperature, tokens, plain, bug, rounds }, done) {
  const left = tokens.map(({ text }) => text), differs = plain.findIndex((letter, i) => letter !== left[i]);
  if (temperature > 0 && bug) return `Both texts are drawn by chance, so reading does not tell. Bug ${bug.number} is on: the decoder with the draft need not write like the target. Count, and see.`;
  if (temperature > 0) return "Both texts are drawn by chance, and every text is as likely with the draft as alone. Count, and see.";
  if (differs >= 0) return `✗ Not the same text, from letter ${differs + 1} on, though at temperature 0 the target has only one to give.${bug ? ` The reason: bug ${bug.number}.` : ""}`;
  if (!done) return "At temperature 0 the target has one text to give, and both will write it.";
  return `✓ The same text, letter by letter: ${plural(rounds.length, "pass")} of the target instead of ${plain.length}.${bug ? ` Bug ${bug.number} is on, but changes no letter of this text.` : ""}`;
}

/** A bug of one rule brings that rule along; another rule puts it out. Says what it did. */
function agree(changed) {
  const bug = BUGS.find(({ number }) => `${number}` === $("bug").value), names = { reject: "one by one", block: "as a block" };
  const fits = !bug?.rule || bug.rule === $("rule").value;
  $("agreed").hidden = fits;
  if (fits) return;
  if (changed === "bug") $("rule").value = bug.rule;
  else $("bug").value = "";
  const done = changed === "bug" ? "that is chosen now" : "it is switched off";
  $("agreed").textContent = `Bug ${bug.number} exists only where guesses are judged ${names[bug.rule]}, so ${done}.`;
}

/** The settings in the page's address, so that they can be sent; where that is allowed. */
const FIELDS = ["prompt", "draft", "K", "temperature", "bug", "rule", "seed", "length"];
function address() {
  const changed = FIELDS.filter((id) => $(id).value !== defaults[id]).map((id) => [id, $(id).value]);
  return location.href.split("#")[0] + (changed.length ? `#${new URLSearchParams(changed)}` : "");
}
function keepInAddress() {
  try {
    history.replaceState(null, "", address());
  } catch { /* a page in a frame may not */ }
}
/** What the address says, and of all else what the page opens with; false where one cannot be used. */
function takeFromAddress() {
  const said = Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
  for (const id of FIELDS) $(id).value = said[id] ?? defaults[id];
  for (const id of ["draft", "bug", "rule"]) if ($(id).selectedIndex < 0) $(id).value = defaults[id];
  agree("bug");
  if ($("bug").value) $("samples").open = true;
  if (write()) return;
  const why = $("refused").textContent.replace(LAST, "");
  for (const id of FIELDS) $(id).value = defaults[id];
  write();
  $("refused").textContent = `The address does not work here. ${why} The page opens without it.`;
  $("refused").hidden = false;
}
async function copyLink() {
  keepInAddress();
  try {
    await navigator.clipboard.writeText(address());
    $("copied").textContent = "Copied.";
  } catch {
    $("copied").textContent = address(); // to be copied by hand
  }
}

// ---- p over q ------------------------------------------------------------------------------

function svg(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** Which guess the present step looks at, whether p is known, and how much of p still counts. */
function lookedAt({ round, now, verified }) {
  const kept = round.drafts.filter(({ fate }) => fate === "accepted").length;
  const i = { draft: now.i, judge: now.i, last: kept, trim: kept, drop: round.drafts.length }[now.kind] ?? 0;
  return { i, known: verified, P: round.block ? round.drafts[i]?.P ?? 1 : 1 };
}

/** The letters with most of p or q, and their bars: the overlap, and what is above it. */
function drawOverlap(at) {
  const { rows, drafts } = at.round, blank = !rows || ["start", "restart"].includes(at.now.kind) || (at.round.block && at.now.kind === "judge"); // a block's coin looks at many
  $("overlap-figure").hidden = !rows;
  $("overlap").replaceChildren();
  $("overlap-title").textContent = blank ? "\u00a0" : "";
  if (blank) return;
  const { i, known, P } = lookedAt(at), letters = models.target.vocabulary, nothing = i >= drafts.length, guessed = nothing ? -1 : letters.indexOf(drafts[i].text);
  const q = rows.q[i] ?? letters.split("").map(() => 0), p = known ? rows.p[i].map((mass) => P * mass) : q.map(() => 0);
  const order = [...q.keys()].sort((a, b) => Math.max(p[b], q[b]) - Math.max(p[a], q[a])), shownLetters = order.slice(0, 14).filter((x) => Math.max(p[x], q[x]) >= 0.005);
  if (guessed >= 0 && !shownLetters.includes(guessed)) shownLetters.push(guessed);
  const top = Math.max(...shownLetters.map((x) => Math.max(p[x], q[x]))), height = (mass) => (120 * mass) / top;
  const bar = (x, from, to, fill) => svg("rect", { x: 12 + 39 * x, y: 136 - height(to), width: 26, height: height(to) - height(from), fill, class: "edge" });
  shownLetters.forEach((letter, x) => {
    const both = Math.min(p[letter], q[letter]), more = Math.max(p[letter], q[letter]);
    if (known && nothing) $("overlap").append(bar(x, 0, p[letter], "var(--target)"));
    else if (known) $("overlap").append(bar(x, 0, both, "var(--accepted)"), bar(x, both, more, q[letter] > p[letter] ? "url(#crossed)" : "url(#dotted)"));
    else $("overlap").append(bar(x, 0, q[letter], "url(#hatched)"));
    $("overlap").append(svg("text", { x: 25 + 39 * x, y: 152, class: letter === guessed ? "guessed" : "" }, shown(letters[letter])));
    if (letter === guessed) $("overlap").append(svg("text", { x: x === 0 ? 12 : 25 + 39 * x, y: 166, style: x === 0 ? "text-anchor: start" : "" }, "▲ guess"));
    $("overlap").append(svg("text", { x: 25 + 39 * x, y: 132 - height(more), class: "small" }, digits(more)));
  });
  const which = nothing ? "the letter after all guesses" : `guess ${i + 1}`, shared = q.reduce((sum, mass, x) => sum + Math.min(mass, p[x]), 0);
  const meaning = at.round.block ? ` (p counts ${digits(P)}-fold)` : ", the chance that a guess here is accepted";
  $("overlap-title").textContent = !known ? `q of ${which}` : nothing ? `p of ${which}` : `p and q of ${which}: they share ${digits(shared)}${meaning}`;
}

// ---- the counts ----------------------------------------------------------------------------

/** Bars from x on, a few units wide each: what came, and a line where it should have ended. */
function barsOf({ came, expected }, cells, names, x, wide) {
  const top = Math.max(...cells.flatMap((i) => [came[i], expected[i]]), 1), y = (n) => 172 - (150 * n) / top;
  return cells.flatMap((cell, i) => [
    svg("rect", { x: x + wide * (i + 0.15), y: y(came[cell]), width: 0.7 * wide, height: 172 - y(came[cell]), fill: "url(#ruled)", class: "edge" }),
    svg("path", { d: `M${x + wide * (i + 0.05)} ${y(expected[cell])}h${0.9 * wide}`, stroke: "var(--target)", "stroke-width": 4 }),
    svg("text", { x: x + wide * (i + 0.5), y: 190 }, names[i]),
  ]);
}

/** What was counted, beside what it should be: the commonest letters, their ranks, the draft's favourites. */
function drawCounts(picture, { letters, ranks, favour, target }, like = { letters }) { // like: whose order of letters
  const order = like.letters.expected, most = [...order.keys()].sort((a, b) => order[b] - order[a]).slice(0, 18);
  const title = (x, text) => svg("text", { x, y: 12, class: "title" }, text);
  picture.replaceChildren(
    title(0, "which letter"), ...barsOf(letters, most, most.map((x) => shown(target.vocabulary[x])), 0, 24),
    title(456, "how likely it was"), ...barsOf(ranks, [0, 1, 2, 3, 4, 5], ["1st", "2nd", "3rd", "4–5", "6–9", "rest"], 456, 40),
    title(724, "the draft likes it"), ...barsOf(favour, [0, 1], ["more", "less"], 724, 78),
  );
}

const rarely = (p) => (p < 1e-12 ? "less than once in a million million runs" : `about once in ${Number((1 / p).toPrecision(1)).toLocaleString("en")} runs`);
const timeLeft = (started, made, most) => {
  const left = made ? Math.ceil(((performance.now() - started) / 1000 / made) * (most - made)) : 0;
  return left ? `, about ${left} s at most` : "";
};
const textsOf = ({ made, length }) => `${made.toLocaleString("en")} text${made === 1 ? "" : "s"} of ${length} letters`;
const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** The verdict in sentences. */
function verdictSays(samples, { refused, p, ...tests }, bug) {
  const { ranks } = samples, { off, chance: alone } = samples.letters.distance(), { came, expected, n } = samples.favour, likes = came[0] / n, should = expected[0] / n;
  const numbers = `${n.toLocaleString("en")} letters: ${percent(off)} of them would have to change to match the expected counts; chance alone gives about ${percent(alone)}.`;
  const favour = `${percent(likes)} are letters that the draft likes more than the target does; it should be ${percent(should)}.`;
  const chance = tests.letters.statistic === Infinity ? "Chance can never do this: letters came that the target rules out." : `A right decoder would do this ${rarely(p)}.`;
  if (refused) {
    const seen = { letters: numbers, favour, ranks: `${n.toLocaleString("en")} letters: the target's first choice came in ${percent(ranks.came[0] / n)}; it should in ${percent(ranks.expected[0] / n)}.` };
    const [[by]] = Object.entries(tests).sort(([, a], [, b]) => a.p - b.p);
    return `✗ Refused: this decoder does not write like the target. ${seen[by]} ${chance} ${bug ? bug.says : ""}`.trim();
  }
  const hidden = samples.temperature === 0 ? "At temperature 0 the target has one letter to give at each place, and here this bug writes it, too. Choose temperature 1."
    : "The bug is on all the same: so few texts do not show it. A test can pass because it sees too little (chapter 08).";
  return `✓ Not refused. ${numbers} ${favour} ${bug ? hidden : "The right rule passes, as it should. A test is no proof; chapter 05 has the proof."}`;
}

function drawTests(verdict) {
  const names = { letters: "which letter", ranks: "how likely it was: the target's first choice, its second, …", favour: "whether the draft likes it more than the target does" };
  $("tests").tBodies[0].replaceChildren(...Object.entries(names).map(([test, name]) => {
    const { statistic, freedom, p } = verdict[test];
    const cells = [statistic === Infinity ? "∞" : statistic.toFixed(1), freedom, p === 0 ? "0" : p < 0.001 ? p.toExponential(0) : p.toFixed(3)];
    return make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", {}, `${cell}`)));
  }));
}

/** What counts, made when it is first asked for. */
let counted = null;
const counting = () => (counted ??= counters(models));

/** Count up to `most` texts, and judge them at each look, until they are refused. */
async function countTexts(most = LOOKS.at(-1)) {
  const chosen = orRefused(settings);
  if (!chosen) {
    $("sampled-says").textContent = $("refused").textContent; // that may be out of sight
    return null;
  }
  const { bug, K, temperature, prompt } = chosen, length = temperature === 0 ? Math.min(chosen.length, models.target.blockSize - prompt.length) : K + FURTHER;
  if (temperature === 0) most = 1; // all are the same
  const asked = { ...chosen, length, bug: bug?.number ?? null }, samples = samplesOf(models, asked), mine = (count = {}), started = performance.now();
  Object.assign($("sampled"), { hidden: false, max: most, value: 0 });
  $("counted").hidden = false;
  $("sample").textContent = "Stop";
  $("verdict").textContent = $("verdict").className = "";
  const shown = (looked) => {
    if (count !== mine) return false;
    $("sampled").value = samples.made;
    $("sampled-says").textContent = `${textsOf(samples)}${timeLeft(started, samples.made, most)}`;
    drawCounts($("histogram"), samples);
    if (!looked) return true;
    const [verdict] = looked, last = samples.made === most || verdict.refused;
    $("verdict").textContent = last ? verdictSays(samples, verdict, bug) : `Not refused after ${samples.made} texts; counting on …`;
    $("verdict").className = verdict.refused ? "bad" : last ? "good" : "";
    if (last) $("sampled-says").textContent = textsOf(samples);
    drawTests(verdict);
    return true;
  };
  try {
    const verdicts = await countAll([{ asked, samples }], most, await counting(), shown);
    return verdicts && verdicts[0];
  } finally {
    if (count === mine) count = null;
    if (!count) $("sample").textContent = "Count";
  }
}

function forgetCounts() {
  count = null;
  $("sample").textContent = "Count";
  for (const part of ["verdict", "sampled-says"]) $(part).textContent = "";
  for (const part of ["sampled", "counted"]) $(part).hidden = true;
}

// ---- the whole -----------------------------------------------------------------------------

/** What stands in the page in base64, as bytes. */
function bytesOf(encoded) {
  const text = atob(encoded), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes.buffer;
}

async function load() {
  const files = JSON.parse($("files").textContent);
  models.target = new GPT(bytesOf(files.target));
  models.bigram = new BigramDraftModel(recorded.counts);
  models.transformer = new TransformerDraft(new GPT(bytesOf(files.transformer)));
  models.distilled = await NGramDraft.load(bytesOf(files.distilled));
}

/** How long a pass over 1 token and over K + 1 takes here, in milliseconds: medians of nine. */
function passTimes(K) {
  const tokens = Array.from({ length: 60 }, (_, i) => i), past = models.target.forward(tokens).kvs;
  return [1, K + 1].map((T) => {
    const times = Array.from({ length: 9 }, () => {
      const started = performance.now();
      models.target.forward(tokens.slice(0, T), past);
      return performance.now() - started;
    });
    return times.sort((a, b) => a - b)[4];
  });
}

/** After a few, when the browser has compiled what is slow. */
function sayTimes() {
  const [one, many] = [1, 2, 3].map(() => passTimes(8)).at(-1);
  $("clock").textContent = `Here, a pass over 1 token takes ${one.toFixed(1)} ms, and one over 9 tokens ${many.toFixed(1)} ms: JavaScript works through them one by one. PyTorch and a GPU take them together (chapter 00 measures it).`;
}

/** Watch a recording, or (null) what was written here. */
function watch(recording) {
  const live = recording === null;
  for (const part of ["same", "clock"]) $(part).hidden = !live;
  $("says").hidden = !live || !$("says").textContent;
  if (!live) $("slow").open = false;
  choose(live ? LIVE : recording);
}

/** Write with what was chosen, and show it: as a race, or where the walk is open, slowly. */
function writeAndShow() {
  forgetCounts();
  if (write()) showText();
}

function showText() {
  if ($("slow").open) startSlow();
  else show();
}

function listenToChoices() {
  const change = (fields) => {
    for (const [id, value] of Object.entries(fields)) $(id).value = value;
    writeAndShow();
  };
  $("choices").addEventListener("submit", (event) => { event.preventDefault(); $("slow").open = false; writeAndShow(); });
  const changed = ({ target: { id, name, value } }) => {
    if (name === "warmth") $("temperature").value = value;
    agree(id);
    writeAndShow();
  };
  for (const part of ["choices", "more", "bug"]) $(part).addEventListener("change", changed);
  $("choices").addEventListener("click", ({ target: { dataset } }) => { if (dataset.prompt) change({ prompt: dataset.prompt }); });
  $("dice").addEventListener("click", () => {
    const chips = [...document.querySelectorAll(".chip[data-prompt]")].map(({ dataset }) => dataset.prompt), others = chips.filter((each) => each !== $("prompt").value);
    if (Number($("temperature").value) === 0) change({ prompt: others[Math.floor(Math.random() * others.length)] }); // a seed changes nothing here
    else change({ seed: Math.floor(Math.random() * 10000) });
  });
  $("trace").addEventListener("change", () => {
    const { value } = $("trace");
    forgetCounts();
    watch(value === "" ? null : Number(value));
  });
  $("sample").addEventListener("click", () => (count ? forgetCounts() : countTexts()));
  $("samples").addEventListener("toggle", () => { if (!$("samples").open && count) forgetCounts(); });
  $("copy").addEventListener("click", copyLink);
  window.addEventListener("hashchange", () => { forgetCounts(); takeFromAddress(); showText(); });
}

/** The race, or where motion is unwelcome, its end. */
function show() {
  if (!matchMedia("(prefers-reduced-motion: reduce)").matches) return race();
  finish();
}

async function main() {
  leadToChapters();
  $("loading").hidden = false;
  await breathe();
  const started = performance.now();
  await load();
  $("loading").hidden = true;
  $("stage").hidden = false;
  $("trace").append(...recorded.traces.map(({ name }, i) => make("option", { value: i }, name)));
  $("bug").append(...BUGS.map(({ number, title }) => make("option", { value: number }, `${number} · ${title}`)));
  $("strip").append(...Array.from({ length: recorded.window }, () => make("div", { class: "cell" }, make("span"), make("small"))));
  for (const id of FIELDS) defaults[id] = $(id).value;
  takeFromAddress();
  for (const start of [listen, listenToChoices, listenToSlow, listenToGame]) start();
  window.live.ready = performance.now() - started;
  sayTimes();
  show();
}

window.live = { models, write, count: countTexts, deal: newPair, passTimes, ready: null };
main().catch((error) => {
  $("loading").hidden = false;
  $("loading").textContent = `The page cannot run here (${error.message}). It needs Chrome 111, Firefox 113 or Safari 16.4, or newer.`;
  throw error;
});
