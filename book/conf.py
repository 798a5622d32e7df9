"""How Sphinx makes a site and an EPUB of the executed notebooks; build.py hands it this."""

import sys
from importlib.metadata import version as version_of
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))  # forms.py

project = html_title = epub_title = "Speculative decoding from scratch"
author = "The authors of Speculative decoding from scratch"
language = "en"
version = version_of("nanogpt")
# A block that scrolls can be reached by keyboard.
SCROLLED = """addEventListener("load", () => {
  for (const block of document.querySelectorAll("pre")) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
  }
});"""
extensions = ["myst_nb", "sphinx_copybutton", "sphinx.ext.autodoc", "forms"]
copybutton_selector = "div.highlight pre:not(.cell_output pre)"  # nobody copies an output
nb_execution_mode = "off"  # what was stored is what is shown
nb_render_markdown_format = "myst"  # an output may hold a table
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
exclude_patterns = ["README.md"]  # its parts are in index.md

default_role = "literal"  # `x` in a docstring, as in Markdown
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_type_aliases = {name: name for name in ("KV", "KVCache")}  # as the source has them
add_module_names = html_domain_indices = False
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88

html_theme = "furo"
html_math_renderer = "mathml"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_js_files = [(None, {"body": SCROLLED})]
html_extra_path = [page.name for page in HERE.glob("*.html")]  # pages to play with stand alone
html_copy_source = html_show_sphinx = html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses to a page on disk

epub_basename = "speculative-decoding-from-scratch"
epub_description = "Build speculative decoding on a small GPT, prove it lossless, and measure it."
myst_html_meta = {"description": epub_description}
epub_copyright = "MIT licence"
epub_identifier = epub_uid = "speculative-decoding-from-scratch"  # EPUB wants them equal
epub_contributor = author
epub_show_urls = "no"
epub_use_index = False
epub_tocdepth = 2
epub_tocscope = "includehidden"
epub_css_files = ["reader.css"]
epub_exclude_files = [*html_extra_path, "see.xhtml"]  # nothing moves on an e-reader
epub_exclude_files += ["_static/book.css", "_static/print.css"]
