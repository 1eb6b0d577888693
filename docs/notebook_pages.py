"""Each page that runs code can be taken as a notebook, or says why it lacks its results."""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
from docutils import nodes
from pybtex.database import parse_file
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

LOADED_FROM_ELSEWHERE = re.compile(
    r"""<(?:script|img|iframe)[^>]+src=["'](https?://[^"']+)|<link[^>]+stylesheet[^>]+href=["'](http[^"']+)"""
)
NOT_RUN = "code was not run when this site was built (nb_execution_mode is off)"


def setup(app: Sphinx) -> dict[str, Any]:
    # the pages that cannot run here, and the reason of each
    app.add_config_value("notebooks_without_results", {}, "env", types=(dict,))
    app.connect("env-before-read-docs", _spread_pages_that_run)
    app.connect("doctree-read", _head_the_page)
    app.connect("doctree-read", _fold_answers)
    app.connect("build-finished", _write_notebooks)
    app.connect("build-finished", _warn_of_other_hosts)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _runs_code(env: BuildEnvironment, page: str) -> bool:
    return "kernelspec" in env.metadata[page]


def _spread_pages_that_run(app: Sphinx, env: BuildEnvironment, pages: list[str]) -> None:
    """Mix pages that run code evenly among the others.

    Processes take neighbors in this list together: in the order of names one would run nearly all.
    """
    run = [page for page in pages if "\nkernelspec:" in env.doc2path(page).read_text()]
    at_rest = [page for page in pages if page not in run]
    place = {
        page: (at + 0.5) / len(group) for group in (run, at_rest) for at, page in enumerate(group)
    }
    pages.sort(key=lambda page: place[page])


def _head_the_page(app: Sphinx, doctree: nodes.document) -> None:
    """Put the link to the notebook, and a notice where results are missing, below the title."""
    page = app.env.docname
    title = doctree.next_node(nodes.title)
    if title is None or not _runs_code(app.env, page):
        return
    head: list[nodes.Node] = []
    name = posixpath.basename(page) + ".ipynb"
    link = nodes.reference("", f"Take this page as a Jupyter notebook: {name}", refuri=name)
    head.append(nodes.paragraph("", "", link, classes=["take-notebook"]))
    reason = app.config.notebooks_without_results.get(page)
    if app.config.nb_execution_mode == "off":
        reason = NOT_RUN
    if reason is not None:
        text = f"This page lacks its results: {reason}."
        head.append(nodes.warning("", nodes.paragraph("", text)))
    place = title.parent.index(title) + 1
    title.parent.insert(place, head)


def _fold_answers(app: Sphinx, doctree: nodes.document) -> None:
    """Fold what has the class dropdown, without a script or a further extension."""
    for answer in list(doctree.findall(nodes.admonition)):
        if "dropdown" in answer["classes"]:
            title, *content = answer.children
            opening = f'<details class="answer"><summary>{title.astext()}</summary>'
            closing = nodes.raw("", "</details>", format="html")
            place = answer.parent.index(answer)
            folded = [nodes.raw("", opening, format="html"), *content, closing]
            answer.parent[place : place + 1] = folded


def _write_notebooks(app: Sphinx, exception: Exception | None) -> None:
    """Write each page's notebook beside the page, with its results, as Jupyter shows it."""
    if exception is not None or app.builder.format != "html":
        return
    plain = PlainMarkdown(app.env, Path(app.confdir) / app.config.bibtex_bibfiles[0])
    for page in sorted(filter(lambda page: _runs_code(app.env, page), app.env.found_docs)):
        executed = Path(app.env.mystnb_config.output_folder, f"{page}.ipynb")
        notebook = nbformat.read(executed, as_version=4)
        notebook.metadata = {"kernelspec": notebook.metadata["kernelspec"]}
        for cell in notebook.cells:
            if cell.cell_type == "markdown":
                cell.source = plain(cell.source, page)
        target = Path(app.outdir, f"{page}.ipynb")
        target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n")


def _warn_of_other_hosts(app: Sphinx, exception: Exception | None) -> None:
    """Formulas, pictures and scripts come with the site: it is read without internet too."""
    for page in Path(app.outdir).rglob("*.html") if exception is None else ():
        for found in set(LOADED_FROM_ELSEWHERE.findall(page.read_text())):
            logging.getLogger(__name__).warning("%s loads %s", page.name, "".join(found))


class PlainMarkdown:
    """Rewrite what only Sphinx understands: references to pages, names and papers, and answers.

    Parameters
    ----------
    env : BuildEnvironment
        Knows the titles of pages.
    papers : Path
        The BibTeX file.
    """

    def __init__(self, env: BuildEnvironment, papers: Path) -> None:
        self._titles = env.titles
        self._papers = parse_file(str(papers)).entries

    def __call__(self, text: str, page: str) -> str:
        """Return the text of a Markdown cell of a page."""
        text = re.sub(
            r"^:::\{admonition\} (.*)\n:class: dropdown\n+(.*?)^:::$",
            r"<details><summary>\1</summary>\n\n\2\n</details>",
            text,
            flags=re.MULTILINE | re.DOTALL,
        )
        return re.sub(
            r"\{([\w:]+)\}`([^`<]+?)(?: <([^`>]+)>)?`", lambda role: self._role(role, page), text
        )

    def _role(self, role: re.Match[str], page: str) -> str:
        kind, text, target = role.groups()
        if kind == "doc":
            named = posixpath.normpath(posixpath.join(posixpath.dirname(page), target or text))
            # Sphinx warns of a page that is not there
            title = self._titles[named].astext() if named in self._titles else text
            return f"*{text if target else title}*"
        if kind == "py:obj":
            return f"`{text}`"
        if kind.startswith("cite:"):
            return self._cited(text)
        raise ValueError(
            f"{page}: no notebook shows {role.group()}; use {{doc}}, {{py:obj}}, {{cite:t}}."
        )

    def _cited(self, key: str) -> str:
        paper = self._papers[key]
        authors = [str(person.rich_last_names[-1]) for person in paper.persons["author"]]
        names = " and ".join(authors) if len(authors) < 3 else f"{authors[0]} et al."
        return f"{names} ({paper.fields['year']})"
