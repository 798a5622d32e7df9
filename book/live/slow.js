"use strict";

// One round, slowly: four stops with a sentence each, and without u.

const slow = { round: 0, stop: 0 };
const STOPS = 4;

/** The round that shows most: one with an accepted, a rejected and a replaced letter, if there is one. */
function telling({ rounds }) {
  const kinds = ({ drafts, last }) => new Set([...drafts.filter(({ u }) => u !== null).map(({ fate }) => fate), last.fate]).size;
  const most = Math.max(...rounds.map(kinds));
  return rounds.findIndex((round) => kinds(round) === most);
}

/** The player's step for a stop: all is guessed, all is read, the last guess is accepted, the last letter is there. */
function stepOfStop(steps, round, stop) {
  const last = (test) => steps.findLastIndex(test), read = last(({ kind }) => kind === "verify");
  const judged = round.block ? ({ kind }) => kind === "judge" : ({ kind, i }) => kind === "judge" && round.drafts[i].fate === "accepted";
  return [last(({ kind }) => kind === "draft" || kind === "start"), read, Math.max(read, last(judged)), last(({ kind }) => kind === "last")][stop];
}

const together = (drafts) => `“${drafts.map(({ text }) => shown(text)).join("")}”`;

/** What happens up to a stop of a round, in a sentence or two. */
function slowSentence({ bug, temperature }, round, stop) {
  const { drafts, last, block } = round, k = drafts.length, kept = drafts.filter(({ fate }) => fate === "accepted").length, greedy = temperature === 0;
  const right = !bug, all = k === 1 ? "it" : `all ${k}`;
  switch (stop) {
    case 0:
      if (round.dropped && k === 0) return `The draft guesses ${quoted(round.dropped.text)}, and drops it.`;
      return k === 0 ? "There is no room for a guess here, so the draft makes none." : `The draft, small and quick, guesses ${plural(k, "letter")}: ${together(drafts)}.`;
    case 1:
      return k === 0 ? "The target reads the current letter, as it does alone." : `The target reads ${all} in one pass, and says at each place ${greedy ? "which letter it would write (under each guess)" : "how likely it finds every letter"}.`;
    case 2: {
      if (k === 0) return "So there is nothing to accept.";
      if (kept === 0) return `The first guess is not accepted, and so none is.`;
      const which = kept === k ? (k === 1 ? "The guess is" : `All ${k} guesses are`) : kept === 1 ? `The first guess, ${together(drafts.slice(0, 1))}, is` : `The first ${kept} guesses, ${together(drafts.slice(0, kept))}, are`;
      const why = !right ? "." : greedy ? `: the target would write the same.` : block ? (k > 1 ? ": in a block, they are judged together." : ".") : ". A guess always is, if the target likes it as much as the draft does, or more; if the target likes it less, then only sometimes.";
      return `${which} accepted ✓${why}`;
    }
    default: {
      const behind = k - kept - 1, wrote = `So one pass of the target wrote ${plural(kept + 1, "letter")}${kept > 0 ? "; alone, it writes one" : ", as it does alone"}.`;
      if (last.fate === "bonus") return `${k === 0 ? "The pass gives" : "Nothing was rejected, and the pass gives one more:"} ${quoted(last.text)} ★. ${wrote}`;
      const instead = !right ? "" : greedy ? ", the target's own letter" : block ? ", drawn so that the text stays the target's (chapter 17)" : ", drawn from what the target likes more than the draft does";
      const dropped = behind <= 0 ? "" : ` The ${behind === 1 ? "guess" : `${behind} guesses`} after it ${behind === 1 ? "is" : "are"} dropped: ${behind === 1 ? "it" : "they"} followed a letter that is not there.`;
      return `${quoted(drafts[kept].text)} is rejected ✗, and ${quoted(last.text)} comes instead ↻${instead}.${dropped} ${wrote}`;
    }
  }
}

/** The end of the text and the guesses, in large letters, as far as they are known at a stop. */
function slowLetters(trace, n, round, stop) {
  const at = trace.prompt.length + trace.before[n], letter = (text, kind, mark = "") => make("span", { class: `token ${kind}` }, make(/rejected|unexamined/.test(kind) ? "s" : "span", {}, shown(text)), make("small", {}, mark));
  const before = trace.all.slice(Math.max(0, at - 12), at).map(({ text }) => letter(text, ""));
  const known = ({ fate }) => stop === 3 || (stop === 2 && fate === "accepted");
  const own = ({ p }, i) => shown(models.target.vocabulary[p[i].indexOf(Math.max(...p[i]))]); // the target's letter
  const unknown = (i) => (stop === 1 && trace.temperature === 0 ? own(round.rows, i) : "?");
  const guesses = round.drafts.map((draft, i) => (known(draft) ? letter(draft.text, draft.fate, MARKS[draft.fate]) : letter(draft.text, "drafted", unknown(i))));
  const last = stop < 3 ? [] : [letter(round.last.text, round.last.fate, MARKS[round.last.fate])];
  const place = guesses.findIndex((_, i) => round.drafts[i].fate !== "accepted"), from = place < 0 ? guesses.length : place + 1; // it comes after what it replaces
  return [...before, ...guesses.slice(0, from), ...last, ...guesses.slice(from)];
}

function drawSlow() {
  const trace = traces[state.trace], round = trace.rounds[slow.round], warned = trace.bug ? ` ⚠ Bug ${trace.bug.number} is on: ${trace.bug.title}.` : "";
  go(slow.round, stepOfStop(trace.steps[slow.round], round, slow.stop));
  $("slow-letters").replaceChildren(...slowLetters(trace, slow.round, round, slow.stop));
  $("slow-says").textContent = slowSentence(trace, round, slow.stop) + warned;
  $("slow-place").textContent = `${slow.stop + 1} of ${STOPS}`;
  $("slow-back").disabled = slow.stop === 0;
  $("slow-next").textContent = slow.stop === STOPS - 1 ? "Next round" : "Next";
}

/** Open the walk at the round that shows most. */
function startSlow() {
  stop();
  if (!traces[state.trace].live) watch(null); // a recorded tree is told otherwise
  Object.assign(slow, { round: telling(traces[state.trace]), stop: 0 });
  drawSlow();
}

function listenToSlow() {
  $("slow").addEventListener("toggle", () => { if ($("slow").open) startSlow(); });
  $("slow-back").addEventListener("click", () => { stop(); slow.stop -= 1; drawSlow(); });
  $("slow-next").addEventListener("click", () => {
    stop();
    if (slow.stop < STOPS - 1) slow.stop += 1;
    else Object.assign(slow, { round: (slow.round + 1) % traces[state.trace].rounds.length, stop: 0 });
    drawSlow();
  });
}
