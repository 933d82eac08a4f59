"""Figure of how often each link was drawn: one matrix for each method, on a common colour scale."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Colormap, Normalize
from matplotlib.ticker import MaxNLocator, NullLocator

import hatdfed.report.findings as fd
import hatdfed.report.run_data as rp
import hatdfed.report.style as st
from hatdfed.report.run_data import Vector
from hatdfed.report.style import DrawnMethod, FigureStyle, StyledFigure

_MOST_PANELS = 16
MOST_SERVERS = 400  # of which a cell is still a pixel
_MOST_NAMES = 40  # servers; beyond that the numbers along a matrix are too small to read
_TITLE, _MOST_LINES = st.BODY - 0.5, 5  # size and lines of a name above a panel
_PANELS = 0.8  # of the width of a figure is for panels
_COLUMNS = {1: 1, 2: 2, 3: 3, 5: 3, 6: 3, 9: 3}  # panels side by side, 4 for all other numbers


def link_use_figure(methods: Sequence[DrawnMethod], style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Share of rounds in which each link was drawn in the first seed's world: row receives, column sends."""
    shown, absent = methods[:_MOST_PANELS], [method.name for method in methods[_MOST_PANELS:]]
    of_seeds = {method.name: [100 * rp.link_use(run) for run in method.runs] for method in shown}
    use = {name: seeds[0] for name, seeds in of_seeds.items()}  # a mean over worlds would hide what each one prefers
    columns = _COLUMNS.get(len(shown), 4)
    rows, side = -(-len(shown) // columns), 2.9 if columns < 3 else 2.1  # inches
    size = max(1.4 + side * columns, 6.6), 1.3 + (side + 0.25) * rows
    figure = st.page(*size, fd.link_use_finding(of_seeds), _note(shown, absent), style)
    scale = ScalarMappable(Normalize(0, max(share.max() for share in use.values()) or 100), _ramp())
    names = ("Sender", "Receiver") if st.is_narrow(figure) else ("Sending server", "Receiving server")
    letters = st.count_letters(_PANELS * figure.get_figwidth() / columns, style.scale * _TITLE)
    panels = [figure.add_subplot(rows, columns, place + 1) for place in range(len(shown))]
    for place, (panel, (name, share)) in enumerate(zip(panels, use.items(), strict=True)):
        _panel(panel, st.fold(name, letters, _MOST_LINES), share, scale)
        is_left, is_lowest = place % columns == 0, place + columns >= len(shown)
        st.name_axes(panel, names[0] if is_lowest else "", names[1] if is_left else "")
        panel.tick_params(labelleft=is_left, labelbottom=is_lowest)
    st.colour_bar(figure, panels, scale, "Share of rounds (%)")
    st.trim_height(figure)
    return figure


def _note(shown: Sequence[DrawnMethod], absent: Sequence[str]) -> str:
    counts = [len(method.runs) for method in shown]
    note = "Share of rounds in which each link was drawn"
    if max(counts) == 1:
        note += "."
    else:
        seeds = f"{min(counts)} to {max(counts)}" if max(counts) > min(counts) else f"{max(counts)}"
        note += f", first seed only: seeds differ in data and prices. The title is the mean over {seeds} seeds."
    return f"{note} Not shown: {', '.join(absent)}." if absent else note


def _ramp() -> Colormap:
    """Make the colour map: pale for links that are never drawn, dark for frequent ones, grey on the diagonal."""
    return colormaps["YlGnBu"].with_extremes(bad=st.FAINT)


def _panel(axes: Axes, name: str, share: Vector, scale: ScalarMappable) -> None:
    matrix, words = share.copy(), st.style_of(axes).scale
    np.fill_diagonal(matrix, np.nan)
    axes.imshow(scale.to_rgba(matrix), interpolation="nearest")
    axes.set_title(name, size=words * _TITLE, color=st.INK, family=st.FONT, pad=5, parse_math=False)
    size = words * (st.SMALL - 1)
    axes.tick_params(length=0, labelsize=size, labelcolor=st.MUTED, labelfontfamily=st.FONT, pad=3)
    axes.spines[:].set_visible(False)
    for axis in (axes.xaxis, axes.yaxis):
        many = len(share) > _MOST_NAMES
        axis.set_major_locator(NullLocator() if many else MaxNLocator(6, steps=st.STEPS, integer=True))
