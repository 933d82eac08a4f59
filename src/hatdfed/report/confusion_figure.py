"""Figure of a run's confusion matrix: which classes its models take for which, on the test data."""

from __future__ import annotations

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator

import hatdfed.report.findings as fd
import hatdfed.report.style as st
from hatdfed.report.run_data import RunData, Vector
from hatdfed.report.style import FigureStyle, StyledFigure
from hatdfed.runs.confusion import Confusion, read_confusion

CONFUSION_AXES = ("Predicted class", "True class")
_MOST_NUMBERS = 12  # classes; of more, the cells are too small for numbers
_DARK = 55.0  # percent; numbers on darker cells are white


def confusion_figures(run: RunData, style: FigureStyle = st.SCREEN) -> dict[str, StyledFigure]:
    """Draw the confusion matrix; nothing of a run that has none."""
    confusion = read_confusion(run.summary)
    if confusion is None or not confusion.sum():
        return {}
    figure = st.page(6.6, 5.8, fd.confusion_finding(share_rows(confusion)), f"{run.title}, all servers", style)
    axes = figure.add_subplot()
    scale = draw_confusion(axes, confusion)
    st.name_axes(axes, *CONFUSION_AXES)
    words = st.style_of(axes).scale * (st.SMALL - 1)
    axes.tick_params(length=0, labelsize=words, labelcolor=st.MUTED, labelfontfamily=st.FONT, pad=3)
    st.colour_bar(figure, axes, scale, "Share of the true class (%)")
    return {"confusion": figure}


def draw_confusion(axes: Axes, confusion: Confusion) -> ScalarMappable:
    """Draw the share of each true class that is taken for each class, with numbers where there is room."""
    shares = share_rows(confusion)
    scale = ScalarMappable(Normalize(0, 100), colormaps["YlGnBu"].with_extremes(bad=st.FAINT))
    axes.imshow(scale.to_rgba(shares), interpolation="nearest")
    axes.spines[:].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(len(shares) if len(shares) <= _MOST_NUMBERS else 6, integer=True))
    if len(shares) <= _MOST_NUMBERS and not st.is_narrow(axes):
        for (row, place), share in np.ndenumerate(shares):
            if round(share) >= 1:
                colour = "white" if share > _DARK else st.INK
                axes.text(place, row, f"{share:.0f}", ha="center", va="center", color=colour, size="small")
    return scale


def share_rows(confusion: Confusion) -> Vector:  # [C, C] -> [C, C]
    """Percent of each true class; nan in the row of a class without samples."""
    with np.errstate(invalid="ignore"):
        shares: Vector = 100 * confusion / confusion.sum(axis=1, keepdims=True)
    return shares
