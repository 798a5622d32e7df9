"""What pyproject.toml cannot say: a wheel carries the files of data/ that the package reads.

They are the ones that MANIFEST.in includes, and go to nanogpt/shipped. An editable install finds
them in data/, where they are.
"""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

LINES = Path(__file__).with_name("MANIFEST.in").read_text(encoding="utf-8").splitlines()
SHIPPED = [line.split()[1] for line in LINES if line.startswith("include data/")]


class WithData(build_py):
    """build_py, and then copies of the files."""

    def run(self):
        super().run()
        for name in () if self.editable_mode else SHIPPED:
            copy = Path(self.build_lib, "nanogpt", "shipped", Path(name).relative_to("data"))
            self.mkpath(str(copy.parent))
            self.copy_file(name, str(copy))


setup(cmdclass={"build_py": WithData})
