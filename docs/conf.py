"""Builds the documentation site with Sphinx: `make docs`. The pages are Markdown and can be read without it."""

import re
from pathlib import Path

SOURCE = (Path(__file__).parents[1] / "delaytasks" / "__init__.py").read_text()

project = "delaytasks"
author = "the delaytasks contributors"
release = version = re.findall(r'__version__ = "(.+)"', SOURCE)[0]
extensions = ["myst_parser", "sphinxcontrib.mermaid"]
myst_heading_anchors = 3  # links to headings work as on GitHub
myst_fence_as_directive = ["mermaid"]
html_theme = "furo"
html_title = f"delaytasks {release}"
