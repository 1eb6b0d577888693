"""A picture of the templates that changes while a run learns."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import get_console

from pymc_mcoem.plots.templates import plot_templates
from pymc_mcoem.runs.atomic_files import replace_file
from pymc_mcoem.runs.datatree_files import require_file_name
from pymc_mcoem.templates.mixture import TemplateMixture
from pymc_mcoem.validation import require_whole

if TYPE_CHECKING:
    from pymc_mcoem.em.callbacks import Update

__all__ = ["LivePlot"]


class LivePlot:
    """Picture of the templates that changes while a run learns, in a notebook, a file or both.

    Give it to a run of a `TemplateMixture`: ``OnlineEM(..., callbacks=[LivePlot()])``. It is drawn
    after the first step, and again whenever `every` more observations are learned. Observations
    that are held for the start are not learned yet.

    Parameters
    ----------
    every : int
        Number of observations from one picture to the next; for `SAEM`, of visits to observations.
    path : path-like, optional
        PNG file that each picture replaces. It is always complete, so that a viewer or a web page
        may read it at any time. Default: none; the picture is then for a notebook alone.

    Raises
    ------
    ValueError
        If `every` is not positive, `path` has another ending than ``.png``, or there is neither a
        `path` nor a notebook.
    OSError
        If no file can be written at `path`.

    See Also
    --------
    plot_template_history : Templates after increasing numbers of observations, once learned.

    Notes
    -----
    The templates are those of `plot_templates`, from learned observations only. In a notebook the
    picture stands below the cell that learns and changes in place; no ipywidgets are needed. A
    picture takes 0.1 to 0.3 seconds.

    Examples
    --------
    >>> import tempfile, numpy as np
    >>> from pymc_mcoem import OnlineEM
    >>> mixture = TemplateMixture.for_images((4, 4), n_classes=2, n_landmarks=2)
    >>> images = np.random.default_rng(1).normal(size=(6, 4, 4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     picture = LivePlot(path=f"{folder}/templates.png")
    ...     em = OnlineEM(mixture, n_start=4, callbacks=[picture], progressbar=False)
    ...     _ = em.partial_fit(images)
    ...     picture.draw(em)
    ...     picture.path.read_bytes()[1:4]
    b'PNG'
    """

    def __init__(self, every: int = 25, path: str | os.PathLike[str] | None = None) -> None:
        require_whole("every", every, 1)
        if path is None and not get_console().is_jupyter:
            raise ValueError(
                "path: got None, and this is no notebook to draw in; give a file, as "
                "LivePlot(path='templates.png')."
            )
        self.every = int(every)
        self.path = None if path is None else _png(path)
        #: The run that was drawn last, and how many observations it had learned.
        self._drawn: tuple[Any, int] = None, 0
        #: Number of the notebook's cell with the picture; its display handle is the next.
        self._cell: int | None = None
        self._handle: Any = None

    def __call__(self, update: Update) -> None:
        """Draw the templates, if enough was learned since they were last drawn."""
        driver, learned = self._drawn
        if driver is not update.driver or update[-1].number >= learned + self.every:
            self.draw(update.driver)

    def draw(self, driver: Any) -> None:
        """Draw the templates of a run now, as after its end.

        Parameters
        ----------
        driver : OnlineEM or SAEM

        Raises
        ------
        TypeError
            If it learns no `TemplateMixture`.
        ValueError
            If it has learned nothing, or templates of more than two axes.
        OSError
            If the file cannot be written.
        """
        mixture, parameters = driver.family, driver.learned_parameters
        if not isinstance(mixture, TemplateMixture):
            raise TypeError(
                f"LivePlot draws the templates of a TemplateMixture, and this run learns a "
                f"{type(mixture).__name__}; give callbacks= a function that draws "
                "update.driver.learned_parameters."
            )
        if parameters is None:
            raise ValueError("driver: it has learned nothing yet; draw it after its first step.")
        learned = driver.n_learned
        steps = "observations" if driver.run.unit == "observation" else "visits"
        picture = _picture(parameters, mixture, f"{learned:,} {steps} learned")
        if self.path is not None:
            replace_file(self.path, (picture,))
        if get_console().is_jupyter:
            self._show(picture)
        self._drawn = driver, learned

    def _show(self, picture: bytes) -> None:
        """Show a PNG below the present cell of a notebook, in the place of the one before."""
        from IPython import display, get_ipython

        cell = getattr(get_ipython(), "execution_count", None)
        show: Any = display.display
        image: Any = display.Image
        if self._handle is None or cell != self._cell:
            self._handle, self._cell = show(image(picture), display_id=True), cell
        else:
            self._handle.update(image(picture))


def _png(path: str | os.PathLike[str]) -> Path:
    target = require_file_name(path)
    if target.suffix.lower() != ".png":
        raise ValueError(f"path: got {str(target)!r}; give a name that ends in '.png'.")
    return target


def _picture(parameters: Any, mixture: TemplateMixture, title: str) -> bytes:
    """Return a PNG of the templates; the figure is closed, and no window opens."""
    from matplotlib import pyplot

    with pyplot.ioff():
        collection = plot_templates(parameters, mixture, backend="matplotlib")
        figure = collection.viz["figure"].item()
        try:
            figure.suptitle(title)
            found = io.BytesIO()
            figure.savefig(found, format="png")
        finally:
            pyplot.close(figure)
    return found.getvalue()
