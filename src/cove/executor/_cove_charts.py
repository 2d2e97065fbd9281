"""Read the data of a matplotlib figure: lines, points, bars, slices and boxes as plain values that a client can draw.

One axes is a chart, several are a chart of charts. A figure with too many points has no chart, and so has one that
cannot be read: its picture is there all the same.
"""

from __future__ import annotations

import datetime
import re

import numpy
from matplotlib import dates
from matplotlib.collections import PathCollection
from matplotlib.container import BarContainer
from matplotlib.patches import PathPatch, Rectangle, Wedge
from matplotlib.ticker import FixedLocator

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    Chart = dict[str, object]

CHART = "application/vnd.cove.chart+json"
MOST_VALUES = 5000
_UNIT = re.compile(r"\(([^()]*)\)|\[([^\[\]]*)\]")
_WHOLE_BOX = (5, 6)


def as_chart(figure: Any) -> Chart | None:
    """Return the chart of a figure; None when it has none, or too much for one."""
    try:
        check_size(figure.axes)
        charts = [chart_of(axes) for axes in figure.axes]
    except Exception:  # noqa: BLE001  # artists of the cell, which may be anything
        return None
    if not charts:
        return None
    if len(charts) == 1:
        return charts[0]
    return {"type": "superchart", "title": figure.get_suptitle() or None, "elements": charts}


def chart_of(axes: Any) -> Chart:
    """Return the chart of one axes, by what was drawn on it. Lines that only guide the eye are passed over."""
    lines = [line for line in axes.lines if line.get_transform() is axes.transData]
    patches, collections = list(axes.patches), list(axes.collections)
    if axes.images or axes.tables or not all(isinstance(each, PathCollection) for each in collections):
        return {**titled(axes, "unknown"), "elements": []}
    if collections and not lines and not patches:
        return points_chart(axes, "scatter", scatter_elements(collections))
    boxes = find_boxes(lines, patches) if lines and not collections else []
    if boxes:
        return box_chart(axes, boxes, lines)
    if lines and not patches and not collections:
        return points_chart(axes, "line", [line_element(line) for line in lines])
    if patches and not lines and not collections:
        if all(isinstance(each, Wedge) for each in patches):
            return {**titled(axes, "pie"), "elements": [pie_element(each) for each in patches]}
        if all(isinstance(each, Rectangle) for each in patches):
            return bar_chart(axes)
    return {**titled(axes, "unknown"), "elements": []}


def check_size(every: list[Any]) -> None:
    """Raise ValueError when there is more than a chart may have."""
    size = 0
    for axes in every:
        size += sum(len(line.get_xdata()) for line in axes.lines)
        size += sum(len(each.get_offsets()) for each in axes.collections)
        size += len(axes.patches) + len(axes.get_xticks()) + len(axes.get_yticks())
    if size > MOST_VALUES:
        raise ValueError("too many values")


def titled(axes: Any, kind: str) -> Chart:
    """Begin a chart."""
    return {"type": kind, "title": axes.get_title() or None}


def planar(axes: Any, kind: str, is_turned: bool = False) -> Chart:
    """Begin a chart that has two axes; `x` is that of the categories, also where they stand one above the other."""
    labels = [axes.get_xlabel() or None, axes.get_ylabel() or None]
    x, y = reversed(labels) if is_turned else labels
    return {**titled(axes, kind), "x_label": x, "y_label": y, "x_unit": unit_of(x), "y_unit": unit_of(y)}


def unit_of(label: str | None) -> str | None:
    """Return what stands in brackets in a label: `Time (s)` is in s."""
    found = _UNIT.search(label or "")
    return (found[1] or found[2] or None) if found is not None else None


def points_chart(axes: Any, kind: str, elements: list[Chart]) -> Chart:
    """Return a chart of points, with the ticks of both axes."""
    chart = planar(axes, kind)
    for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
        ticks = axis.get_majorticklocs()
        chart[name + "_ticks"] = [position(axis, tick) for tick in ticks]
        chart[name + "_tick_labels"] = [label.get_text() for label in axis.get_ticklabels()]
        chart[name + "_scale"] = scale_of(axis)
    return {**chart, "elements": elements}


def scale_of(axis: Any) -> str:
    """Return how an axis counts."""
    if is_of(axis, "dates"):
        return "datetime"
    if axis.get_scale() == "linear" and is_of(axis, "category"):
        return "categorical"
    return str(axis.get_scale())


def is_of(axis: Any, module: str) -> bool:
    """Return whether an axis counts in what that module of matplotlib converts."""
    return type(axis.get_major_locator()).__module__ == "matplotlib." + module


def position(axis: Any, number: Any) -> object:
    """Return a number of an axis as what it stands for."""
    return dates.num2date(number).isoformat() if is_of(axis, "dates") else float(number)


def line_element(line: Any) -> Chart:
    """Return the points of a line as they were given: numbers, times or names."""
    label = str(line.get_label())
    if label.startswith("_child"):
        label = "Line " + label[len("_child") :]
    pairs = zip(line.get_xdata(orig=True), line.get_ydata(orig=True), strict=False)
    return {"label": label, "points": [[plain(x), plain(y)] for x, y in pairs]}


def scatter_elements(collections: list[Any]) -> list[Chart]:
    """Return the points of each group."""
    return [
        {"label": str(each.get_label()), "points": [[float(x), float(y)] for x, y in each.get_offsets()]}
        for each in collections
    ]


def plain(value: Any) -> object:
    """Return a coordinate as text or a number."""
    if isinstance(value, (str, bytes)):
        return str(value)
    if isinstance(value, (datetime.date, datetime.time)):
        return value.isoformat()
    if isinstance(value, numpy.datetime64):
        return str(value.astype("datetime64[s]"))
    return float(value)


def bar_chart(axes: Any) -> Chart:
    """Return each bar of each group; lying bars have their categories on the other axis."""
    groups = [each for each in axes.containers if isinstance(each, BarContainer)]
    is_turned = bool(groups) and groups[0].orientation == "horizontal"
    axis = axes.yaxis if is_turned else axes.xaxis
    names = tick_names(axis)
    elements = []
    for group in groups:
        label = str(group.get_label())
        if label.startswith("_container"):
            label = "Group " + label[len("_container") :]
        for bar in group:
            middle = bar.get_y() + bar.get_height() / 2 if is_turned else bar.get_x() + bar.get_width() / 2
            value = bar.get_width() if is_turned else bar.get_height()
            elements.append({"label": name_at(axis, names, middle), "group": label, "value": float(value)})
    return {**planar(axes, "bar", is_turned), "elements": elements}


def tick_names(axis: Any) -> list[tuple[float, str]]:
    """Return the named places of an axis; none where its ticks are only numbers."""
    if not isinstance(axis.get_major_locator(), FixedLocator) and not is_of(axis, "category"):
        return []
    labels = [label.get_text() for label in axis.get_ticklabels()]
    return [(float(at), text) for at, text in zip(axis.get_majorticklocs(), labels, strict=False) if text]


def name_at(axis: Any, names: list[tuple[float, str]], at: float) -> str:
    """Return the name nearest to a place, or the place itself."""
    if names:
        return min(names, key=lambda name: abs(name[0] - at))[1]
    value = position(axis, at)
    return value if isinstance(value, str) else "%g" % at


def pie_element(wedge: Any) -> Chart:
    """Return one slice of a pie."""
    angle = round(abs(float(wedge.theta2) - float(wedge.theta1)), 3)
    return {"label": str(wedge.get_label()), "angle": angle, "radius": float(wedge.r)}


def find_boxes(lines: list[Any], patches: list[Any]) -> list[Any]:
    """Return the outlines of the boxes of a box plot: filled ones, or closed lines; none where it is something else."""
    if patches:
        return patches if all(isinstance(each, PathPatch) for each in patches) else []
    return [line for line in lines if is_closed(line)] if is_closed(lines[0]) else []


def is_closed(line: Any) -> bool:
    """Return whether a line is a rectangle."""
    x, y = line.get_xdata(), line.get_ydata()
    return len(x) in _WHOLE_BOX and (x[0], y[0]) == (x[4], y[4]) and len({*x}) == len({*y}) == 2


def box_chart(axes: Any, boxes: list[Any], lines: list[Any]) -> Chart:
    """Return each box with what stands in its place: whiskers, caps, a median, outliers."""
    outlines = [box.get_path().vertices for box in boxes]
    pairs = [line.get_xydata() for line in lines if line not in boxes]
    segments = [pair for pair in pairs if len(pair) == 2 and not (pair[0] == pair[1]).all()]
    lying = sum(pair[0][1] == pair[1][1] for pair in segments)
    is_turned = lying < len(segments) - lying
    axis = axes.yaxis if is_turned else axes.xaxis
    names = tick_names(axis)
    elements = []
    for outline in outlines:
        across, along = (1, 0) if is_turned else (0, 1)
        middle = float(outline[:, across].min() + outline[:, across].max()) / 2
        own = [pair for pair in pairs if len(pair) and abs(pair[:, across].mean() - middle) < 1e-9]
        elements.append({"label": name_at(axis, names, middle), **box_values(outline, own, across, along)})
    return {**planar(axes, "box_and_whisker", is_turned), "elements": elements}


def box_values(outline: Any, own: Iterable[Any], across: int, along: int) -> Chart:
    """Return the five numbers of a box, and what lies outside."""
    first, third = float(outline[:, along].min()), float(outline[:, along].max())
    width = outline[:, across].max() - outline[:, across].min()
    least, most, median = first, third, (first + third) / 2
    points: list[float] = []
    has_median = False
    for pair in own:
        values = [float(value) for value in pair[:, along]]
        if len(pair) != 2:
            points += values
        elif values[0] != values[1]:
            least, most = min(least, *values), max(most, *values)
        elif not has_median and abs(abs(pair[0][across] - pair[1][across]) - width) < 1e-9:
            median, has_median = values[0], True
    return {
        "min": least,
        "first_quartile": first,
        "median": median,
        "third_quartile": third,
        "max": most,
        "outliers": [point for point in points if not least <= point <= most],
    }
