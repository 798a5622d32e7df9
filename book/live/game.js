"use strict";

// Which of the two is wrong? Two decoders with one draft; one may have a bug. Read, guess, count.

const LEVELS = { // the bugs of a level, and after how many texts of each the counts give up
  easy: { bugs: [11, 17], most: 200 },
  medium: { bugs: [2, 8, 12, 13, 40], most: 500 },
  hard: { bugs: [1, 4, 20], most: 2000 },
};
const SHOWN_BY = { 8: "distilled", 20: "distilled", 40: "distilled" }; // the draft that shows a bug best; else the bigram
const BEGINNINGS = ["ROMEO:", "JULIET:\n", "The king "];
const PLAYED = 100; // letters of a text
const game = { dealt: null, counting: null, streak: 0 };

/** A pair: the settings of A and of B, which of them has the bug ("" if none), and the bug. */
function deal(level, seed) {
  const rng = new RandomSource(seed), pick = (list) => list[Math.floor(rng.uniforms.random() * list.length)];
  const number = pick(LEVELS[level].bugs), bug = BUGS.find((each) => each.number === number), wrong = pick(["A", "B", ""]);
  const draft = SHOWN_BY[number] ?? "bigram", beginning = pick(BEGINNINGS), other = pick([1, 2, 3, 4, 5]);
  const K = draft === "bigram" ? 4 : 8, shared = { draft, K, length: K + FURTHER, temperature: 1, rule: bug.rule ?? "reject", prompt: [...beginning].map((letter) => models.target.vocabulary.indexOf(letter)) };
  const player = (name, salt) => ({ ...shared, bug: wrong === name ? number : null, seed: Math.floor(seed / 8) + salt }); // not the seed that dealt, and within 32 bits
  return { level, wrong, bug, players: { A: player("A", 0), B: player("B", other) } };
}

/** A text of these settings, as long as it goes: a bug may run past the window. */
function textOf(asked) {
  const text = new Text(models.target, asked.prompt, PLAYED), rounds = speculativeRounds(text, models[asked.draft], asked.K, asked.temperature, new RandomSource(asked.seed), decoderOf(asked.rule, asked.bug));
  try {
    for (const _ of rounds) continue;
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
  }
  return text.tokens.map((token) => models.target.vocabulary[token]).join("");
}

/** Deal anew, and show both texts. */
function newPair(seed = Math.floor(Math.random() * 2 ** 32)) {
  game.counting = null;
  game.dealt = deal($("level").value, seed);
  for (const [name, asked] of Object.entries(game.dealt.players)) {
    const n = asked.prompt.length, text = textOf(asked);
    $(`${name}-text`).replaceChildren(make("span", { class: "soft-text" }, text.slice(0, n)), text.slice(n));
    $(`${name}-verdict`).textContent = "";
    $(`${name}-counts`).toggleAttribute("hidden", true);
  }
  for (const button of $("guesses").children) Object.assign(button, { disabled: false, ariaPressed: null });
  for (const part of ["tell", "played", "bars"]) $(part).hidden = true;
  for (const part of ["played-says", "answer"]) $(part).textContent = "";
}

/** What the counts say of one of the two so far. */
function gameVerdict({ refused, p }, made) {
  const texts = `${made.toLocaleString("en")} texts`;
  return refused ? `✗ Wrong, say the counts of ${texts}: a right decoder does this ${rarely(p)}.` : `No sign of a bug in ${texts}.`;
}

/** Whether the guess was right, what there was, and whether the counts saw it. */
function answerSays({ wrong, bug }, guess, seen) {
  const said = guess === wrong ? "Right." : "Not this time.";
  if (wrong === "") return `${said} Neither is wrong: both write like the target.`;
  return `${said} ${wrong} is wrong. ${bug.says} (Bug ${bug.number} of the gallery: ${bug.title}.)${seen ? "" : " The counts have not shown it; it is there all the same."}`;
}

/** The reader has guessed: count both until one is refused, or until the level's last look; then tell. */
async function guessed(guess) {
  const { dealt } = game, { players, level } = dealt, { most } = LEVELS[level], mine = (game.counting = {}), started = performance.now();
  for (const button of $("guesses").children) Object.assign(button, { disabled: true, ariaPressed: `${button.value === guess}` });
  Object.assign($("played"), { hidden: false, max: most, value: 0 });
  $("tell").hidden = false;
  const all = Object.entries(players).map(([name, asked]) => ({ name, asked, samples: samplesOf(models, asked) }));
  const seen = await countAll(all, most, await counting(), (verdicts) => {
    if (game.counting !== mine) return false;
    const made = Math.min(...all.map(({ samples }) => samples.made));
    $("played").value = made;
    $("played-says").textContent = `${made.toLocaleString("en")} texts of each${timeLeft(started, made, most)}`;
    $("bars").hidden = false;
    all.forEach(({ name, samples }, i) => {
      $(`${name}-counts`).toggleAttribute("hidden", false);
      drawCounts($(`${name}-counts`), samples, all[0].samples);
      if (verdicts) $(`${name}-verdict`).textContent = gameVerdict(verdicts[i], samples.made);
    });
    return !mine.told;
  });
  if (game.counting !== mine) return; // another pair was dealt
  $("tell").hidden = $("played").hidden = true;
  $("played-says").textContent = "";
  game.counting = null;
  game.streak = guess === dealt.wrong ? game.streak + 1 : 0;
  $("streak").textContent = `${game.streak} in a row`;
  $("answer").textContent = answerSays(dealt, guess, seen?.some(({ refused }) => refused));
}

function listenToGame() {
  $("bars").append(...[...$("legend").children].map((bar) => bar.cloneNode(true)));
  $("game").addEventListener("toggle", () => { if ($("game").open && !game.dealt) newPair(); else if (!$("game").open && game.counting) game.counting.told = true; });
  $("level").addEventListener("change", () => newPair());
  $("deal").addEventListener("click", () => newPair());
  $("guesses").addEventListener("click", ({ target }) => { const button = target.closest("button"); if (button) game.playing = guessed(button.value); });
  $("tell").addEventListener("click", () => { game.counting.told = true; });
}
