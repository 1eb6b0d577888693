"""Settings of the documentation, which ``make docs`` builds."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.resources
import logging
import os
import sys
import warnings
from pathlib import Path

from jupyter_cache import get_cache

from pymc_mcoem.datasets import load_growth
from pymc_mcoem.datasets.r_files import DATA_VARIABLE

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

project = "pymc_mcoem"
author = "The pymc_mcoem authors"
copyright = "the pymc_mcoem authors, Apache-2.0"
release = importlib.metadata.version(project)

extensions = [
    "myst_nb",
    "notebook_pages",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinxcontrib.bibtex",
]
exclude_patterns = ["_build", "**/.ipynb_checkpoints"]
templates_path = ["_templates"]
default_role = "autolink"
toc_object_entries = False

# Notebooks: text in the repository, executed when the site is built. What has been executed is
# kept under a digest of the package's own code, so that no output outlives the code it came from.
myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "cache"
nb_execution_timeout = 600
nb_execution_raise_on_error = True
nb_merge_streams = True
nb_execution_show_tb = True
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # from another host


def _digest_of_the_package() -> str:
    code = hashlib.sha256()
    for path in sorted((HERE.parent / "pymc_mcoem").rglob("*.py")):
        code.update(path.read_bytes())
    return code.hexdigest()[:16]


nb_execution_cache_path = str(HERE / "_build" / "executed" / _digest_of_the_package())

# Its database is made before Sphinx reads pages in several processes: two that make it at the same
# time fail, the second with "table settings already exists".
get_cache(nb_execution_cache_path).list_project_records()


def _notebooks_without_data() -> dict[str, str]:
    """Tell which pages cannot run here: heights of the growth study are not in the repository."""
    beside = HERE.parents[1] / "shared" / "data"
    if DATA_VARIABLE not in os.environ and beside.is_dir():
        os.environ[DATA_VARIABLE] = str(beside)
    try:
        load_growth()
    except (OSError, ModuleNotFoundError) as error:
        pages = ["notebooks/growth_curves", "notebooks/paper_figures"]
        print(f"{' and '.join(pages)} are shown without their results: {error}")
        reason = (
            "the heights of the growth study are not in the repository, and could not be fetched "
            "when this site was built; the notebook fetches them where you are, if the package "
            "rdata is installed"
        )
        return dict.fromkeys(pages, reason)
    return {}


notebooks_without_results = _notebooks_without_data()
nb_execution_excludepatterns = [f"**/{Path(page).name}.md" for page in notebooks_without_results]

# Formulas are drawn by a copy of MathJax within the site, so that a reader needs no internet.
mathjax = importlib.resources.files("sphinx-mathjax-offline") / "static"
mathjax_path = "mathjax/tex-chtml.js"

# The reference: types stand in the docstrings, members on the page of their class.
autosummary_generate = True
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
numpydoc_show_class_members = False
numpydoc_xref_param_type = False

bibtex_bibfiles = ["references.bib"]
bibtex_default_style = "plain"
bibtex_reference_style = "author_year"

html_theme = "sphinx_book_theme"
html_title = "pymc_mcoem"
html_show_sourcelink = False
html_static_path = ["_static", str(mathjax)]
html_css_files = ["wide.css"]
html_theme_options = {
    "home_page_in_toc": True,
    "navbar_persistent": [],  # there is a search box in the sidebar
    "show_navbar_depth": 1,
    "use_download_button": False,
    "use_fullscreen_button": False,
}

# Importing the libraries that the package stands on must not fail a build.
warnings.filterwarnings("ignore", category=DeprecationWarning)
logging.getLogger("pymc").setLevel(logging.ERROR)
