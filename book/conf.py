"""How Sphinx makes a site of the executed notebooks; build.py hands it this."""

project = html_title = "Speculative decoding from scratch"
language = "en"
extensions = ["myst_nb", "sphinx_copybutton"]
nb_execution_mode = "off"  # what was stored is what is shown
exclude_patterns = ["README.md"]  # its parts are in index.md and run.md
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["book.css"]
html_extra_path = ["explorer.html"]
html_copy_source = html_show_sphinx = html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses to a page on disk
