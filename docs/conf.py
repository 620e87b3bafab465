"""Settings of the documentation site, which `make docs` builds into build/docs. It loads nothing from other hosts."""

import os
import pathlib
import sys
import sysconfig

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))  # the pages describe this tree, also where another one is installed

import spanjax  # noqa: E402

project = "spanjax"
author = "The spanjax authors"
copyright = f"{author}, Apache License 2.0"
version = release = spanjax.__version__

extensions = ["myst_nb", "sphinx_copybutton", "docs._ext"]
exclude_patterns = ["_ext"]
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_url_schemes = ["http", "https", "mailto", "repository"]  # the last is that of docs/_ext
myst_heading_anchors = 6  # the anchors that GitHub gives headings, so that links to them work in both places

# the notebooks of the tutorials train models: `make docs EXECUTE=1` runs them, tests/docs/test_tutorials.py too
nb_execution_mode = "force" if os.environ.get("EXECUTE") else "off"
# cells call `!spanjax` as a reader does, in whose shell the environment is active
os.environ["PATH"] = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
os.environ["PYTHONPATH"] = str(ROOT)
nb_execution_in_temp = True
nb_execution_timeout = 1800
nb_execution_raise_on_error = True

html_theme = "sphinx_book_theme"
html_title = f"spanjax {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
# the search reads each page that it found for a summary, which a browser refuses where the site is a folder of files
html_show_search_summary = "GITHUB_ACTIONS" in os.environ
html_context = {"default_mode": "auto"}  # light or dark as the browser wants it
html_theme_options = {
    "home_page_in_toc": True,
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
    "search_as_you_type": True,
    "navbar_persistent": [],  # the side bar has the search already
}
copybutton_exclude = ".linenos, .gp, .go"  # prompts and output of a session are not copied
