"""A small regular expression as an automaton over tokens: what a reply may go on with.

By derivatives (Brzozowski 1964): what may follow a letter is an expression again, so that a state
is an expression, and an arrow the derivative by a letter. An expression that nothing matches is
`NOTHING`, so a letter that leads into a dead end is never allowed.

An expression is NOTHING, EMPTY (the empty text), a frozenset (one of these tokens), or a tuple:
("then", a, b), ("or", {a, b, …}), ("any", a), which is a as often as one likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

NOTHING, EMPTY = "nothing", "empty"


def then(a, b):
    """a and after it b."""
    if NOTHING in (a, b):
        return NOTHING
    if EMPTY in (a, b):
        return b if a == EMPTY else a
    if isinstance(a, tuple) and a[0] == "then":  # one form only, so that equal states are equal
        return then(a[1], then(a[2], b))
    return ("then", a, b)


def either(a, b):
    """a or b."""
    parts: set = set()
    for one in (a, b):
        parts |= one[1] if isinstance(one, tuple) and one[0] == "or" else {one}
    parts -= {NOTHING}
    if len(parts) < 2:
        return parts.pop() if parts else NOTHING
    return ("or", frozenset(parts))


def may_be_empty(e) -> bool:
    """Whether the expression matches the empty text."""
    if isinstance(e, (str, frozenset)):
        return e == EMPTY
    kind, *parts = e
    if kind == "then":
        return all(may_be_empty(part) for part in parts)
    return kind == "any" or any(may_be_empty(part) for part in parts[0])


def derivative(e, token: int):
    """What may follow the token, in a text that the expression matches."""
    if isinstance(e, str):
        return NOTHING
    if isinstance(e, frozenset):
        return EMPTY if token in e else NOTHING
    kind, *parts = e
    if kind == "any":
        return then(derivative(parts[0], token), e)
    if kind == "or":
        found = NOTHING
        for part in parts[0]:
            found = either(found, derivative(part, token))
        return found
    a, b = parts
    found = then(derivative(a, token), b)
    return either(found, derivative(b, token)) if may_be_empty(a) else found


class Pattern:
    """Reads a pattern over a vocabulary, its letters in the order of their tokens.

    Letters, . for any, [a-z,.] and [^a-z] for one of several, (…), |, *, +, ?, {n}; \\n is the end
    of a line, and a \\ before any other sign takes it as a letter.
    Raises ValueError with the place of what it cannot read.
    """

    def __init__(self, text: str, vocabulary: Sequence[str]):
        self.text, self.at = text, 0
        self.vocabulary = list(vocabulary)

    def read(self):
        """The expression of the whole pattern."""
        e = self.choice()
        if self.at < len(self.text):
            self.refuse("a ) that nothing opens")
        return e

    def refuse(self, what: str):
        """Raise ValueError."""
        raise ValueError(f"{what} in the pattern {self.text!r} at index {self.at}")

    def next_is(self, *signs: str) -> bool:
        """Whether one of the signs comes next; it is passed over."""
        if self.at < len(self.text) and self.text[self.at] in signs:
            self.at += 1
            return True
        return False

    def choice(self):
        """a|b|…"""
        e = self.sequence()
        while self.next_is("|"):
            e = either(e, self.sequence())
        return e

    def sequence(self):
        """Parts one after another."""
        parts = []
        while self.at < len(self.text) and self.text[self.at] not in "|)":
            parts.append(self.repeated())
        return reduce(lambda e, part: then(part, e), reversed(parts), EMPTY)

    def repeated(self):
        """A part, and how often it may come."""
        e = self.part()
        while self.at < len(self.text):
            if self.next_is("*"):
                e = ("any", e)
            elif self.next_is("+"):
                e = then(e, ("any", e))
            elif self.next_is("?"):
                e = either(e, EMPTY)
            elif self.next_is("{"):
                end = self.text.find("}", self.at)
                if end < 0 or not self.text[self.at : end].isdecimal():
                    self.refuse("{ without a whole number and }")
                one, n, e = e, int(self.text[self.at : end]), EMPTY
                for _ in range(n):
                    e = then(one, e)
                self.at = end + 1
            else:
                break
        return e

    def part(self):
        """A letter, a set of letters, or an expression in brackets."""
        if self.next_is("("):
            e = self.choice()
            if not self.next_is(")"):
                self.refuse("a ( that nothing closes")
            return e
        if self.next_is("["):
            return self.letters()
        if self.next_is("."):
            return frozenset(range(len(self.vocabulary)))
        if self.text[self.at] in "*+?{":
            self.refuse("nothing to repeat")
        return frozenset([self.token(self.letter())])

    def letter(self) -> str:
        """The next letter, or the one after a \\."""
        escaped = self.next_is("\\")
        if self.at == len(self.text):
            self.refuse("no letter where one must come")
        self.at += 1
        letter = self.text[self.at - 1]
        return "\n" if escaped and letter == "n" else letter

    def token(self, letter: str) -> int:
        """The letter's token."""
        if letter not in self.vocabulary:
            self.at -= 1
            self.refuse(f"{letter!r}, which is not in the vocabulary,")
        return self.vocabulary.index(letter)

    def letters(self) -> frozenset[int]:
        """A set of letters, up to its ]."""
        others, found = self.next_is("^"), set()
        while not self.next_is("]"):
            first = last = self.letter()
            if self.text[self.at : self.at + 1] == "-" and self.text[self.at + 1 :][:1] != "]":
                self.at += 1
                last = self.letter()
            if last < first:
                self.refuse(f"a range from {first!r} back to {last!r}")
            between = {i for i, x in enumerate(self.vocabulary) if first <= x <= last}
            found |= between or {self.token(first)}
        found = set(range(len(self.vocabulary))) - found if others else found
        return frozenset(found) if found else self.refuse("[ ] without a letter")


class Grammar:
    """An automaton of the texts that a pattern matches, over the tokens of a vocabulary.

    States are 0 (the start), 1, …, and LEFT for texts that are no beginning of a match. next
    (S+1, V): the state after each token; allowed (S+1, V): whether the token may come; over (S+1):
    whether the text matches and nothing may follow. Where it is over, and where it was left,
    everything is allowed: nothing of it is read.
    Raises ValueError for a pattern that cannot be read, or needs too many states.
    """

    LEFT = -1

    def __init__(self, pattern: str, vocabulary: Sequence[str]):
        self.pattern, self.vocab_size = pattern, len(vocabulary)
        states, arrows = [Pattern(pattern, vocabulary).read()], []
        number = {states[0]: 0, NOTHING: self.LEFT}
        for e in states:  # grows as new ones are found
            if len(states) > 5000:
                raise ValueError("over 5,000 states: shorten the pattern")
            row = []
            for token in range(self.vocab_size):
                follows = derivative(e, token)
                if follows not in number:
                    number[follows] = len(states)
                    states.append(follows)
                row.append(number[follows])
            arrows.append(row)
        left = [self.LEFT] * self.vocab_size
        self.next = np.array([*arrows, left])
        self.matches = np.array([*map(may_be_empty, states), False])
        self.allowed = self.next != self.LEFT
        self.over = self.matches & ~self.allowed.any(-1)
        self.allowed[self.over] = True
        self.allowed[self.LEFT] = True

    def __len__(self) -> int:
        """How many states there are."""
        return len(self.next) - 1

    def state(self, tokens: Sequence[int]) -> int:
        """The state after these tokens."""
        state = 0
        for token in tokens:
            state = int(self.next[state, token])
        return state
