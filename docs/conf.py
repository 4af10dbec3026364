"""The documentation site: `make docs` builds it into out/site; it opens from disk and needs no network."""

import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # for docs.rules_page
sys.path.insert(0, str(Path(__file__).parent))

from meancap import __version__

project = "meancap"
author = "the meancap authors"
project_copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "meancap_site"]
exclude_patterns = ["benchmark/*"]
html_theme = "furo"
html_title = f"meancap {__version__}"
# Brackets of formulas stretch only in a font made for that; ziamath brings one under the Open Font License.
_FONT = Path(find_spec("ziamath").origin).parent / "fonts" / "STIXTwoMath-Regular.ttf"
html_static_path = ["_static", str(_FONT)]
html_css_files = ["meancap.css"]
html_show_sphinx = False
html_show_sourcelink = False
html_copy_source = False
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
highlight_language = "none"  # docstrings are words and formulas; code on pages says what it is
autodoc_typehints = "signature"
autodoc_inherit_docstrings = False
autodoc_mock_imports = ["comfy", "comfy_api", "folder_paths"]
smartquotes = False
suppress_warnings = ["ref.python"]  # annotations that two modules could mean; links on pages still count
toc_object_entries = False
python_display_short_literal_types = True
