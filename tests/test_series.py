"""What holds the series together: notebooks, package, prose and outputs cannot drift apart."""

import ast
import re

import pytest
from series import (
    GUESS,
    NAMES,
    NOTEBOOKS,
    ROOT,
    answers,
    cells,
    minutes,
    output_text,
    prose,
    read,
    solutions,
    tags,
    turn,
)

from nanogpt import checkpoint
from nanogpt.show import figures

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
GLOSSARY = ROOT / "notebooks" / "00_start_here.ipynb"


def without_docstrings(node):
    for inner in ast.walk(node):
        if isinstance(inner, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(inner):
            inner.body = inner.body[1:]
    return ast.dump(node)


def piece_of(node):
    """The class that a function is added to with `@add_to(Class)`, or None; takes that line off."""
    for decorator in getattr(node, "decorator_list", []):
        if isinstance(decorator, ast.Call) and getattr(decorator.func, "id", "") == "add_to":
            node.decorator_list.remove(decorator)
            return decorator.args[0].id
    return None


def definitions(*sources, but=()):
    """{name: syntax tree without docstrings} of the functions and classes of a module or of cells.

    A class may come in pieces: methods that are added later count as its own. Of a class, the order
    of its methods does not matter. What is added to a class from elsewhere is "Class.method". The
    methods in `but` are left out of their class and stand alone, under such names.
    """
    found, members, alone = {}, {}, {}
    for node in [node for source in sources for node in ast.parse(source).body]:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            continue
        owner = piece_of(node)
        if owner is not None:
            members.setdefault(owner, []).append(node)
        else:
            found[node.name] = node
    for name, methods in members.items():
        if name in found:
            found[name].body += methods
        else:  # it grows a class of another chapter
            alone |= {f"{name}.{method.name}": method for method in methods}
    for name in but:
        owner, method = name.split(".")
        if owner in found:
            (alone[name],) = (n for n in found[owner].body if getattr(n, "name", "") == method)
            found[owner].body.remove(alone[name])
    for node in found.values():
        if isinstance(node, ast.ClassDef):
            node.body.sort(key=lambda inner: getattr(inner, "name", ""))  # and keeps other lines
    return {name: without_docstrings(node) for name, node in (found | alone).items()}


GROWN = [  # "Class.method" of what a chapter adds to a class of an earlier one
    name
    for path in NOTEBOOKS
    for name in definitions(*(cell.source for cell in cells(path, "code")))
    if "." in name
]
PACKAGE = {
    name: (path.relative_to(ROOT / "nanogpt").with_suffix("").as_posix().replace("/", "."), tree)
    for path in sorted((ROOT / "nanogpt").rglob("*.py"))
    if path.parent.name != "course"  # judges and drawings: a chapter may name its own like theirs
    for name, tree in definitions(path.read_text(encoding="utf-8"), but=GROWN).items()
    if name != "main"
}


def built_in(path):
    """{name: tree} of what the notebook defines under a name that the package has, too."""
    shown = definitions(*(cell.source for cell in cells(path, "code")))
    return {name: tree for name, tree in shown.items() if name in PACKAGE}


def test_the_notebooks_are_numbered_without_gaps():
    assert [int(name[:2]) for name in NAMES] == list(range(len(NAMES)))
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", name) for name in NAMES)


@every_notebook
def test_what_a_notebook_builds_is_the_packages_code(path):
    for name, tree in built_in(path).items():
        module, packaged = PACKAGE[name]
        assert tree == packaged, f"{path.name} builds another {name} than nanogpt.{module} holds"


def test_no_function_is_built_twice():
    owners = {}
    for path in NOTEBOOKS:
        for name in built_in(path):
            assert name not in owners, f"{name} is built in {owners[name]} and in {path.name}"
            owners[name] = path.name


@every_notebook
def test_the_opening_says_what_a_reader_needs(path):
    opening = read(path).cells[0]
    assert opening.cell_type == "markdown"
    assert opening.source.startswith(f"# {path.stem[:2]} · ")
    for label in ("Question", "You will", "Needs", "Minutes", "Builds"):
        assert f"**{label}** " in opening.source, f"{path.name}: the opening lacks {label}"
    number, links = int(path.stem[:2]), opening.source
    for neighbour in {number - 1, number + 1} & set(range(len(NAMES))):
        assert f"({NAMES[neighbour]}.ipynb)" in links, f"{path.name}: no link to {neighbour:02d}"


@every_notebook
def test_the_minutes_are_computed(path):
    """Those of the opening and of the README, reading and exercises together."""
    said = re.search(r"\*\*Minutes\*\* (\d+)(?: with the exercises)?;", read(path).cells[0].source)
    assert said and int(said.group(1)) == minutes(path), f"{path.name} takes {minutes(path)}"
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    row = re.search(rf"\(notebooks/{path.name}\) \| [^|]+ \| (\d+) \|", readme)
    assert int(row.group(1)) == minutes(path), f"README: {path.name} takes {minutes(path)}"


def test_the_readmes_paths_take_as_long_as_their_chapters():
    """An hour is one of reading; the others are whole chapters."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    each = [int(m) for m in re.findall(r"\.ipynb\) \| [^|]+ \| (\d+) \|", readme)]
    paths = dict(re.findall(r"(?m)^\| [^|[]+ \| (chapters [^|:]+|all)\b[^|]* \| (\d+) \|$", readme))
    assert len(paths) == 3 and len(each) == len(NOTEBOOKS)
    for chapters, minutes_said in paths.items():
        read_of = set(range(len(NOTEBOOKS))) if chapters == "all" else set()
        for first, last in re.findall(r"(\d\d)(?: to (\d\d))?", chapters):
            read_of |= set(range(int(first), int(last or first) + 1))
        assert sum(each[number] for number in read_of) == int(minutes_said), chapters


@every_notebook
def test_the_opening_lists_exactly_what_is_built(path):
    line = re.search(r"\*\*Builds\*\* (.*)", read(path).cells[0].source).group(1)
    listed, module = set(), None
    for word in re.findall(r"`([\w.]+)`", line):
        if word.startswith("nanogpt."):
            module = word.removeprefix("nanogpt.")
        else:
            listed.add((module, word))
    assert listed == {(PACKAGE[name][0], name) for name in built_in(path)}


@every_notebook
def test_a_notebook_is_stored_as_executed_in_one_go(path):
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        raised = any(output.output_type == "error" for output in cell.outputs)
        assert raised == ("raises-exception" in tags(cell)), f"{path.name}: {cell.source}"
    assert read(path).metadata.kernelspec.name == "python3"


def test_an_entry_of_the_glossary_is_one_sentence():
    """It is looked up, not read: it may grow by entries, and none of them grows long."""
    glossary = next(c.source for c in cells(GLOSSARY, "markdown") if "## Glossary" in c.source)
    for word, meaning in re.findall(r"(?m)^\| \*\*(.+?)\*\* \| (.+) \|$", glossary):
        assert len(meaning.split()) <= 25, f"{word}: {meaning}"


@every_notebook
def test_a_long_class_comes_in_pieces(path):
    for cell in cells(path, "code"):
        for node in ast.parse(cell.source).body:
            if isinstance(node, ast.ClassDef):
                lines = node.end_lineno - node.lineno + 1
                assert lines <= 30, f"{path.name}: {node.name} has {lines} lines in one cell"


def first(path, holds):
    """The index of the first cell that `holds`."""
    return next(i for i, cell in enumerate(read(path).cells) if holds(cell))


@every_notebook
def test_the_story_comes_before_the_imports(path):
    """Two cells of it at least, and the imports and settings are folded away."""
    imports = first(path, lambda cell: "set_num_threads" in cell.source)
    cell = read(path).cells[imports]
    assert "hide-input" in tags(cell) and cell.metadata.jupyter.source_hidden
    before = [c for c in read(path).cells[:imports] if c.cell_type == "markdown"]
    assert len(before) >= 2 and len(before[1].source.split()) >= 20, f"{path.name}: no story"


OURS = {  # what the reader builds before the chapter shows its own
    "01": "forward",
    "02": "naive_cached_step",
    "03": "naive_table",
    "04": "verify_candidates",
    "05": "accept_reject",
    "06": "trim_kv_cache",
    "07": "speculative_generate",
    "08": "check_lossless",
    "09": "expected_tokens",
    "10": "naive_row",
    "11": "common_prefix",
    "12": "by_entropy",
    "13": "naive_race",
    "14": "propose",
    "15": "medusa_loss",
    "16": "tree_mask",
    "17": "accept_tree",
    "18": "accept_typical",
    "19": "read",
    "20": "mtp_loss",
    "21": "naive_jacobi",
    "22": "propose",
    "23": "batch_mask",
    "24": "schedule",
    "25": "slots",
    "26": "likely_outcomes",
    "27": "round_to",
    "28": "texts",
    "29": "p_value",
}


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=NAMES[1:])
def test_the_reader_builds_before_ours_is_shown(path):
    """One *your turn*: a heading with a time and a hint, the stub, its judge; then ours."""
    shown = read(path).cells
    assert turn(path), f"{path.name}: the reader builds nothing"
    stub, check = turn(path)
    heading = shown[stub - 1].source
    assert re.search(r"(?m)^### Your turn · .+ · \d+ min$", heading)
    assert "<summary>Hint</summary>" in heading
    (name,) = definitions(shown[stub].source)
    assert name.startswith("my_") and "raise NotImplementedError" in shown[stub].source
    assert '"""' in shown[stub].source, f"{path.name}: the stub says nothing"
    assert re.search(rf"attempt\(chapter\.judge, {name}\)", shown[check].source)
    ours = OURS[path.stem[:2]]
    built = first(path, lambda c: re.search(rf"(?m)^def {ours}\b", c.source))
    assert built > check, f"{path.name} shows {ours} before the reader's turn"


@every_notebook
def test_nobody_guesses_for_the_reader(path):
    for cell in cells(path, "code"):
        for line in cell.source.splitlines():
            if re.match(r"my_guess\w* *=", line):
                said = re.fullmatch(GUESS, line)
                assert said, f"{path.name}: {line}; write my_guess = None  # such as 0.5"
                ast.literal_eval(said.group(2))


@every_notebook
def test_a_chapter_draws_its_mechanism(path):
    drawn = [
        cell
        for cell in cells(path, "code")
        if re.search(r"\b(diagrams|chapter)\.(?!judge)\w+\(", cell.source)
    ]
    assert any("image/png" in o.get("data", {}) for cell in drawn for o in cell.outputs)


ENGINES = [f"{n:02}" for n in (2, 4, 5, 6, 7, 11, 12, *range(14, 30))]


@pytest.mark.parametrize("path", [p for p in NOTEBOOKS if p.stem[:2] in ENGINES], ids=ENGINES)
def test_real_code_stands_beside_ours(path):
    prose = "\n".join(c.source for c in cells(path, "markdown"))
    (said,) = re.findall(r"(?ms)^\*\*In real code\.\*\*(.*?)(?:^#|\Z)", prose)
    assert said.count("](https://") >= 2, f"{path.name}: engines by name, with links"


@every_notebook
def test_every_source_has_a_link(path):
    sources = cells(path, "markdown")[-1].source.split("**Sources**")[1]
    for source in sources.strip().split(" · "):
        assert re.search(r"\]\(https://[^)]+\)", source), f"{path.name}: no link to {source}"


FORBIDDEN = {
    "a remote image": r"!\[[^\]]*\]\(https?:|<img[^>]+src=[\"']?(?:https?:)?//",
    "an absolute path": r"(?<![\w.:/])/(?:home|Users|root|tmp|work|usr|opt|var|mnt)/|[A-Z]:\\\\",
    "clear_output": r"clear_output",
    "a widget": r"ipywidgets|application/vnd\.jupyter\.widget",
    "a shell escape or magic": r"(?m)^\s*[!%]",
}


@every_notebook
@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_notebook_holds_nothing_that_fails_elsewhere(path, what):
    for cell in read(path).cells:
        shown = output_text(cell) if cell.cell_type == "code" else ""
        in_output = what not in ("a shell escape or magic",)
        for text in [cell.source] + [shown] * in_output:
            found = re.search(FORBIDDEN[what], text)
            assert not found, f"{path.name} holds {what}: {found.group()!r}"


@every_notebook
def test_no_cell_ends_in_a_semicolon(path):
    for cell in cells(path, "code"):
        assert not cell.source.rstrip().endswith(";"), cell.source


@every_notebook
def test_tensors_are_compared_to_the_bounds_of_the_rule(path):
    """1e-4 for float32, 1e-9 and less for float64 (CONTRIBUTING, *Floats*); nothing between.

    A bound between them holds for float32 on some processors only, and is loose for float64.
    """
    for cell in read(path).cells:
        for bound in re.findall(r"atol=(1e-\d+)", cell.source):
            assert not 1e-9 < float(bound) < 1e-4, f"{path.name} compares to {bound}: {cell.source}"


@every_notebook
def test_the_marker_of_compared_outputs_stands_alone(path):
    for cell in cells(path, "code"):
        for line in cell.source.splitlines():
            assert "NBVAL" not in line or line == "# NBVAL_CHECK_OUTPUT", line


NUMBER = r"\d+(?:,\d{3})*\.\d+"


def prose_decimals(source):
    """Decimal numbers of a markdown cell that no source is quoted for, code blocks aside."""
    source = re.sub(r"```.*?```", "", source, flags=re.DOTALL)
    source = re.sub(r"\(https?:[^)]*\)", "", source)
    for sentence in re.split(r"(?<=[.!?])\s|\n", source):
        if "quoted:" in sentence:
            continue
        for found in re.finditer(rf"(?<![\w.])(?<!section )({NUMBER})(?![\w]|\.\d)", sentence):
            yield found.group(1)


@every_notebook
def test_every_decimal_number_in_prose_stands_in_an_output(path):
    outputs = "\n".join(output_text(cell) for cell in cells(path, "code"))
    printed = {float(n.replace(",", "")) for n in re.findall(rf"(?<![\w.]){NUMBER}", outputs)}
    for cell in cells(path, "markdown"):
        for number in prose_decimals(cell.source):
            assert float(number.replace(",", "")) in printed, (
                f"{path.name}: {number} is in no output; print it, or mark it "
                f"(quoted: its source): {cell.source[:200]}"
            )


@every_notebook
def test_terms_in_bold_are_in_the_glossary(path):
    glossary = next(c.source for c in cells(GLOSSARY, "markdown") if "## Glossary" in c.source)
    terms = set(re.findall(r"(?m)^\| \*\*(.+?)\*\* \|", glossary))
    labels = {"Question", "You will", "Needs", "Minutes", "Builds", "Back", "On", "Sources"}
    labels |= {"Three questions, from memory", "Break it.", "In real code."}
    rhythm = {"predict", "build", "look", "check", "break"}
    for cell in cells(path, "markdown"):
        for bold in re.findall(r"\*\*(.+?)\*\*", cell.source):
            known = bold in labels | rhythm or bold in terms or bold.lower() in terms
            known = known or bold.lower() + "s" in terms or bold.lower().rstrip("s") in terms
            assert known, f"{path.name}: {bold!r} is bold, but not in the glossary of 00"


@every_notebook
def test_a_chapter_ends_with_recap_questions_and_sources(path):
    last = cells(path, "markdown")[-1].source
    for part in ("## Recap", "**Three questions, from memory**", "<details>", "**Sources**"):
        assert part in last, f"{path.name}: the last cell lacks {part}"


@pytest.mark.parametrize("path", NOTEBOOKS[1:], ids=NAMES[1:])
def test_a_chapter_has_two_to_four_exercises_with_solutions(path):
    assert 2 <= len(solutions(path)) <= 4
    headings = re.findall(r"(?m)^### Exercise \d · .+ · \d+ min$", prose(path))
    assert len(headings) == len(solutions(path)), "each exercise has a title and a time"


@every_notebook
def test_every_check_is_tried_on_two_right_and_two_wrong_answers(path):
    """And the judge of *your turn*, number 0, on three. They are run by test_notebooks_alone."""
    right, wrong = answers(path)
    numbers = [*range(0 if turn(path) else 1, len(solutions(path)) + 1)]
    assert sorted(right) == sorted(wrong) == numbers
    for number in numbers:
        for given in (right[number], [code for code, _ in wrong[number]]):
            enough = len(set(given)) >= (2 if number else 3)
            assert enough, f"{path.name}, exercise {number}: too few different ones"
        assert all(why for _, why in wrong[number])


@every_notebook
def test_links_between_chapters_lead_somewhere(path):
    for cell in cells(path, "markdown"):
        for link in re.findall(r"\]\((?!https?:|#)([^)]+)\)", cell.source):
            served = link.removeprefix("/files/")  # by JupyterLab, from the project's folder
            place = path.parent / link if served == link else ROOT / served
            assert place.exists(), f"{path.name} links to {link}"


def test_the_map_and_the_readme_list_every_chapter():
    start = "\n".join(c.source for c in cells(GLOSSARY, "markdown"))
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in NAMES[1:]:
        assert f"({name}.ipynb)" in start and f"(notebooks/{name}.ipynb)" in readme


def test_the_readmes_picture_is_the_one_that_chapter_00_shows():
    stored = figures.stored_pictures(GLOSSARY)[0]
    assert stored == figures.README_PICTURE.read_bytes(), "run `python -m nanogpt.show.figures`"
    assert f"({figures.README_PICTURE.relative_to(ROOT).as_posix()})" in (
        (ROOT / "README.md").read_text(encoding="utf-8")
    )


def test_the_readmes_results_are_the_shipped_targets():
    facts = checkpoint.read_header(checkpoint.TARGET)["facts"]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"{facts['val_loss']:.4f}" in readme and f"{facts['seconds'] / 60:.1f} minutes" in readme


@every_notebook
def test_a_cell_shows_one_picture_at_most_and_it_describes_itself(path):
    for cell in cells(path, "code"):
        shown = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        assert len(shown) <= 1, cell.source
        assert all(len(o.metadata["image/png"]["alt"]) > 20 for o in shown), cell.source
