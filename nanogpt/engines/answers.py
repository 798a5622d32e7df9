"""What servers say of the tokens that they drew, in one form, whoever wrote it down.

OpenAI's completions, chats and responses, and what vLLM, SGLang, llama.cpp, Ollama, mlx-lm, TGI and
others make of them; alone, in a stream's chunks, in a batch's output, or inside a line of a tool.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanogpt.data import read_lines

MISSING = 3  # end tokens that are in no log move a χ² by MISSING² / LEAST, less than 2
NEAR = 0.01  # of a log-probability: one that is told twice
ENDED = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "STOP")


@dataclass(frozen=True)
class Told:
    """One token: its name, its log-probability, and {name: log-probability} of the likeliest."""

    token: str
    logprob: float
    top: dict[str, float]


# One choice of an answer


class NotDrawn(ValueError):
    """What is told is not what was drawn."""


Entry = dict[str, Any]  # a token's "token", "id", "bytes" and "logprob", as far as they are told


def entries_of(choice: dict[str, Any]) -> list[tuple[Entry, list[Entry]]]:
    """What a choice says of each token that came, and of the likeliest at its place.

    Raises ValueError, KeyError or TypeError if that is not in a form that is known.
    """
    if isinstance(meta := choice.get("meta_info"), dict):  # SGLang's own
        pairs = zip(meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True)
        return [(triple(one), list(map(triple, top or []))) for one, top in pairs]
    if isinstance(details := choice.get("details"), dict):  # TGI's own
        pairs = zip(details["tokens"], details["top_tokens"], strict=True)
        renamed = [[one | {"token": one["text"]} for one in (x, *top)] for x, top in pairs]
        return [(one, top) for one, *top in renamed]
    said = choice.get("logprobs") or choice.get("completion_probabilities") or {}
    if isinstance(content := said if isinstance(said, list) else said.get("content"), list):
        return [(x, x.get("top_logprobs") or x.get("top_probs") or []) for x in content]
    names, logs, tops = (said.get(x) or [] for x in ("tokens", "token_logprobs", "top_logprobs"))
    if not tops:
        return []
    made = []
    for name, log, top in zip(names, logs, tops, strict=True):
        numbers = isinstance(name, int) or name.startswith("token_id:")
        key = "id" if numbers else "token"
        top = (top or {}) if not isinstance(top, list) else {x["token"]: x["logprob"] for x in top}
        made.append(({key: name, "logprob": log}, [{key: x, "logprob": y} for x, y in top.items()]))
    return made


def triple(said: Sequence[Any]) -> Entry:
    """SGLang's [log-probability, id, text or null]."""
    return {"logprob": said[0], "id": said[1], "token": said[2]}


def log_of(entry: Entry) -> float:
    """A log-probability; null is −∞, for which JSON has no word. Raises ValueError for no such."""
    if "logprob" not in entry and "prob" in entry:  # llama.cpp's post_sampling_probs
        return math.log(p) if (p := float(entry["prob"])) > 0 else -math.inf
    log = -math.inf if entry["logprob"] is None else float(entry["logprob"])
    if not log < NEAR:
        raise ValueError(f"a log-probability is {log}; it must be 0 or less")
    return log


def told_of(choice: dict[str, Any]) -> list[Told]:
    """What a choice says of its tokens. Names are ids where they are told, since two may be spelled
    alike; else texts, with their bytes.

    Raises ValueError if it has no log-probabilities of the likeliest tokens, or in no known form.
    """
    made = []
    try:
        entries = entries_of(choice)
    except (LookupError, TypeError, AttributeError) as error:
        raise ValueError(f"its form is not known: {error!r}") from None
    for entry, likeliest in entries:
        all_have = [
            key
            for key in ("id", "token", "bytes")
            if all(x.get(key) is not None for x in (entry, *likeliest))
        ]
        if not all_have:
            raise ValueError("a token has neither id nor text")
        keys = all_have[:1] if all_have[0] == "id" else all_have

        def name(x: Entry, keys=keys) -> str:
            return " ".join(str(x[key]) for key in keys)

        top: dict[str, float] = {}
        for x in likeliest:
            own = name(x)
            while own in top:
                own += "\0"  # another token of that name
            if (log := log_of(x)) > -math.inf:
                top[own] = log
        came, log = name(entry), log_of(entry)
        alike = [x for x in top if x.rstrip("\0") == came]
        if len(alike) > 1 or (alike and "\ufffd" in came and keys[0] != "id"):
            found = [x for x in alike if abs(top[x] - log) < NEAR]
            came = found[0] if found else came + "\0 not listed"
        elif came in top and log == -math.inf:
            log = top[came]
        made.append(Told(came, log, top))
    if not any(one.top for one in made):
        raise ValueError("an answer has no log-probabilities of the likeliest tokens")
    return made


# Is it what was answered?


def spelled(entries: Sequence[Entry]) -> str | None:
    """The text of tokens; None if it is not told, or not whole characters."""
    made = b""
    for x in entries:
        text = x.get("token")
        if text is None:
            return None
        if (piece := x.get("bytes")) is None or bytes(piece).decode(errors="replace") != text:
            piece = piece or text.encode(errors="replace")
        if re.fullmatch(r"<0x[0-9A-F]{2}>|bytes:(\\x[0-9a-f]{2})+", text):  # SentencePiece, OpenAI
            piece = bytes.fromhex(re.sub(r"<0x|>|bytes:|\\x", "", text))
        made += bytes(piece)
    said = made.decode(errors="replace")
    return None if "\ufffd" in said else said


def bare(text: str) -> str:
    """A text without spaces, and without the letters that stand for them in vocabularies."""
    return re.sub(r"[\s▁ĠĊ]", "", text)


def answered(choice: dict[str, Any]) -> str:
    """The text that a choice answers; empty if it has none."""
    message = choice.get("message")
    places = (message.get("content") if isinstance(message, dict) else None, choice.get("text"))
    more = (choice.get(x) for x in ("content", "response", "generated_text"))
    return next((x for x in (*places, *more) if isinstance(x, str)), "")


def check_spelled(choice: dict[str, Any]) -> bool:
    """Whether a choice ended with a token that is not told: it spells its text, and has stopped.

    Raises NotDrawn if the tokens told do not spell what was answered: they are not those drawn.
    """
    entries, text = [entry for entry, _ in entries_of(choice)], answered(choice)
    finish = choice.get("finish_reason") or choice.get("done_reason")
    for inside in ("meta_info", "details"):
        if isinstance(choice.get(inside), dict):
            finish = finish or choice[inside].get("finish_reason")
    finish = finish.get("type") if isinstance(finish, dict) else finish
    said = spelled(entries)
    if said is None or not (entries or (finish in ENDED and not text.strip())):
        return False  # nothing is told, or not in whole characters

    def letters(x: str) -> str:
        return "".join(letter for letter in bare(x) if letter.isalnum())

    if letters(text) not in letters(said):
        raise NotDrawn(
            f"the tokens told spell {said[:40]!r}, and the answer is {text[:40]!r}: what is told "
            "is not what was drawn"
        )
    if finish not in ENDED or bare(said) != bare(text) or spelled(entries[-1:] or [{}]) == "":
        return False
    return len(said.lstrip()) <= len(text.lstrip())


def without_ends(
    texts: Sequence[Sequence[Told]], ended: Sequence[bool]
) -> tuple[list[Sequence[Told]], list[str]]:
    """The texts as far as no end token is missing from what is told, and a note where it is.

    Those that `ended` drew one more token, at a place where others are counted: a few are borne.
    Raises ValueError if more than a few ended at once.
    """
    lengths = sorted(len(text) for text, end in zip(texts, ended, strict=True) if end)
    if len(lengths) <= MISSING:
        return list(texts), []
    n = lengths[MISSING]
    if not n:
        raise ValueError(
            f"{len(lengths)} answers ended without their end token among the tokens told, "
            "some at once: what came first is not known; have the server tell it"
        )
    note = f"{len(lengths)} answers ended, and their end tokens are not told: the first {n} tokens"
    return [text[:n] for text in texts], [f"{note} of each are judged"]


# Files


def choices_of(said: Any) -> Iterator[dict[str, Any]]:
    """Every choice in what a client, a batch or a tool wrote, however deep."""
    if isinstance(said, list):
        for one in said:
            yield from choices_of(one)
    elif isinstance(said, dict):
        if isinstance(choices := said.get("choices"), list):
            yield from (choice for choice in choices if isinstance(choice, dict))
        elif isinstance(said.get("logprobs"), dict | list) or any(
            isinstance(said.get(x), dict | list)
            for x in ("completion_probabilities", "meta_info", "details")
        ):
            yield said
        else:
            for value in said.values():
                yield from choices_of(value)


def parts_of(path: Path) -> Iterator[tuple[str, Any]]:
    """Where each answer of a file stands, and what it says; a ValueError for what is no JSON."""
    lines = read_lines(path)
    try:
        whole = json.loads("\n".join(line for _, line in lines))
        if isinstance(whole, list):
            yield from ((f"answer {i}", part) for i, part in enumerate(whole, 1))
        else:
            yield f"line {lines[0][0]}", whole
        return
    except (ValueError, RecursionError):
        pass  # a response a line
    for i, line in lines:
        data = line.removeprefix("data:").strip()
        if data in ("", "[DONE]") or line.startswith((":", "event:", "id:", "retry:")):
            continue
        try:
            said = json.loads(data)
        except (ValueError, RecursionError) as error:
            said = ValueError(str(error))
        if line.startswith("data:") and isinstance(said, dict):
            said = said | {"done": False}
        yield f"line {i}", said


def joined(parts: Iterator[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The same, with the chunks of each stream made one answer.

    A chunk has a delta, or says whether it is the last, or is one of several that share an id, of
    which the first is not finished.
    """
    streams: dict[Any, tuple[str, list[Any]]] = {}
    unfinished: set[Any] = set()
    for where, said in parts:
        chunk = False
        if isinstance(said, dict):
            choices = list(choices_of({"choices": said.get("choices")}))
            if isinstance(said.get("id"), str) and any(
                "finish_reason" in x and x["finish_reason"] is None for x in choices
            ):
                unfinished.add(said["id"])
            chunk = "done" in said or any("delta" in x for x in choices)
            chunk = chunk or (isinstance(said.get("id"), str) and said["id"] in unfinished)
        if not chunk:
            yield where, said
            continue
        first, chunks = streams.setdefault(said.get("id"), (where, []))
        chunks += said["choices"] if isinstance(said.get("choices"), list) else [said]
        if said.get("done"):  # Ollama's have no ids
            yield first, whole(streams.pop(said.get("id"))[1])
    yield from ((first, whole(chunks)) for first, chunks in streams.values())


def whole(chunks: Sequence[dict[str, Any]]) -> Any:
    """The answer that a stream's chunks make; a ValueError if that cannot be said."""
    choices: dict[int, dict[str, Any]] = {}
    try:
        for one in chunks:
            made = choices.setdefault(one.get("index") or 0, {"text": "", "logprobs": []})
            made["text"] += answered({"message": one.get("delta"), **one})
            made["logprobs"] += [x | {"top_logprobs": top} for x, top in entries_of(one)]
            if finish := one.get("finish_reason") or one.get("done_reason"):
                made["finish_reason"] = finish
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return ValueError(f"a stream of no known form: {error!r}")
    return {"choices": list(choices.values())}


def read_log(path: Path) -> tuple[list[Sequence[Told]], list[str]]:
    """The tokens of every answer of a file, and notes on what is left out.

    Raises ValueError if no answer can be read, or one is not what was drawn; OSError.
    """

    def each() -> Iterator[tuple[str, Any]]:
        for where, said in joined(parts_of(path)):
            found = list(choices_of(said))
            why = said if isinstance(said, ValueError) else "an answer has no log-probabilities"
            if not found:
                yield where, ValueError(why)
            yield from ((where, choice) for choice in found)

    try:
        return readable(each())
    except ValueError as error:
        raise ValueError(f"{path}, {error}") from None


def readable(choices: Iterator[tuple[str, Any]]) -> tuple[list[Sequence[Told]], list[str]]:
    """The tokens of choices, each with where it stands, and notes on what is left out.

    Raises ValueError if none can be read, or one is not what was drawn.
    """
    texts: list[list[Told]] = []
    ended, bad, answers = [], [], 0
    for where, choice in choices:
        answers += 1
        told: list[Told] = []
        end = False
        try:
            if isinstance(choice, ValueError):
                raise choice
            end = check_spelled(choice)
            told = told_of(choice)
        except NotDrawn as error:
            raise ValueError(f"{where}: {error}") from None
        except ValueError as error:
            bad.append(f"{where}: no response to read ({error})")
        except (LookupError, TypeError, AttributeError) as error:
            bad.append(f"{where}: no response to read (its form is not known: {error!r})")
        if told or end:
            texts.append(told)
            ended.append(end)
    if bad and not any(texts):
        raise ValueError(bad[0])
    judged, notes = without_ends(texts, ended)
    if bad:
        notes.append(f"{len(bad)} of {answers} answers are left out; the first, {bad[0]}")
    return [text for text in judged if text], notes
