"""How `make docs` builds the site: Sphinx reads the Markdown pages of this folder and the docstrings of weft.

The site is complete: it loads nothing from other hosts, and its search works when the pages are opened from disk.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

project = "weft"
release = import_module("weft").__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "house_style"]
exclude_patterns = ["_build"]

# Pages: headings get the anchors that GitHub gives them, and ```math blocks are formulas as there.
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
myst_fence_as_directive = ["math"]
html_math_renderer = "mathml"

# Docstrings: `name` is code, as in Markdown, and quotes stay as they are.
smartquotes = False
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"

# Looks: Furo has a light and a dark theme, and all its files are part of the site.
html_theme = "furo"
html_title = "weft"
html_static_path = ["static"]
html_css_files = ["weft.css"]
html_js_files = ["weft.js"]
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
pygments_style = "friendly"
pygments_dark_style = "github-dark"
