"""Settings of the documentation site: `make docs` builds it into build/site, with warnings as errors."""

project = "Regatta"
author = "The Regatta authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
exclude_patterns = ["build"]
html_theme = "furo"
html_title = "Regatta"
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
MADE_BY_FUNCTIONS = ("regatta.Cluster", "regatta.Dataset", "regatta.Repo", "regatta.Run")  # not by their constructors


def setup(app):
    app.connect("autodoc-process-signature", lambda *found: ("", "") if found[2] in MADE_BY_FUNCTIONS else None)
