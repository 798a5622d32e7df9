"""Films the live page: two decoders on one text, for README. `python book/film.py`.

At temperature 0 the target has one text to write, so both decoders write the same. A frame is one
pass of each. Needs Chromium and what `pip install -e ".[browser]"` brings.
"""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

BOOK = Path(__file__).resolve().parent
PAGE, FILM = BOOK / "live.html", BOOK.parent / "notebooks" / "pictures" / "race.gif"
SIZE, COLOURS = (640, 900), 48
STYLE = """
.texts { display: block !important } .text { height: 15rem !important }
.plain { height: 9rem !important }
"""  # one above the other
AFTER = 3  # when the quick one is done, a frame shows as many passes of the other


def frames(page) -> list[Image.Image]:
    """The two texts, pass by pass, until both are there."""
    page.goto(PAGE.as_uri())
    page.wait_for_function("window.live && live.ready")
    page.add_style_tag(content=STYLE)
    page.evaluate("player.go(0, 0)")
    made, section = [], page.locator("#stage > .texts")
    rounds = page.evaluate("player.state.rounds")
    left = True
    while left:
        made.append(Image.open(io.BytesIO(section.screenshot())))
        for _ in range(1 if len(made) <= rounds else AFTER):
            left = page.evaluate("player.racePass()") and left
    return [*made, Image.open(io.BytesIO(section.screenshot()))]


def main() -> None:
    """Film the page and write the picture."""
    with sync_playwright() as playwright:
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        shots = frames(browser.new_page(viewport={"width": SIZE[0], "height": SIZE[1]}))
    size = [max(shot.size[side] for shot in shots) for side in (0, 1)]
    palette = shots[-1].convert("RGB").quantize(COLOURS)
    palette.putpalette([255 if part >= 250 else part for part in palette.getpalette()])  # white
    film = []
    for shot in shots:
        whole = Image.new("RGB", size, "white")
        whole.paste(shot, (0, 0))
        film.append(whole.quantize(palette=palette, dither=Image.Dither.NONE))
    times = [200] * (len(film) - 1) + [3000]
    film[0].save(FILM, save_all=True, append_images=film[1:], duration=times, loop=0, optimize=True)
    print(f"{FILM}: {len(film)} frames, {FILM.stat().st_size // 1000} kB")


if __name__ == "__main__":
    main()
