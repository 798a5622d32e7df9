"use strict";

// The page: what the reader chooses, the text that is written with it, and the counts of many.

const ABOUT = {
  bigram: "Draft: a bigram counted in {corpus}, which sees one letter back",
  distilled: "Draft: an n-gram tree distilled from the target (chapter 10)",
  transformer: "Draft: a one-layer transformer distilled from the target (chapter 11)",
};
const SAMPLES = 2000, FURTHER = 4; // texts, and how many letters more than K each has
const models = {}; // target, and the drafts by name
let counting = null; // the Samples that are being made

// In JupyterLab, this page stands under …/files/book/, in a tab of its own or in the HTML viewer's frame:
// there the chapters are notebooks, each to be opened in another tab, and there is no book.
function leadToChapters() {
  const inLab = new URL(document.baseURI).pathname.split("/files/book/");
  if (inLab.length !== 2) return;
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
    if (!field.checkValidity()) throw new RangeError(`${name} is “${field.value}”; it must be ${field.step === "1" ? "a whole number" : "a number"} from ${field.min} to ${field.max}.`);
    return Number(field.value);
  };
  const letters = [...$("prompt").value.replaceAll("⏎", "\n")], unknown = letters.findIndex((letter) => !models.target.vocabulary.includes(letter));
  if (letters.length === 0) throw new RangeError("The prompt is empty; type at least one letter to start from.");
  if (unknown >= 0) throw new RangeError(`“${letters[unknown]}”, letter ${unknown + 1} of the prompt, is not among the ${models.target.vocabSize} that the model knows: letters without accents, a blank, and ! $ & ' , - . 3 : ; ?`);
  const draft = $("draft").value, rule = $("rule").value, bug = BUGS.find(({ number }) => `${number}` === $("bug").value) ?? null;
  return {
    draft, rule, bug, K: number("K"), temperature: number("temperature"), seed: number("seed"), length: number("length"),
    prompt: letters.map((letter) => models.target.vocabulary.indexOf(letter)),
    steps: { ...CHAIN, accept: rule === "block" ? acceptBlockwise : acceptReject, ...bug?.steps },
  };
}

/** What `make` returns, or null after the reader was told what is wrong with the settings. */
function orRefused(make) {
  try {
    const made = make();
    $("refused").hidden = true;
    return made;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    $("refused").textContent = error.message;
    $("refused").hidden = false;
    return null;
  }
}

/** Write a text with the settings, both ways, and show it at its start. uniforms: for a test. */
function write(uniforms = undefined) {
  const chosen = orRefused(settings);
  if (!chosen) return;
  const { bug, draft, rule, K } = chosen, block = rule === "block";
  const made = writeBoth({ ...chosen, target: models.target, draft: models[draft], block, uniforms });
  const about = `${ABOUT[draft]}. K = ${K} ${K === 1 ? "guess" : "guesses"} a round${block ? ", judged as a block" : ""}`;
  traces[LIVE] = prepare({ ...chosen, ...made, about, block, live: true, source: null, bug: bug && { number: bug.number, title: bug.title, step: Object.keys(bug.steps)[0] } });
  $("says").hidden = !bug;
  $("says").textContent = bug ? `⚠ Bug ${bug.number} of the gallery, ${bug.title}. ${bug.says}` : "";
  choose(LIVE);
}

/** A bug of one rule brings that rule along; another rule puts it out. */
function agree(changed) {
  const bug = BUGS.find(({ number }) => `${number}` === $("bug").value);
  if (!bug?.rule || bug.rule === $("rule").value) return;
  if (changed === "bug") $("rule").value = bug.rule;
  else $("bug").value = "";
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
  const i = { draft: now.i, judge: now.i, last: kept, trim: kept }[now.kind] ?? 0;
  return { i, known: verified, P: round.block ? round.drafts[i]?.P ?? 1 : 1 };
}

/** The letters with most of p or q, and their bars: the overlap, and what is above it. */
function drawOverlap(at) {
  const { rows, drafts } = at.round, blank = !rows || ["start", "restart"].includes(at.now.kind);
  $("overlap-figure").hidden = !rows;
  $("overlap").replaceChildren();
  $("overlap-title").textContent = blank ? "\u00a0" : "";
  if (blank) return;
  const { i, known, P } = lookedAt(at), letters = models.target.vocabulary, guessed = letters.indexOf(drafts[i]?.text ?? "");
  const q = rows.q[i] ?? letters.split("").map(() => 0), p = known ? rows.p[i].map((mass) => P * mass) : q.map(() => 0);
  const order = [...q.keys()].sort((a, b) => Math.max(p[b], q[b]) - Math.max(p[a], q[a])), shownLetters = order.slice(0, 14).filter((x) => Math.max(p[x], q[x]) >= 0.005);
  if (guessed >= 0 && !shownLetters.includes(guessed)) shownLetters.push(guessed);
  const top = Math.max(...shownLetters.map((x) => Math.max(p[x], q[x]))), height = (mass) => (120 * mass) / top;
  const bar = (x, from, to, fill) => svg("rect", { x: 12 + 39 * x, y: 136 - height(to), width: 26, height: height(to) - height(from), fill, class: "edge" });
  shownLetters.forEach((letter, x) => {
    const both = Math.min(p[letter], q[letter]), more = Math.max(p[letter], q[letter]);
    if (known) $("overlap").append(bar(x, 0, both, "var(--accepted)"), bar(x, both, more, q[letter] > p[letter] ? "url(#crossed)" : "url(#dotted)"));
    else $("overlap").append(bar(x, 0, q[letter], "url(#hatched)"));
    $("overlap").append(svg("text", { x: 25 + 39 * x, y: 152, class: letter === guessed ? "guessed" : "" }, shown(letters[letter])));
    if (letter === guessed) $("overlap").append(svg("text", { x: 25 + 39 * x, y: 166 }, "▲ guess"));
    $("overlap").append(svg("text", { x: 25 + 39 * x, y: 132 - height(more), class: "small" }, digits(more)));
  });
  const which = i < drafts.length ? `guess ${i + 1}` : "the token after the guesses", shared = q.reduce((sum, mass, x) => sum + Math.min(mass, p[x]), 0);
  const scaled = P < 1 ? `, p times P = ${digits(P)}` : "";
  $("overlap-title").textContent = !known ? `q of ${which}` : i < drafts.length ? `p over q of ${which}${scaled}: they share ${digits(shared)}` : `p of ${which}: nothing was guessed here`;
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
function drawCounts({ letters, ranks, favour, target }) {
  const most = [...letters.expected.keys()].sort((a, b) => letters.expected[b] - letters.expected[a]).slice(0, 18);
  const title = (x, text) => svg("text", { x, y: 12, class: "title" }, text);
  $("histogram").replaceChildren(
    title(0, "which letter"), ...barsOf(letters, most, most.map((x) => shown(target.vocabulary[x])), 0, 24),
    title(456, "how likely it was"), ...barsOf(ranks, [0, 1, 2, 3, 4, 5], ["1st", "2nd", "3rd", "4–5", "6–9", "rest"], 456, 40),
    title(724, "does the draft like it"), ...barsOf(favour, [0, 1], ["more", "not more"], 724, 78),
  );
}

const percent = (share) => `${(100 * share).toFixed(1)} %`;

/** The verdict in sentences. */
function verdictSays(samples, { refused, letters, p }, bug) {
  const { off, chance } = samples.letters.distance(), { came, expected, n } = samples.favour, likes = came[0] / n, should = expected[0] / n;
  const numbers = `${n.toLocaleString("en")} letters: their counts are ${off.toFixed(4)} away from those expected (half the sum of the differences), where chance alone leaves about ${chance.toFixed(4)}.`;
  const favour = `Letters that the draft likes more than the target does make up ${percent(likes)} of the text; they should be ${percent(should)}.`;
  if (refused) return `✗ Refused: this is not the target's text. ${numbers} Chance does as much about once in ${p < 1e-12 ? "a million million" : Number((1 / p).toPrecision(1)).toLocaleString("en")} runs. ${favour} ${bug ? bug.says : ""}`;
  return `✓ Not refused. ${numbers} ${favour} ${bug ? "The bug is there all the same: with this draft and so few texts, it does not show. A test that passes is worth no more than what it could have seen (chapter 08)." : "That is what the right rule does; it is no proof, which chapter 05 has."}`;
}

function drawTests(verdict) {
  const names = { letters: "which letter", ranks: "how likely it was: the target's first choice, its second, …", favour: "does the draft like it more than the target does?" };
  $("tests").hidden = false;
  $("tests").tBodies[0].replaceChildren(...Object.entries(names).map(([test, name]) => {
    const { statistic, freedom, p } = verdict[test];
    const cells = [statistic === Infinity ? "∞" : statistic.toFixed(1), freedom, p === 0 ? "0" : p < 0.001 ? p.toExponential(0) : p.toFixed(3)];
    return make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((cell) => make("td", {}, `${cell}`)));
  }));
}

const breathe = () => new Promise((resolve) => setTimeout(resolve));

/** Write `most` texts, a few at a time so that the page stays awake, and judge them at the end. */
async function count(most = SAMPLES) {
  const chosen = orRefused(settings);
  if (!chosen) return null;
  const { bug, K } = chosen, mine = (counting = new Samples({ ...chosen, target: models.target, draft: models[chosen.draft], length: K + FURTHER }));
  Object.assign($("sampled"), { hidden: false, max: most });
  $("counted").hidden = false;
  $("sample").textContent = "Stop";
  $("verdict").textContent = "";
  $("tests").hidden = true;
  while (mine.made < most && counting === mine) {
    for (const end = performance.now() + 40; performance.now() < end && mine.made < most;) mine.one();
    $("sampled").value = mine.made;
    $("sampled-says").textContent = `${mine.made.toLocaleString("en")} texts of ${mine.length} letters`;
    drawCounts(mine);
    await breathe();
  }
  const stopped = counting !== mine;
  if (!stopped) counting = null;
  $("sample").textContent = "Sample 2,000";
  if (stopped) return null;
  const verdict = mine.verdict();
  $("verdict").textContent = verdictSays(mine, verdict, bug);
  $("verdict").className = verdict.refused ? "bad" : "good";
  drawTests(verdict);
  return verdict;
}

function forgetCounts() {
  counting = null;
  for (const part of ["verdict", "sampled-says"]) $(part).textContent = "";
  for (const part of ["sampled", "counted", "tests"]) $(part).hidden = true;
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

function sayTimes() {
  const [one, many] = passTimes(8);
  $("clock").textContent = `In this browser, a pass over 1 token takes ${one.toFixed(1)} ms, and one over 9 tokens ${many.toFixed(1)} ms: plain JavaScript works through them one after another, so it gains little. PyTorch and a GPU take them together (chapter 00 measures it).`;
}

function setMode(live) {
  $(live ? "live-mode" : "recorded-mode").checked = true;
  for (const part of ["live", "samples", "beside", "race"]) $(part).hidden = !live;
  $("replay").hidden = live;
  for (const part of ["refused", "says"]) if (!live) $(part).hidden = true;
  $("clock").hidden = !live;
}

function listenToChoices() {
  $("live").addEventListener("submit", (event) => { event.preventDefault(); forgetCounts(); write(); });
  $("live").addEventListener("change", ({ target: { id } }) => { agree(id); forgetCounts(); write(); });
  $("live-mode").addEventListener("change", () => { setMode(true); write(); });
  $("recorded-mode").addEventListener("change", () => { setMode(false); forgetCounts(); choose(Number($("trace").value)); });
  $("sample").addEventListener("click", () => (counting ? forgetCounts() : count()));
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
  setMode(true);
  write();
  listen();
  listenToChoices();
  window.live.ready = performance.now() - started;
  sayTimes();
}

window.live = { models, write, count, settings, passTimes, ready: null, get state() { return player.state; } };
main();
