"use strict";

// Plays a trace (trace.js says what that is), step by step: recorded ones and the live one.

const MARKS = { accepted: "✓", rejected: "✗", resampled: "↻", bonus: "★", unexamined: "·" };
const FATES = { accepted: "✓ accepted", rejected: "✗ rejected", resampled: "↻ instead", bonus: "★ bonus", unexamined: "· never examined" };
const $ = (id) => document.getElementById(id);
const shown = (text) => text.replace(" ", "␣").replace("\n", "⏎");
const quoted = (text) => `“${shown(text)}”`;
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : /s$/.test(word) ? "es" : "s"}`;

function make(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

/** A number to two decimals, or more where it is very small or would look like `other`. */
function digits(x, other = null) {
  let n = 2;
  while (n < 6 && other !== null && x !== other && x.toFixed(n) === other.toFixed(n)) n += 1;
  if (n > 2 || x === 0 || x >= 0.005) return x.toFixed(n);
  return x < 0.001 ? x.toExponential(0) : x.toFixed(3);
}

/** The steps of a round in order: {kind, i}, i for the guess of a draft or judge step. */
function stepsOf(round) {
  const drafts = round.drafts.map((_, i) => ({ kind: "draft", i }));
  const judged = round.drafts.flatMap((draft, i) => (draft.u === null ? [] : [{ kind: "judge", i }]));
  if (round.block === "back") judged.reverse(); // its coins are tossed from the last guess back
  const restart = round.restart ? [{ kind: "restart" }] : [];
  const dropped = round.dropped ? [{ kind: "drop" }] : [];
  return [{ kind: "start" }, ...restart, ...drafts, ...dropped, { kind: "verify" }, ...judged, { kind: "last" }, { kind: "trim" }];
}

/** The trace with what is asked of it again and again. */
function prepare(trace) {
  const prompt = [...trace.prompt].map((text) => ({ text, fate: "prompt" }));
  for (const { drafts } of trace.rounds) drafts.forEach((draft, i) => { draft.parent ??= i - 1; draft.left ??= draft.p; draft.depth = (drafts[draft.parent]?.depth ?? 0) + 1; });
  const all = trace.rounds.flatMap(({ drafts }) => drafts);
  const shape = {
    most: Math.max(0, ...trace.rounds.map(({ drafts }) => drafts.length)), // guesses a round
    deepest: Math.max(0, ...all.map(({ depth }) => depth)),
    branches: trace.rounds.some(({ drafts }) => drafts.some(({ parent }, i) => parent !== i - 1)),
    drawn: all.some(({ q }) => q !== 1),
  };
  const steps = trace.rounds.map(stepsOf), tokens = [], before = [];
  trace.rounds.forEach((round, r) => {
    before.push(tokens.length);
    const decided = steps[r].findLastIndex(({ kind }) => kind === "judge");
    for (const [s, { kind, i }] of steps[r].entries()) {
      const judged = kind !== "judge" ? [] : round.block !== "back" ? [round.drafts[i]] : s === decided ? round.drafts : [];
      const made = (kind === "last" ? [round.last] : judged).filter(({ fate }) => fate !== "rejected");
      tokens.push(...made.map((token) => ({ ...token, round: r, step: s })));
    }
  });
  return { ...trace, ...shape, steps, tokens, before, all: [...prompt, ...tokens] };
}

// ---- what the page knows -------------------------------------------------------------------

const recorded = JSON.parse($("recorded").textContent);
const traces = recorded.traces.map(prepare); // and after them, at LIVE, what was written here
const LIVE = traces.length;
const state = { trace: 0, round: 0, step: 0, reached: 0, extra: 0, racing: false }; // extra: passes of plain decoding beyond the end
let timer = null;

/** How far things are at the present step: all that is drawn follows from it. */
function progress() {
  const trace = traces[state.trace], round = trace.rounds[state.round], steps = trace.steps[state.round];
  const done = steps.slice(0, state.step + 1), count = (kind) => done.filter((step) => step.kind === kind).length;
  const here = { drafted: count("draft"), verified: count("verify") > 0, judged: count("judge"), last: count("last") > 0, trimmed: count("trim") > 0, restarted: count("restart") > 0 };
  const examinedOf = ({ drafts }) => drafts.filter((draft) => draft.u !== null);
  const coins = steps.filter((step) => step.kind === "judge").map(({ i }) => round.drafts[i]), tossed = coins.slice(0, here.judged);
  const decided = here.judged === coins.length && here.verified;
  const fateOf = (draft) => { // as far as it is known
    if (round.block === "back") return decided || tossed.includes(draft) ? draft.fate : null;
    return tossed.includes(draft) || (decided && draft.fate === "unexamined") ? draft.fate : null;
  };
  const rounds = [...trace.rounds.slice(0, state.round).map(examinedOf), tossed], judged = trace.block ? [] : rounds.flat();
  const examined = trace.block ? 0 : rounds.reduce((sum, drafts) => sum + new Set(drafts.map((draft) => draft.parent)).size, 0); // places, however many siblings
  const tokens = trace.tokens.filter((t) => t.round < state.round || (t.round === state.round && t.step <= state.step)).length;
  const passes = state.round + (here.verified ? 1 : 0), accepted = judged.filter((draft) => draft.fate === "accepted").length;
  return { trace, round, steps, now: steps[state.step], ...here, tokens, passes, accepted, examined, fateOf };
}

// ---- drawing -------------------------------------------------------------------------------

/** What was rejected where a letter came instead: a chain's first, a tree's siblings. */
function refusedBefore({ drafts, block }) {
  const refused = drafts.filter(({ fate }) => fate === "rejected");
  return block ? refused.slice(0, 1) : refused;
}

/** One button per token, made once; the words keep together. A listener hears the text as one. */
function buildText(trace) {
  const words = [make("span", { class: "word" })];
  const add = (element, text) => {
    words.at(-1).append(element);
    if (text === " " || text === "\n") words.push(make("wbr"), make("span", { class: "word" }));
  };
  for (const text of trace.prompt) add(make("span", { class: "token" }, shown(text), make("small")), text);
  trace.tokens.forEach((token) => {
    const what = `${quoted(token.text)}, ${FATES[token.fate]}, round ${token.round + 1}`;
    const button = make("button", { type: "button", class: "token", tabindex: -1, title: what }, shown(token.text), make("small"));
    button.addEventListener("click", () => { stop(); go(token.round, token.step); button.blur(); });
    token.refused = token.fate !== "resampled" ? [] : refusedBefore(trace.rounds[token.round]).map(({ text }) => make("span", { class: "token", title: `${quoted(text)}, ${FATES.rejected}` }, make("s", {}, shown(text)), make("small", {}, MARKS.rejected)));
    token.element = make("span", {}, ...token.refused, button, ...(token.text === "\n" ? [make("br")] : []));
    token.button = button;
    add(token.element, token.text);
  });
  $("text").replaceChildren(make("div", { "aria-hidden": true }, ...words), make("p", { class: "hide", id: "text-whole" }));
}

function drawText({ trace, tokens, passes }) {
  state.reached = Math.max(state.reached, tokens);
  trace.tokens.forEach((token, i) => {
    const written = i < tokens;
    token.element.hidden = i >= state.reached;
    token.button.className = `token ${written ? token.fate : ""} ${written && token.round === state.round ? "now" : ""}`;
    token.button.lastChild.textContent = written ? MARKS[token.fate] : "";
    for (const refused of token.refused) refused.classList.toggle("rejected", written);
  });
  $("text-whole").textContent = trace.prompt + trace.tokens.slice(0, tokens).map(({ text }) => text).join("");
  $("text-passes").textContent = passesAndLetters(passes, tokens);
  const newest = trace.tokens[tokens - 1]?.button, box = $("text");
  if (!newest) box.scrollTop = 0;
  else if (newest.offsetTop < box.scrollTop || newest.offsetTop + newest.offsetHeight > box.scrollTop + box.clientHeight - 8) box.scrollTop = newest.offsetTop - box.clientHeight / 2;
}

/** u beside p/q, as it was decided. */
function verdict({ left, q, u }) {
  const ratio = left / q, bound = Math.min(1, ratio);
  const sign = u < bound ? "<" : "≥", name = ratio > 1 ? `1 (p/q = ${digits(ratio)} counts as 1)` : `p/q = ${digits(bound, u)}`;
  return `u = ${digits(u, bound)} ${sign} ${name}`;
}

/** The coin of a block's guess i: do it and all before it stay? way: which way the coins are tossed. */
function blockVerdict({ text, chance, u }, i, way) {
  const stays = u < chance, compared = `u = ${digits(u, chance)} ${stays ? "<" : "≥"} ${digits(chance, u)}, the chance of this coin →`;
  if (way === "forward") return `${compared} ${stays ? `✓ ${quoted(text)} stays` : `✗ ${quoted(text)} does not: the block ends here`}.`;
  if (i === 0) return `${compared} ${stays ? "✓ the first guess stays" : "✗ the first guess does not stay, either"}.`;
  return stays ? `${compared} ✓ the first ${i + 1} guesses stay, all at once.` : `${compared} ✗ not all ${i + 1} stay. Try the first ${i}.`;
}

/** A guess and where it came from: drawn from q, or not drawn at all. `after`: null in a chain. */
function guess({ drawn, source }, { text, q }, after, siblings, earlier) {
  const which = `${quoted(text)}${after === null ? "" : ` after ${after}`}${siblings ? ", one of several" : ""}`;
  if (drawn) return `${which}${after === null ? "," : ":"} drawn from its q${earlier ? ", earlier siblings left out" : ""}, where it has ${digits(q)}`;
  const rank = ["", "second ", "third ", "fourth "][earlier] ?? `${earlier + 1}th `;
  return `${which}, ${source ?? `its ${rank}likeliest`}: not drawn, so q = 1 and it is accepted with probability p${earlier ? ", earlier siblings left out" : ""}`;
}

/** What happens at this step, in a few sentences; where a bug is at work, it says so. */
function sentenceOf(at) {
  const { trace: { bug }, round, now } = at, acts = bug?.acts({ round, now, draft: round.drafts[now.i] });
  return saidOf(at) + (acts ? ` ⚠ Here bug ${bug.number} is at work: ${bug.title}.` : "");
}

function saidOf({ trace, round, now }) {
  const { drafts, last, cache } = round, k = drafts.length, tokensBefore = trace.before[state.round];
  const current = quoted(trace.all[trace.prompt.length + tokensBefore - 1].text), accepted = drafts.filter((d) => d.fate === "accepted").length;
  const inWindow = recorded.window - cache[0] - 1, inText = trace.tokens.length - tokensBefore - 1;
  const windowEnds = inWindow <= inText, room = Math.min(inWindow, inText); // how deep guesses may go
  const few = k === trace.most || room >= trace.deepest ? "" : ` ${k === 0 ? "No guess" : `Only ${plural(k, "guess")}`} this time: ${windowEnds ? "the window ends there" : "the text is nearly done"}.`;
  const after = (draft) => quoted(draft.parent < 0 ? shown(trace.all[trace.prompt.length + tokensBefore - 1].text) : drafts[draft.parent].text);
  const siblings = (i) => drafts.filter((draft, j) => draft.parent === drafts[i].parent && j !== i).length;
  const earlier = (i) => drafts.filter((draft, j) => draft.parent === drafts[i].parent && j < i).length;
  const branches = trace.branches && k > 1; // a single guess is no tree
  switch (now.kind) {
    case "start":
      if (round.unread && !round.restart) return `Nothing was read yet. The current token is the prompt's last, ▸${current}; the ${plural(cache[0], "token")} before it enter with it, in the first pass.${few}`;
      if (round.restart) return `The cache is full: it holds ${recorded.window} tokens, the whole window. There is no place for another.`;
      return `The cache holds ${cache[0]} tokens. The current token, ▸${current}, is outside: it enters with the next pass.${few}`;
    case "restart":
      return `Restart: the ${cache[0]} tokens before the current one, ▸${current}, are prefilled afresh, and there is room again. Plain decoding restarts here as well.${few}`;
    case "draft":
      return `The draft guesses ${guess(trace, drafts[now.i], branches ? after(drafts[now.i]) : null, siblings(now.i), earlier(now.i))}.`;
    case "drop":
      return `The draft drew ${quoted(round.dropped.text)} (q = ${digits(round.dropped.q)}), looked at it, and dropped it.`;
    case "verify":
      if (branches) return `One target pass over ${k + 1} tokens, the current one and ${plural(k, "guess")}, gives p after each of them. Each sees its own branch only. All ${k + 1} are in the cache now.`;
      return k === 0
        ? `One target pass over 1 token, the current one: a plain step. It gives p of the next token.`
        : `One target pass over ${k + 1} tokens, the current one and ${k === 1 ? "the guess" : `${k} guesses`}, gives p of ${k === 1 ? "it" : "each guess"} and of the token after ${k === 1 ? "it" : "them"}. ${k === 1 ? "Both" : `All ${k + 1}`} are in the cache now.`;
    case "judge": {
      const draft = drafts[now.i], behind = k - now.i - 1;
      if (round.block) return blockVerdict(draft, now.i, round.block);
      if (!branches && draft.u < Math.min(1, draft.p / draft.q) !== (draft.fate === "accepted")) {
        const [right, here] = draft.fate === "accepted" ? ["rejected", "accepts"] : ["accepted", "rejects"];
        return `By the right rule ${quoted(draft.text)} would be ${right}: ${verdict(draft)}. This decoder ${here} it: ${MARKS[draft.fate]}.`;
      }
      if (branches) {
        const refused = earlier(now.i);
        const left = refused ? `Of p, its ${plural(refused, "refused sibling")} left it ${digits(draft.left)}. ` : "";
        const next = drafts.findIndex((other, j) => j > now.i && other.parent === draft.parent);
        const then = draft.fate === "accepted" ? "accepted: on to what follows it" : next > 0 ? `refused: ${quoted(drafts[next].text)}, its sibling, is next` : refused ? "refused, too" : "refused";
        return `${left}${verdict(draft)} → ${MARKS[draft.fate]} ${quoted(draft.text)} is ${then}.`;
      }
      if (draft.fate === "accepted") return `${verdict(draft)} → ✓ ${quoted(draft.text)} is accepted.`;
      return `${verdict(draft)} → ✗ ${quoted(draft.text)} is rejected.${behind ? ` ${behind === 1 ? "The guess" : `The ${behind} guesses`} after it ${behind === 1 ? "is" : "are"} never examined.` : ""}`;
    }
    case "last":
      if (trace.bug?.acts({ round, now })) return `${MARKS[last.fate]} ${quoted(last.text)} comes ${last.fate === "resampled" ? `instead. The right rule draws from the residual, where it has ${digits(last.residual)}` : "as the bonus. The right rule draws it from the last row of p"} (in p, ${digits(last.p)}).`;
      if (last.fate === "resampled") return `↻ ${quoted(last.text)} comes instead, drawn from the residual${round.block ? ", what P times p has more than q" : trace.drawn ? "" : ", which is p without what was refused"}, where it has ${digits(last.residual)} (in p, ${digits(last.p)}).`;
      return k === 0
        ? `★ ${quoted(last.text)} is drawn from p, where it has ${digits(last.p)}.`
        : `${branches ? "The branch ends here" : "Nothing was rejected"}, so the same pass yields one more: ★ ${quoted(last.text)}, the bonus, drawn from ${branches ? "p after it" : "the last row of p"}, where it has ${digits(last.p)}.`;
    default: {
      const stay = `the current token's${accepted ? ` and ${accepted === 1 ? "that of the accepted guess" : `those of ${accepted} accepted guesses`} stay` : " stays"}`;
      if (round.right < cache[2]) return `The right trim would cut off the last ${k - accepted === 1 ? "entry" : `${k - accepted} entries`}. This one leaves ✗${quoted(drafts[accepted].text)} in the cache, though it was rejected.`;
      const path = drafts.some(({ fate }, i) => fate === "accepted" && i >= accepted) ? "; the path's entries move together" : "";
      const cut = accepted === k ? `${k > 1 ? `all ${k + 1} new entries stay` : k ? "both new entries stay" : "the new entry stays"}` : `${k - accepted} of the ${k + 1} new entries ${k - accepted === 1 ? "is" : "are"} cut off; ${stay}${path}`;
      const end = state.round < trace.rounds.length - 1 ? "" : trace.stopped ? ` Here it ends: ${trace.stopped}.` : ` The text is done: ${trace.tokens.length} tokens in ${plural(trace.rounds.length, "pass")}.`;
      return `Trim: ${cut}. ▸${quoted(last.text)} is the new current token, and the cache is one behind again.${end}`;
    }
  }
}

/** The fate of a guess that was not reached; a phone has room for half of it. */
const never = () => make("span", {}, "· never", make("span", { class: "wide" }, " examined"));

function drawRows({ trace, round, now, drafted, verified, last, fateOf }) {
  const rows = [];
  const row = (kind, current, ...cells) => rows.push(make("tr", { class: `${kind} ${current ? "now" : ""}` }, ...cells.map((cell) => make("td", {}, cell))));
  const order = [], depths = [];
  const visit = (parent, depth) => round.drafts.forEach((draft, i) => {
    if (draft.parent !== parent) return;
    order.push(i);
    depths[i] = depth;
    visit(i, depth + 1);
  });
  visit(-1, 0); // branch by branch
  for (const i of order.filter((i) => i < drafted)) {
    const draft = round.drafts[i], fate = fateOf(draft), ratio = round.block ? draft.chance : draft.left / draft.q;
    const branch = trace.branches && depths[i] ? `${"\u00a0".repeat(2 * depths[i] - 1)}└` : "";
    const [p, shownRatio] = verified ? [digits(draft.left), digits(ratio)] : ["", ""];
    const u = fate && draft.u !== null ? digits(draft.u, Math.min(1, ratio)) : "";
    row(fate ?? "drafted", now.i === i && now.kind !== "verify", branch + shown(draft.text), digits(draft.q), p, shownRatio, u, fate === "unexamined" ? never() : fate ? FATES[fate] : "");
  }
  if (last) row(round.last.fate, now.kind === "last", shown(round.last.text), "", digits(round.last.p), "", "", FATES[round.last.fate]);
  while (rows.length < trace.most + 1) {
    row("", false, "", "", "", "", "", ""); // nothing jumps
    rows.at(-1).setAttribute("aria-hidden", "true");
  }
  $("rows").replaceChildren(...rows);
}

/** The entries of the cache at this step: [text, kind] each. */
function cacheCells({ trace, round, now, verified, trimmed, fateOf }) {
  const n = trace.prompt.length + trace.before[state.round]; // the current token is all[n − 1]
  const full = round.restart && now.kind === "start", length = full ? recorded.window : round.cache[0];
  const cells = round.held && !full ? round.held.map(([text, rejected]) => [text, rejected ? "rejected" : round.unread && !verified ? "unread" : "cached"]) : trace.all.slice(n - 1 - length, n - 1).map(({ text }) => [text, "cached"]);
  if (!verified) return cells;
  cells.push([trace.all[n - 1].text, trimmed ? "cached" : "current"], ...round.drafts.map((draft) => [draft.text, fateOf(draft) ?? "drafted"]));
  if (trimmed && round.held) return cells.slice(0, round.cache[2]); // what a bug leaves is seen
  return trimmed ? cells.filter(([, kind]) => kind === "cached" || kind === "accepted") : cells;
}

function drawCache(at) {
  const cells = cacheCells(at), [before, after, trimmed] = at.round.cache;
  [...$("strip").children].forEach((cell, i) => {
    const [text, kind] = cells[i] ?? ["", ""];
    cell.className = `cell ${kind}`;
    cell.firstChild.textContent = shown(text);
    cell.lastChild.textContent = kind === "current" ? "▸" : kind === "drafted" ? "?" : (MARKS[kind] ?? "");
  });
  const stages = [at.round.unread && !at.verified ? `empty: ${before} to be read with the pass` : `${before} before the pass`, at.verified ? `${after} after it (${after - before} new)` : null, at.trimmed ? `${trimmed} trimmed` : null];
  const full = at.round.restart && at.now.kind === "start";
  const outside = at.trimmed ? at.round.last.text : at.verified ? null : at.trace.all[at.trace.prompt.length + at.trace.before[state.round] - 1].text;
  const held = full ? `${recorded.window} of ${recorded.window} entries: full` : `${stages.filter(Boolean).join(" → ")}, of ${recorded.window} entries`;
  $("lengths").textContent = `${held}. ${outside === null ? "The current token is inside now." : `Outside, one behind: the current token ▸${quoted(outside)}.`}`;
  $("strip").setAttribute("aria-label", `The cache holds ${cells.length} of ${recorded.window} entries`);
}

function drawFigures({ tokens, passes, accepted, examined }) {
  $("passes").textContent = passes;
  $("tokens").textContent = tokens;
  $("rate").textContent = passes ? (tokens / passes).toFixed(2) : "–";
  $("alpha").textContent = examined ? (accepted / examined).toFixed(2) : "–";
  $("examined").textContent = examined ? `${accepted} of ${examined}` : "";
  $("plain").textContent = plural(tokens, "pass");
}

const passesAndLetters = (passes, letters) => `${plural(passes, "pass")}, ${plural(letters, "letter")}`;

/** Plain decoding beside it, after as many passes. */
function drawPlain({ trace, passes: made }) {
  $("beside").hidden = !trace.plain;
  if (!trace.plain) return;
  const passes = made + state.extra;
  const written = trace.plain.slice(0, passes).join("");
  $("plain-text").replaceChildren(make("span", { class: "soft-text" }, trace.prompt), written);
  $("plain-passes").textContent = passesAndLetters(passes, Math.min(passes, trace.plain.length));
  $("plain-text").scrollTop = 1e6;
}

/** The sentence under both texts, once both are there. */
function drawSame({ trace, passes, tokens }) {
  if (trace.plain) $("same").textContent = sameness(trace, tokens === trace.tokens.length && passes + state.extra >= trace.plain.length);
}

function draw() {
  const at = progress(), rounds = at.trace.rounds.length, sentence = sentenceOf(at);
  drawText(at);
  drawRows(at);
  drawCache(at);
  drawFigures(at);
  drawPlain(at);
  drawOverlap(at);
  drawSame(at);
  $("ratio").textContent = at.round.block ? "chance" : "p/q";
  $("columns").textContent = `q and p: how likely the draft and the target find a letter. u: a random number from 0 to 1; ${at.trace.block ? "all guesses up to here stay if u < chance" : "the guess stays if u < p/q"}. (A token is a letter here.)`;
  $("round-title").textContent = `Round ${state.round + 1} of ${rounds}`;
  $("sentence").textContent = sentence;
  // While playing, a listener hears the end of each round, not every step.
  if (timer === null) $("status").textContent = sentence;
  else if (at.now.kind === "trim") $("status").textContent = `Round ${state.round + 1}: ${at.round.cache[2] - at.round.cache[0]} tokens.`;
  $("slider").value = state.round + 1;
  $("slider").setAttribute("aria-valuetext", `round ${state.round + 1} of ${rounds}`);
  $("position").textContent = `${state.round + 1}/${rounds}`;
  $("play").textContent = timer === null ? "Play" : "Pause";
}

// ---- the controls --------------------------------------------------------------------------

const lastStep = (round) => traces[state.trace].steps[round].length - 1;
const atEnd = () => state.round === traces[state.trace].rounds.length - 1 && state.step === lastStep(state.round);

/** Show a round at one of its steps; numbers outside are moved to the nearest. */
function go(round, step) {
  state.extra = 0;
  state.round = Math.max(0, Math.min(traces[state.trace].rounds.length - 1, Math.floor(round)));
  state.step = Math.max(0, Math.min(lastStep(state.round), Math.floor(step)));
  draw();
}
function forward() {
  if (state.step < lastStep(state.round)) go(state.round, state.step + 1);
  else if (!atEnd()) go(state.round + 1, 0);
}
function back() {
  if (state.step > 0) go(state.round, state.step - 1);
  else if (state.round > 0) go(state.round - 1, Infinity);
}
function start() {
  state.reached = 0;
  go(0, 0);
}
function stop() {
  clearInterval(timer);
  timer = null;
}
function pause() {
  stop();
  draw();
}
/** Go on by itself, step by step, or pass by pass where both decoders race; `speed` steps a second. */
function run(racing) {
  clearInterval(timer);
  state.racing = racing;
  const [next, pace] = racing ? [racePass, 2] : [() => { forward(); return !atEnd(); }, 1];
  timer = setInterval(() => { if (!next()) pause(); }, (1000 * pace) / Number($("speed").value));
  draw();
}
function play() {
  if (atEnd()) start();
  run(false);
}
/** One pass of each decoder; says whether either had something left to write. */
function racePass() {
  const { plain } = traces[state.trace], { passes } = progress();
  if (passes === 0) go(0, Infinity);
  else if (!atEnd()) go(state.round + 1, Infinity);
  else if (passes + state.extra < (plain?.length ?? 0)) {
    state.extra += 1;
    draw();
  } else return false;
  return true;
}
/** The race's end, at once. */
function finish() {
  go(Infinity, Infinity);
  state.extra = Math.max(0, (traces[state.trace].plain?.length ?? 0) - progress().passes);
  draw();
}
const raceLeft = () => state.racing && state.extra > 0 && progress().passes + state.extra < traces[state.trace].plain?.length;
function race() {
  stop();
  start();
  run(true);
}
const toggle = () => (timer !== null ? pause() : raceLeft() ? run(true) : play());
function choose(trace) {
  stop();
  state.trace = trace;
  const { about, temperature, seed, tokens, live } = traces[trace], known = { ...traces[trace], corpus: recorded.corpus };
  const who = about.replace(/{(\w+)}/g, (_, name) => known[name]);
  $("about").textContent = `${who}, temperature ${temperature}, seed ${seed}, ${plural(tokens.length, "token")}.`;
  $("slider").max = traces[trace].rounds.length;
  $("trace").value = live ? "" : trace;
  buildText(traces[trace]);
  start();
}

function listen() {
  const by = (id, action) => $(id).addEventListener("click", () => { stop(); action(); });
  by("start", start);
  by("back", back);
  by("step", forward);
  by("next", () => (state.step < lastStep(state.round) ? go(state.round, Infinity) : go(state.round + 1, Infinity)));
  $("play").addEventListener("click", toggle);
  $("speed").addEventListener("change", () => { if (timer !== null) run(state.racing); });
  $("slider").addEventListener("input", () => { stop(); go(Number($("slider").value) - 1, Infinity); });
  document.addEventListener("keydown", (event) => {
    const own = event.target.closest("input, select, textarea"), button = event.target.closest("button, a, summary");
    if (own || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "ArrowRight" || event.key === "ArrowLeft") {
      event.preventDefault();
      stop();
      (event.key === "ArrowRight" ? forward : back)();
    } else if (event.key === " " && !button) {
      event.preventDefault();
      toggle();
    }
  });
  let shownBefore = null; // on paper: the whole text and its last round
  window.addEventListener("beforeprint", () => { stop(); shownBefore = { ...state }; go(Infinity, Infinity); });
  window.addEventListener("afterprint", () => { if (shownBefore) { go(shownBefore.round, shownBefore.step); Object.assign(state, shownBefore); draw(); } });
}

window.player = {
  traces: recorded.traces,
  get state() {
    const { tokens, passes, accepted, examined, trace, steps } = progress();
    const text = trace.tokens.slice(0, tokens).map((token) => token.text).join("");
    return { ...state, rounds: trace.rounds.length, steps: steps.map((step) => step.kind), playing: timer !== null, text, passes, tokens, tokensPerPass: tokens / passes, alpha: accepted / examined };
  },
  choose,
  go,
  racePass,
};
