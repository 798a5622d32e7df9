"""The chapters in a real JupyterLab: readable as stored, and all cells run without a fault."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from series import NOTEBOOKS, ROOT, cells, tags

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
RUN = os.environ.get("CHAPTERS", "").split()  # such as "00 05": the others are only opened
SHOW_ALL = {"windowingMode": "none"}  # JupyterLab draws only cells in sight otherwise
PICTURES = """
images => Promise.all(images.map(async image => {
    await image.decode();
    const canvas = document.createElement("canvas");
    [canvas.width, canvas.height] = [image.naturalWidth, image.naturalHeight];
    const context = canvas.getContext("2d");
    context.drawImage(image, 0, 0);
    const { data } = context.getImageData(0, 0, canvas.width, canvas.height);
    const pixels = new Uint32Array(data.buffer);
    return {
        width: image.naturalWidth,
        ink: pixels.filter(pixel => pixel !== 0xffffffff).length / pixels.length,
    };
}))
"""


@dataclass
class Lab:
    """A running JupyterLab on a copy of the notebooks."""

    url: str
    token: str

    def ask(self, method: str, path: str):
        headers = {"Authorization": f"token {self.token}"}
        request = urllib.request.Request(self.url + path, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read() or "null")

    def close_kernels(self):
        for session in self.ask("GET", "api/sessions"):
            self.ask("DELETE", f"api/sessions/{session['id']}")


def wait_for(what: str, happened: Callable[[], bool], seconds: float):
    """Return once it has happened; fail with `what` if it does not in so many seconds."""
    end = time.monotonic() + seconds
    while not (answer := happened()):
        assert time.monotonic() < end, f"{what}: not in {seconds:.0f} s"
        time.sleep(0.2)
    return answer


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lab")
    for path in [*NOTEBOOKS, *(ROOT / "book").glob("*.html")]:
        copy = folder / path.relative_to(ROOT)  # signed by nobody: what a reader has downloaded
        copy.parent.mkdir(exist_ok=True)
        copy.write_bytes(path.read_bytes())
    settings = folder / ".lab" / "settings" / "@jupyterlab" / "notebook-extension"
    settings.mkdir(parents=True)
    (settings / "tracker.jupyterlab-settings").write_text(json.dumps(SHOW_ALL))
    places = {
        "JUPYTER_CONFIG_DIR": "config",
        "JUPYTER_DATA_DIR": "data",
        "JUPYTER_RUNTIME_DIR": "runtime",
        "JUPYTERLAB_SETTINGS_DIR": "settings",
        "JUPYTERLAB_WORKSPACES_DIR": "workspaces",
        "IPYTHONDIR": "ipython",
    }
    environment = {name: str(folder / ".lab" / place) for name, place in places.items()}
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--port=0", "--allow-root"]
    command += ["--expose-app-in-browser"]
    log = (folder / "log.txt").open("w")
    server = subprocess.Popen(
        [*command, f"--ServerApp.root_dir={folder}"],
        env=os.environ | environment,
        stdout=log,
        stderr=log,
    )
    try:
        runtime = folder / ".lab" / "runtime"
        found = lambda: [p for p in runtime.glob("jpserver-*.json") if p.stat().st_size]  # noqa: E731
        (place,) = wait_for("JupyterLab's start", found, 60)
        info = json.loads(place.read_text())
        yield Lab(info["url"], info["token"])
    finally:
        server.terminate()
        server.wait(30)
        log.close()


@pytest.fixture
def open_notebook(lab, open_page):
    """open_notebook(path): its page in a fresh workspace, with an idle kernel."""

    opened = []

    def open_one(path: Path):
        page = open_page((1280, 1000))
        opened.append(page)
        fresh = f"{path.stem}-{time.monotonic_ns()}"  # what another test opened is not there
        page.goto(f"{lab.url}lab/workspaces/{fresh}/tree/notebooks/{path.name}?token={lab.token}")
        return ready(page, path)

    yield open_one
    for page in opened:
        page.context.close()  # before its kernel is gone
    lab.close_kernels()


def ready(page, path: Path):
    """The page, once all code cells are there and the kernel is idle."""
    indicator = page.locator(".jp-Notebook-ExecutionIndicator")
    indicator.and_(page.locator("[data-status=idle]")).wait_for(timeout=60_000)
    page.locator(".jp-CodeCell").nth(len(cells(path, "code")) - 1).wait_for(state="attached")
    return page


@pytest.fixture(scope="module")
def desk(lab, module_page):
    page = module_page((1280, 1000))
    page.goto(f"{lab.url}lab?token={lab.token}")
    page.wait_for_function("window.jupyterapp")
    page.evaluate("jupyterapp.restored.then(() => null)")
    return page


@pytest.fixture
def open_next(lab, desk):
    """The same in the one window of all chapters that are only read: JupyterLab is loaded once."""

    def open_one(path: Path):
        js = "path => jupyterapp.commands.execute('docmanager:open', { path }).then(() => null)"
        desk.evaluate(js, f"notebooks/{path.name}")
        kernel = "jupyterapp.shell.currentWidget.sessionContext.session?.kernel"
        desk.wait_for_function(f"{kernel}?.connectionStatus === 'connected'")
        return ready(desk, path)

    yield open_one
    try:
        desk.faults.none()
    finally:
        desk.evaluate("[...jupyterapp.shell.widgets('main')].forEach(widget => widget.dispose())")
        lab.close_kernels()
        desk.faults.clear()  # of what this cuts off, some says so


def stored_outputs(path: Path, mime_type: str) -> list:
    outputs = [output for cell in cells(path, "code") for output in cell.outputs]
    return [o.data[mime_type] for o in outputs if mime_type in o.get("data", {})]


def assert_pictures_and_traces_are_readable(page, path: Path):
    """As many as are stored, none of them blank; traces with their marks and, beside, colours."""
    images = page.locator(".jp-OutputArea-output img")
    assert images.count() == len(stored_outputs(path, "image/png"))
    pictures = images.evaluate_all(PICTURES)
    assert all(p["width"] >= 400 and 0.01 < p["ink"] < 0.9 for p in pictures), pictures
    traces = page.locator(".jp-OutputArea-output.jp-RenderedHTMLCommon span[title^=accepted]")
    traces = traces.filter(has_text="✓")
    html = [stored for stored in stored_outputs(path, "text/html") if "✓" in stored]
    assert (traces.count() > 0) == (len(html) > 0)
    if html:
        border = traces.first.evaluate("mark => getComputedStyle(mark).borderTopColor")
        assert border == "rgb(0, 158, 115)", border  # figures.ACCEPTED


def prompts(page) -> list[str]:
    return page.locator(".jp-CodeCell .jp-InputArea-prompt").all_inner_texts()


def numbered(path: Path) -> list[str]:
    """The prompts of an executed chapter; a folded cell shows none."""
    code = enumerate(cells(path, "code"), start=1)
    shown = [n for n, cell in code if not cell.metadata.get("jupyter", {}).get("source_hidden")]
    return [f"[{n}]:" for n in shown]


@every_notebook
def test_a_chapter_reads_as_it_is_stored_and_all_its_cells_run(open_notebook, open_next, path):
    runs = not RUN or path.stem[:2] in RUN
    code, page = cells(path, "code"), (open_notebook if runs else open_next)(path)
    assert_pictures_and_traces_are_readable(page, path)
    assert prompts(page) == numbered(path)
    if not runs:
        return
    page.get_by_role("menuitem", name="Edit", exact=True).click()
    page.get_by_role("menuitem", name="Clear Outputs of All Cells", exact=True).click()
    wait_for("empty prompts", lambda: set(prompts(page)) == {"[ ]:"}, 60)
    assert page.locator(".jp-OutputArea-output").count() == 0
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    wait_for("every cell numbered", lambda: prompts(page) == numbered(path), 180)
    failed = page.locator(".jp-CodeCell").filter(  # an error has a traceback, as plain text
        has=page.locator(".jp-OutputArea-output", has_text="Traceback (most recent call last)")
    )
    assert failed.count() == sum("raises-exception" in tags(cell) for cell in code)
    assert_pictures_and_traces_are_readable(page, path)


PAGES = {"Accept or reject, by hand": "explorer", "Watch a generation": "live"}
LINKS = [
    (path, name)
    for path in NOTEBOOKS
    for name in PAGES
    if any(f"[{name}]" in cell.source for cell in cells(path, "markdown"))
]


SWITCHED_OFF = "Blocked script execution"  # by the viewer: the page is not trusted yet


@pytest.mark.parametrize(("path", "name"), LINKS, ids=lambda x: getattr(x, "stem", x))
def test_a_page_to_play_with_opens_and_works_once_trusted(open_notebook, path, name):
    page = open_notebook(path)
    page.locator(".jp-RenderedMarkdown a", has_text=name).first.click()
    frame = page.frame_locator(".jp-HTMLViewer iframe")
    advice = frame.locator("noscript p", has_text="press Trust HTML, above")
    advice.wait_for()
    page.get_by_role("button", name="Trust HTML").click()
    advice.wait_for(state="hidden")
    page.faults[:] = [fault for fault in page.faults if SWITCHED_OFF not in fault]
    assert frame.locator("h1").inner_text() == name
    if PAGES[name] == "explorer":
        frame.get_by_role("button", name="Throw 1,000").first.click()
        assert play(page).evaluate("explorer.state.throws") == 1000
    else:
        frame.locator("#slow summary").click()
        for _ in range(3):
            frame.locator("#slow-next").click()
        assert frame.locator("#slow-says").inner_text().startswith("“a” is rejected ✗")
    with page.context.expect_page() as opened:
        frame.get_by_role("link", name="05 · Rejection sampling").click()
    asked = re.compile(r"/lab/.*tree/notebooks/05_rejection_sampling\.ipynb")
    opened.value.wait_for_url(asked, wait_until="commit")


def play(page):
    """The frame in which JupyterLab shows a page to play with."""
    return page.locator(".jp-HTMLViewer iframe").element_handle().content_frame()


def test_both_pages_are_linked_where_the_series_promises_them():
    linked = {(path.stem[:2], PAGES[name]) for path, name in LINKS}
    assert linked >= {("00", "explorer"), ("00", "live"), ("05", "explorer"), ("07", "live")}
