"""What the site and the EPUB need besides Sphinx's own.

A formula becomes MathML, which browsers and e-readers set without a script. What needs a script or
a click is left out of the EPUB.
"""

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from myst_nb.sphinx_ import HideCodeCellNode
from sphinx.application import Sphinx
from sphinx.builders.epub3 import Epub3Builder


def as_mathml(formula: str) -> str:
    """LaTeX as MathML. (A letter keeps its hat by itself: docutils puts an index below the hat.)"""
    hatted = re.sub(r"\\hat (\w)", "\\\\text{\\1\u0302}", formula)
    return tex2mathml(hatted.replace("…", r"\ldots "))


def visit_math(writer, node: nodes.math) -> None:
    """Write a formula in the text."""
    writer.body.append(as_mathml(node.astext()))
    raise nodes.SkipNode


def visit_displayed_math(writer, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, which scrolls where it is too wide."""
    formula = as_mathml(node.astext()).replace("<math ", '<math display="block" ', 1)
    writer.body.append(f'<div class="math">{formula}</div>\n')
    raise nodes.SkipNode


def without_clicks(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """In the EPUB, show code that is folded on the site, and leave out the pages to play with."""
    if app.builder.name != "epub":
        return
    for folded in list(doctree.findall(HideCodeCellNode)):
        folded.replace_self(folded.children)
    for raw in list(doctree.findall(nodes.raw)):
        if re.match(r"</?a\b", raw.astext()):
            raw.parent.remove(raw)
    for section in list(doctree.findall(nodes.section)):
        if docname == "index" and "see-it-first" in section["ids"]:
            section.parent.remove(section)


def by_alias(app: Sphinx, what, name, thing, options, *signature: str) -> list[str]:
    """A signature's two parts with KVCache as the source has it, also in `KVCache | None`."""
    return [part and re.sub(r"TypeAliasForwardRef\('(\w+)'\)", r"\1", part) for part in signature]


def without_late_styles(app: Sphinx, page, template, context: dict, doctree) -> None:
    """Name no style sheet in the EPUB that is written only after the EPUB is packed."""
    if app.builder.name == "epub":
        sheets = [sheet for sheet in context["css_files"] if "mystnb" not in sheet.filename]
        context["css_files"] = sheets


class Epub(Epub3Builder):
    """Sphinx's EPUB. EPUB also wants its list of files to say which of them hold formulas."""

    def build_content(self) -> None:
        super().build_content()
        contents = self.outdir / "content.opf"
        text = contents.read_text(encoding="utf-8")
        for name in self.files:
            file = self.outdir / name
            if file.suffix == ".xhtml" and "<math" in file.read_text(encoding="utf-8"):
                text = text.replace(f'href="{name}"', f'href="{name}" properties="mathml"')
        contents.write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict:
    """Hand all of it to Sphinx."""
    app.add_html_math_renderer(
        "mathml", inline_renderers=(visit_math, None), block_renderers=(visit_displayed_math, None)
    )
    app.connect("autodoc-process-signature", by_alias)
    app.connect("doctree-resolved", without_clicks, priority=900)
    app.connect("html-page-context", without_late_styles, priority=900)
    app.add_builder(Epub, override=True)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
