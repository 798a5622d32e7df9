"""The book's pages beside the chapters: glossary, questions that people ask, and test yourself."""

import re
import runpy

import nbformat
import pytest
from series import (
    GLOSSARY,
    NOTEBOOKS,
    NUMBER,
    QUESTIONS,
    ROOT,
    as_floats,
    cells,
    glossary,
    lost_links,
    outputs,
    prose,
    prose_decimals,
)

from nanogpt import theory

CHAPTERS = {path.stem[:2]: path for path in NOTEBOOKS}
PAGES = [ROOT / "README.md", *sorted((ROOT / "book").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_to_files_and_headings(page):
    lost = [*lost_links(page.read_text(encoding="utf-8"), page)]
    assert not lost, f"{page.name} links to {lost}"


def test_the_readme_and_chapter_00_lead_to_these_pages():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in ("questions", "glossary", "test_yourself"):
        assert f"(book/{name}.md)" in readme and f"(../book/{name}.md)" in prose(NOTEBOOKS[0])


def test_a_copy_for_colab_installs_the_package_and_leads_to_its_repository(tmp_path):
    runpy.run_path(str(ROOT / "book" / "colab.py"))["for_colab"](tmp_path, "owner/name", "main")
    for path in NOTEBOOKS:
        nbformat.validate(made := nbformat.read(tmp_path / path.name, as_version=4))
        install = '    %pip install -q "nanogpt @ git+https://github.com/owner/name@main"'
        assert install in made.cells[0].source.splitlines()
        links = re.findall(r"\]\(([^#\s]\S*)\)", prose(tmp_path / path.name))
        assert all(link.startswith("https://") for link in links), f"{path.name}: {links}"


def test_the_grid_of_the_summary_is_the_equations():
    text = (ROOT / "book" / "summary.md").read_text(encoding="utf-8")
    head, _, *rows = re.findall(r"(?m)^\| (.+) \|$", text)
    costs = [float(c) for c in head.split(" | ")[1:]]
    for row in rows:
        alpha, *told = row.split(" | ")
        for c, said in zip(costs, told, strict=True):
            K = theory.best_K(float(alpha), c)
            gain = theory.speed_up(theory.expected_tokens(float(alpha), K), K, c)
            assert said == f"{K}: {gain:.2f}×"


# The glossary


def spelled(term):
    return {"α": "alpha"}.get(term, term.casefold())


def test_the_glossary_goes_from_a_to_z_with_each_word_once():
    text = GLOSSARY.read_text(encoding="utf-8")
    headings = re.findall(r"(?m)^##+ (.+)$", text)
    expected, letter = [], ""
    for term in sorted(set(glossary()), key=spelled):
        if spelled(term)[0] != letter:
            letter = spelled(term)[0]
            expected.append(letter.upper())
        expected.append(term)
    assert headings == expected


@pytest.mark.parametrize("term", glossary())
def test_a_word_of_the_glossary_stands_in_the_chapters_that_it_names(term):
    meaning, chapters = glossary()[term]
    assert len(chapters) == max(1, meaning.count("; (") + 1), f"{term}: a chapter for each meaning"
    for chapter in chapters:
        said = prose(CHAPTERS[chapter]).casefold()
        for part in term.casefold().split(", "):
            assert part.removesuffix("s") in said, f"{term} is not in chapter {chapter}"


# Questions people ask


def asked():
    """{question: answer} of the page of questions."""
    text = QUESTIONS.read_text(encoding="utf-8")
    return dict(re.findall(r"(?ms)^### (.+?)\n\n(.+?)(?=^##|\Z)", text))


EQUATION = r"([\d.(][\d.()+−·/ ]*) = ([\d.]*\d)"
EXACT = rf"{NUMBER}|\d{{1,3}}(?:,\d{{3}})+|\d{{3,}}"  # decimals, and whole numbers from 100


def worked_out(answer):
    """The numbers in an answer's equations, each of which must come out right as it is rounded."""
    found = set()
    for left, right in re.findall(EQUATION, answer):
        value = eval(left.replace("−", "-").replace("·", "*"))  # digits and signs, by the pattern
        digits = len(right.partition(".")[2])
        assert round(value, digits) == float(right), f"{left} is {value}, not {right}"
        found |= as_floats(re.findall(NUMBER, f"{left} {right}"))
    return found


@pytest.mark.parametrize("question", asked())
def test_an_answer_is_short_and_links_a_chapter(question):
    answer = asked()[question]
    words = len(re.sub(r"\]\(\S+?\)", "]", answer).split())
    assert 30 <= words <= 150, f"{words} words"
    assert re.search(r"\]\(\.\./notebooks/\d\d_\w+\.ipynb#\S+\)", answer)


@pytest.mark.parametrize("question", asked())
def test_every_number_of_an_answer_is_a_linked_chapters_or_worked_out_or_quoted(question):
    answer = asked()[question]
    shown = worked_out(answer)
    for name in set(re.findall(r"notebooks/(\d\d)_", answer)):
        path = CHAPTERS[name]
        shown |= as_floats(re.findall(EXACT, outputs(path) + prose(path)))
    for number in prose_decimals(re.sub(r"\]\(\S+?\)", "]", answer), EXACT):
        assert as_floats([number]) <= shown, f"{number} is in no chapter that the answer links"


def test_an_equation_that_does_not_come_out_is_refused():
    assert worked_out("so a comes with 0.2 + 0.6 · 0.7 = 0.62.") == {0.2, 0.6, 0.7, 0.62}
    with pytest.raises(AssertionError, match=r"is 0\.62, not 0\.63"):
        worked_out("so a comes with 0.2 + 0.6 · 0.7 = 0.63.")


# Test yourself


def remembered(path):
    """The questions and the answers of a chapter's end, as they stand in its list."""
    last = cells(path, "markdown")[-1].source
    ends = last.split("**Three questions, from memory**")[1].split("**Sources**")[0]
    return re.findall(r"(?m)^\d\. (.+)$", ends)


def test_test_yourself_has_exactly_the_questions_of_the_chapters_each_with_its_answer():
    page = runpy.run_path(str(ROOT / "book" / "yourself.py"))["yourself_page"]()
    sections = dict(re.findall(r"(?ms)^## (\d\d) · (.+?)(?=^## |\Z)", page))
    assert list(sections) == list(CHAPTERS)
    for name, path in CHAPTERS.items():
        lines = [re.sub(r"^\d\. ", "", line.strip()) for line in sections[name].splitlines()]
        said = [line for line in lines[3:] if line and not line.startswith("<")]
        every = remembered(path)
        questions, answers = every[: len(every) // 2], every[len(every) // 2 :]
        assert len(questions) >= 3 and all("?" in question for question in questions), path.name
        assert (said[::2], said[1::2]) == (questions, answers), path.name
        assert sections[name].count("<details>") == len(questions)
        assert f"(../notebooks/{path.name})" in sections[name]
