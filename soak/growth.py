"""Whether something grows: the slope of a line through measurements."""

from collections.abc import Sequence


def slope(points: Sequence[tuple[float, float]]) -> float:
    """How much the value rises per unit of time, by least squares; 0 where that cannot be said."""
    if len(points) < 2:
        return 0.0
    mean_time = sum(time for time, _ in points) / len(points)
    mean_value = sum(value for _, value in points) / len(points)
    spread = sum((time - mean_time) ** 2 for time, _ in points)
    if spread == 0:
        return 0.0
    return sum((time - mean_time) * (value - mean_value) for time, value in points) / spread
