"""The page to print: the articles of all pages of the site, one after another.

Each keeps its headings, and becomes a part of one page: its ids get its own name in front, so that
"recap" of one chapter is not that of another, and links between pages become links within this one.
What is folded is unfolded, and the pages to play with, which paper cannot show, lose their links.
"""

import posixpath
import re
from pathlib import Path

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Speculative decoding from scratch, to print</title>
<link rel="stylesheet" href="_static/pygments.css">
<link rel="stylesheet" href="_static/print.css">
</head>
<body data-theme="light">
"""
LEFT_OUT = {"index.html", "see.html"}  # the first says where to click, the second is for playing


def contents(site: Path) -> list[tuple[str, str, str]]:
    """(part, page, title) of the pages in the site's order; `part` is "" but where one begins."""
    index = (site / "index.html").read_text(encoding="utf-8")
    tree = index[index.index('<div class="sidebar-tree">') : index.index("</aside>")]
    found, part = [], ""
    for caption, page, title in re.findall(
        r'caption-text">([^<]+)<|reference internal" href="([^"]+)">([^<]+)<', tree
    ):
        if caption:
            part = caption
        elif page not in LEFT_OUT:
            found.append((part, page, title))
            part = ""
    return found


def name(page: str) -> str:
    """What a page is called in the ids of the whole: notebooks/05_x.html is 05_x."""
    return Path(page).stem


def article(site: Path, page: str, pages: set[str]) -> str:
    """A page's article as a part of the whole, which holds `pages`."""
    html = (site / page).read_text(encoding="utf-8")
    html = re.search(r"<article[^>]*>(.+?)</article>", html, re.DOTALL)[1]
    html = re.sub(r'<a class="headerlink".*?</a>', "", html)
    html = html.replace("<details", "<details open").replace('src="../_images', 'src="_images')
    html = re.sub(r'(?<= )id="([^"]+)"', rf'id="{name(page)}/\1"', html)

    def turned(link: re.Match) -> str:
        """A link, turned to where its page stands now; its text alone where it stands nowhere."""
        href, text = link[2], link[4]
        if re.match("[a-z]+:", href):
            return link[0]
        file, _, anchor = href.partition("#")
        to = posixpath.normpath(posixpath.join(posixpath.dirname(page), file)) if file else page
        if to not in pages:
            return text
        return f'{link[1]}#{name(to)}{"/" * bool(anchor)}{anchor}"{link[3]}{text}</a>'

    html = re.sub(r'(<a [^>]*?href=")([^"]+)"([^>]*>)(.*?)</a>', turned, html, flags=re.DOTALL)
    return f'<article id="{name(page)}">{html}</article>\n'


def printable(site: Path) -> str:
    """All pages of a site on one: a title, the contents, and then each on paper of its own."""
    index = (site / "index.html").read_text(encoding="utf-8")
    title, about = re.search(r"<h1>(.+?)<a.+?</h1>\s*(<p>.+?</p>)", index, re.DOTALL).groups()
    listed, lines = contents(site), []
    for part, page, chapter in listed:
        lines += [f'<p class="part">{part}</p>'] * bool(part)
        lines.append(f'<p><a href="#{name(page)}">{chapter}</a></p>')
    front = f'<header><p class="title">{title}</p>{about}</header>\n<nav>\n' + "\n".join(lines)
    pages = {page for _, page, _ in listed}
    articles = [article(site, page, pages) for _, page, _ in listed]
    return HEAD + front + "\n</nav>\n" + "".join(articles) + "</body>\n</html>\n"
