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
    attempted,
    cells,
    guesses,
    lost_links,
    output_text,
    outputs,
    printed,
    prose_decimals,
    read,
    solutions,
    tags,
    turn,
)

from nanogpt import checkpoint
from nanogpt.course.needed import statements
from nanogpt.course.notebook import your_guess

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
START = NOTEBOOKS[0]


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
    for owner, method in (name.split(".") for name in but):
        for node in list(getattr(found.get(owner), "body", ())):
            if getattr(node, "name", "") == method:
                alone[f"{owner}.{method}"] = node
                found[owner].body.remove(node)
    for node in found.values():
        if isinstance(node, ast.ClassDef):
            node.body.sort(key=lambda inner: getattr(inner, "name", ""))  # and keeps other lines
    return {name: without_docstrings(node) for name, node in (found | alone).items()}


SHOWN = {path: definitions(*(cell.source for cell in cells(path, "code"))) for path in NOTEBOOKS}
GROWN = [name for shown in SHOWN.values() for name in shown if "." in name]
MODULES = [
    path
    for path in sorted((ROOT / "nanogpt").rglob("*.py"))
    if path.parent.name != "course"  # judges and drawings: a chapter may name its own like theirs
]
PACKAGE = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts): definitions(
        path.read_text(encoding="utf-8"), but=GROWN
    )
    for path in MODULES
}


def imported(source):
    """The names that a source imports from the package's modules, each to stand alone."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("nanogpt."):
            yield from (alias.name for alias in node.names)


STANDING_ALONE = {
    name
    for sources in (
        [path.read_text(encoding="utf-8") for path in MODULES],
        [cell.source for path in NOTEBOOKS for cell in cells(path, "code")],
    )
    for source in sources
    for name in imported(source)
}


def built_in(path):
    """(module, name) of all that the opening lists under **Builds**."""
    line = re.search(r"\*\*Builds\*\* (.*)", read(path).cells[0].source).group(1)
    listed, module = [], None
    for word in re.findall(r"`([\w.]+)`", line):
        if word.startswith("nanogpt."):
            module = word
        else:
            listed.append((module, word))
    return listed


def test_the_notebooks_are_numbered_without_gaps():
    assert [int(name[:2]) for name in NAMES] == list(range(len(NAMES)))
    assert all(re.fullmatch(r"\d\d_[a-z0-9_]+", name) for name in NAMES)


@every_notebook
def test_what_a_notebook_builds_is_the_packages_code(path):
    for module, name in built_in(path):
        assert name in SHOWN[path], f"{path.name} lists {name}, but does not build it"
        assert name in PACKAGE[module], f"{path.name} lists {name}; it is not in {module}"
        same = SHOWN[path][name] == PACKAGE[module][name]
        assert same, f"{path.name} builds a different {name} from {module}'s"


@every_notebook
def test_no_copy_of_the_packages_code_goes_unlisted(path):
    """So none can drift. A helper may have the name of one that the package uses in its module.

    It may not have a name that the package or a chapter imports to stand alone, such as
    `accept_reject`, nor that of a method that it adds to a class: readers would take it for ours.
    """
    listed = {name for _, name in built_in(path)}
    for name, tree in SHOWN[path].items():
        for module in (m for m, held in PACKAGE.items() if name in held and name not in listed):
            taken = name in STANDING_ALONE or "." in name
            assert not taken, f"{path.name}: {name} is {module}'s name: list it, or rename it"
            same = tree == PACKAGE[module][name]
            assert not same, f"{path.name}: {name} is {module}'s code: list it under **Builds**"


def test_no_function_is_built_twice():
    every = [built for path in NOTEBOOKS for built in built_in(path)]
    assert len(every) == len(set(every)), {built for built in every if every.count(built) > 1}


@every_notebook
def test_a_notebook_is_stored_as_executed_in_one_go(path):
    code = cells(path, "code")
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    for cell in code:
        raised = any(output.output_type == "error" for output in cell.outputs)
        assert raised == ("raises-exception" in tags(cell)), f"{path.name}: {cell.source}"
    lab = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
    assert read(path).metadata.kernelspec == lab  # or reading alone changes the file there


@every_notebook
def test_nobody_guesses_for_the_reader(path):
    for cell in cells(path, "code"):
        for line in cell.source.splitlines():
            if re.match(r"my_guess\w* *=", line):
                said = re.fullmatch(GUESS, line)
                assert said, f"{path.name}: {line}; write my_guess = None  # such as 0.5"
                ast.literal_eval(said.group(2))


def uses_of_a_guess(path):
    """(the value that the chapter suggests, what takes it, the format that it is said in)."""
    suggested = {}
    for cell in cells(path, "code"):
        for name, value in re.findall(r"(?m)^(my_guess\w*) = None  # such as (.+)$", cell.source):
            suggested[name] = ast.literal_eval(value)
        calls = [node for node in ast.walk(ast.parse(cell.source)) if isinstance(node, ast.Call)]
        for call in calls:
            for given in [*call.args, *(keyword.value for keyword in call.keywords)]:
                if isinstance(given, ast.Name) and given.id in suggested:
                    taker = ast.unparse(call.func)
                    form = call.args[1].value if taker == "your_guess" and call.args[1:] else ""
                    yield suggested[given.id], taker, form


@every_notebook
def test_a_guess_of_the_suggested_kind_is_taken(path):
    """Said in its format; and a number wherever a figure draws it, as all of them draw numbers."""
    for guess, taker, form in uses_of_a_guess(path):
        if taker == "your_guess":
            assert your_guess(guess, form).startswith("your guess: ")
        else:
            assert isinstance(guess, int | float), f"{path.name}: {taker} draws {guess!r}"


@every_notebook
def test_a_solution_changes_nothing_of_the_chapter(path):
    """What it names anew, the chapter does not read: neither the stub's names nor imports."""
    exercises = {i for _, stub, check, _ in attempted(path) for i in (stub, check)}
    code = {i: c.source for i, c in enumerate(read(path).cells) if c.cell_type == "code"}
    chapter = [own for own in statements(code) if own.cell not in exercises]
    for number, stub, _, solution in attempted(path):
        named, anew = (
            {
                name
                for own in statements({stub: source})
                for name in own.binds | own.changes
                if not isinstance(own.node, ast.Import | ast.ImportFrom)
            }
            for source in (code[stub], solution)
        )
        for own in chapter:
            read_here = (anew - named) & (own.now | own.later)
            assert not read_here, f"{path.name}: exercise {number} changes {read_here}"


@every_notebook
def test_what_is_stored_waits_for_the_reader(path):
    """Every check, and every place where a guess is compared, was executed before anyone tried."""
    for _, _, check, _ in attempted(path):
        assert output_text(read(path).cells[check]).strip() == "not attempted yet"
    assert outputs(path).count("you did not guess") >= guesses(path)


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
    "a semicolon at its end": r";\s*\Z",
}
IN_SOURCES = ("a shell escape or magic", "a semicolon at its end")  # of code cells only


@every_notebook
def test_a_notebook_holds_nothing_that_fails_elsewhere(path):
    first = re.search("(?m)^from nanogpt.*", "\n".join(c.source for c in cells(path, "code")))
    assert first.group().endswith('  # pip install -e ".[series]"'), "a traceback tells what to do"
    for cell in read(path).cells:
        code = cell.cell_type == "code"
        for what, pattern in FORBIDDEN.items():
            if what in IN_SOURCES:
                texts = [cell.source] * code
            else:
                texts = [cell.source, output_text(cell) if code else ""]
            for text in texts:
                found = re.search(pattern, text)
                assert not found, f"{path.name} holds {what}: {found.group()!r}"


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


@every_notebook
def test_every_decimal_number_in_prose_stands_in_an_output(path):
    shown = printed(path)
    for cell in cells(path, "markdown"):
        for number in prose_decimals(cell.source):
            assert float(number.replace(",", "")) in shown, (
                f"{path.name}: {number} is in no output; print it, or mark it "
                f"(quoted: its source): {cell.source[:200]}"
            )


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
def test_links_lead_somewhere_from_where_the_chapter_lies(path):
    """Relative ones: JupyterLab, an editor and a code host all follow them, and no other kind."""
    for cell in cells(path, "markdown"):
        assert "](/" not in cell.source, f"{path.name}: make the link relative: {cell.source}"
        lost = [*lost_links(cell.source, path)]
        assert not lost, f"{path.name} links to {lost}"


def test_the_map_and_the_readme_list_every_chapter():
    [drawn] = (c.source for c in cells(START, "code") if "map_of_the_round" in c.source)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for name in NAMES[1:]:
        assert re.search(rf"\b{name[:2]}(,|  )", drawn.replace("\\n", " ")), name
        assert f"(notebooks/{name}.ipynb)" in readme


def shorter_ways():
    """{name: (what to read, what to take on trust)} of the map's ways through the series."""
    start = "\n".join(c.source for c in cells(START, "markdown"))
    ways, trust = start.split("on trust</summary>")
    said = r"(?m)^- \*(An?\b[^*.]+)\*: (.+)\.$"
    return {
        name: (what, dict(re.findall(said, trust))[name]) for name, what in re.findall(said, ways)
    }


def test_the_map_and_the_readme_offer_the_same_ways():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = dict(re.findall(r"(?m)^\| (an? .+?) \| (.*\b\d\d\b.*) \| \d+ h \|$", readme))
    offered = {name[0].lower() + name[1:]: what for name, (what, _) in shorter_ways().items()}
    assert len(offered) == 4 and offered == rows


def numbers(text):
    """The chapters in "chapters 00, 03 to 07" or in "[04 · Verification](…), [05 · …](…)"."""
    spans = re.findall(r"\b(\d\d)\b(?:\S* to \[?(\d\d)\b)?", re.sub(r"\(\S+?\)", "", text))
    return {n for first, last in spans for n in range(int(first), int(last or first) + 1)}


@pytest.mark.parametrize("name", shorter_ways())
def test_a_shorter_way_says_what_its_chapters_need_of_those_that_it_skips(name):
    read, trust = shorter_ways()[name]
    for number in numbers(read):
        needs = re.search(r"\*\*Needs\*\* (.*)", cells(NOTEBOOKS[number], "markdown")[0].source)
        links = "".join(re.findall(r"\[\d\d[^\]]*\]\(\S+\)(?: to (?=\[))?", needs.group(1)))
        told = set(map(int, re.findall(r"\b\d\d\b", trust)))
        assert numbers(links) <= numbers(read) | told, f"{name}: chapter {number} needs {links}"


def test_the_measured_results_are_the_shipped_targets_and_the_readmes_are_among_them():
    facts = checkpoint.read_header(checkpoint.TARGET)["facts"]
    measured = (ROOT / "book" / "measured.md").read_text(encoding="utf-8")
    assert f"{facts['val_loss']:.4f}" in measured
    assert f"{facts['seconds'] / 60:.1f} minutes" in measured
    told = re.findall(r"[\d.]+× \(.+?\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(told) == 12 and all(speed in measured for speed in told)


@every_notebook
def test_a_cell_shows_one_picture_at_most_and_it_describes_itself(path):
    for cell in cells(path, "code"):
        shown = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        assert len(shown) <= 1, cell.source
        for alt in (o.metadata["image/png"]["alt"] for o in shown):
            assert 20 < len(alt) <= 300 and not re.search(r"\bnan\b", alt), alt
            assert shown[0].data["text/plain"] == f"<Picture: {alt}>"
