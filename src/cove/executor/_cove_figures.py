"""A matplotlib backend that gives figures to the context as PNG."""

import io

from executor import send_bundle
from matplotlib import pyplot
from matplotlib.backends.backend_agg import FigureCanvasAgg, FigureManagerBase

FigureCanvas = FigureCanvasAgg
FigureManager = FigureManagerBase


def show(*args, **kwargs):
    # type: (*object, **object) -> None
    """Send every open figure and close it."""
    for number in pyplot.get_fignums():
        figure = pyplot.figure(number)
        image = io.BytesIO()
        figure.savefig(image, format="png", bbox_inches=None)
        width, height = figure.get_size_inches() * figure.dpi
        label = "<Figure size %dx%d with %d Axes>" % (width, height, len(figure.axes))
        pyplot.close(figure)
        send_bundle("display", {"image/png": image.getvalue(), "text/plain": label})
