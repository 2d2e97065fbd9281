"""A matplotlib backend that gives figures to the context as PNG, with their data where it can be read."""

from __future__ import annotations

import io

from _cove_charts import CHART, as_chart
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg, FigureManagerBase
from matplotlib.figure import Figure

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Figure", "FigureCanvas", "FigureManager", "show"]

send_display: Callable[[dict[str, object]], None]  # the executor gives it
FigureCanvas = FigureCanvasAgg
FigureManager = FigureManagerBase


def show(*args: object, **kwargs: object) -> None:
    """Send every open figure and close it."""
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        try:
            send_display({"image/png": as_png(figure), "text/plain": describe(figure), **as_data(figure)})  # noqa: F821
        finally:
            pyplot.close(figure)


def as_png(figure: Figure) -> bytes:
    """Render the figure as PNG, in the size it was given."""
    image = io.BytesIO()
    figure.savefig(image, format="png", bbox_inches=None)
    return image.getvalue()


def as_data(figure: Figure) -> dict[str, object]:
    """Return the data of the figure as a part of a bundle, if it can be read."""
    chart = as_chart(figure)
    return {} if chart is None else {CHART: chart}


def describe(figure: Figure) -> str:
    """Describe a figure as matplotlib does, with its size in pixels."""
    width, height = figure.get_size_inches() * figure.dpi
    return "<Figure size %dx%d with %d Axes>" % (width, height, len(figure.axes))
