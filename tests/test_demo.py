"""The demonstration shows both decoders, in colour only where that can be seen."""

from dataclasses import replace

import pytest

from nanogpt.course import demo
from nanogpt.course.demo import main, parse_arguments
from nanogpt.data import load_corpus
from nanogpt.drafts.shipped import BEST_PROPOSED, PROPOSERS


@pytest.fixture(autouse=True)
def short_corpus(monkeypatch):
    """A hundredth of it: only drafts that count read it, and nothing asks how well they guess."""
    short = replace(load_corpus(), text=load_corpus().text[:10_000])
    monkeypatch.setattr(demo, "load_corpus", lambda: short)


def test_it_prints_both_texts_and_what_they_took(capsys):
    main(["--prompt", "JULIET:", "--tokens", "20", "--K", "3", "--seed=1"])
    out = capsys.readouterr().out
    assert "autoregressive: 20 tokens in 20 passes, 1.00 tokens each" in out
    assert "speculative: 20 tokens in" in out and out.count("JULIET:") == 2
    assert "K = 3" in out and "speed-up" in out and "accepted" in out
    assert "\x1b" not in out, "no colours where the output is no terminal"


def test_a_terminal_gets_colours_unless_it_asks_for_none(capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["--tokens", "5"])
    assert "\x1b[3" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    main(["--tokens", "5"])
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "wrong,why",
    [("--K=0", "K is 0"), ("--temperature=-1", "temperature"), ("--tokens=-1", "max_new_tokens"),
     ("--prompt=", "prompt is empty"), ("--prompt=é", "'é'"), ("--seed=-1", "seed"),
     ("--tree=0", "widths")],
)  # fmt: skip
def test_impossible_settings_are_refused_in_one_line(wrong, why):
    with pytest.raises(ValueError, match=why):
        main([wrong])


def test_the_defaults():
    given = parse_arguments([])
    assert (given.prompt, given.K, given.temperature, given.tokens) == ("ROMEO:", None, 1.0, 300)
    assert (given.target, given.draft) == ("per-head", "distilled")


def test_any_target_and_draft_can_be_shown(capsys):
    main(["--tokens", "12", "--target", "fused", "--draft", "bigram"])
    assert "bigram draft, K = 3" in capsys.readouterr().out


def test_a_tree_can_be_guessed_and_shows_the_siblings_it_refused(capsys):
    main(["--tokens", "40", "--tree", "3", "2", "1", "--temperature", "0"])
    out = capsys.readouterr().out
    assert "a tree of widths 3 2 1" in out and "(✗" in out.split("the first rounds:")[1]
    text = [part.split("\n", 1)[1] for part in out.split("--- ")[1:]]
    assert text[1].startswith(text[0].rstrip()), "greedy: both decoders write the same"
    with pytest.raises(ValueError, match="leave out one"):
        main(["--K", "3", "--tree", "2"])
    with pytest.raises(ValueError, match="leave out --tree"):
        main(["--draft", "medusa", "--tree", "2"])


@pytest.mark.parametrize("draft", PROPOSERS)
def test_every_way_to_guess_can_be_shown(draft, capsys):
    main(["--tokens", "8", "--draft", draft, "--temperature", "0"])
    out = capsys.readouterr().out
    text = [part.split("\n", 1)[1].rstrip() for part in out.split("--- ")[1:]]
    assert text[1].startswith(text[0]), "greedy: both decoders write the same"
    assert f"{draft} draft, K = {BEST_PROPOSED[draft]}" in out
