"""The site, which ``make docs`` builds into ``out/site``, without a network."""

import os
import sys
from importlib.metadata import version as installed
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext")]

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads of the libraries wait without working

project = "knothole"
author = "the knothole developers"
copyright = author
release = version = installed("knothole")

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "myst_parser",
    "sphinx_gallery.gen_gallery",
    "mathml",
    "public_names",
]
exclude_patterns = ["results/*.md", "gallery/sg_execution_times.rst", "sg_execution_times.rst"]
templates_path = ["_templates"]
nitpicky = True
default_role = "code"

# ---- pages in Markdown, which are read on the repository's own pages too ------------------------

myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_math_renderer = "mathml"

# ---- the API, from docstrings -------------------------------------------------------------------

autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
autosummary_context = {
    # What users of a density call; the rest of its methods are for its engine.
    "of_densities": [
        "fit", "score_samples", "score", "sample", "complete", "log_mass", "save", "load",
        "to_circuit", "to_json", "from_json",
    ],
}  # fmt: skip

# ---- the gallery: every example is run ----------------------------------------------------------

sphinx_gallery_conf = {
    "examples_dirs": str(HERE.parent / "examples"),
    "gallery_dirs": "gallery",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_memory": False,
    "write_computation_times": False,
    "min_reported_time": 1e9,
    "capture_repr": ("_repr_html_",),
    "reset_modules": ("matplotlib",),
}
suppress_warnings = ["config.cache"]

# ---- how it looks: nothing is fetched from elsewhere --------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "knothole"
html_favicon = "_static/favicon.svg"
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
# Pages without others below them: an empty sidebar would only make code narrower.
_ALONE = ("index", "install", "tutorial", "alternatives", "densities", "missing-values", "method")
html_sidebars = {page: [] for page in _ALONE}
html_theme_options = {
    "logo": {"text": "knothole"},
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 7,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": False,
}
