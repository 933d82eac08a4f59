"""Style of all figures: colours, font sizes, headings, axes, and the line styles of methods.

Everything is set on the objects themselves. matplotlib's global settings stay untouched, so figures can be drawn in
threads and beside other plots. A figure carries its `FigureStyle`, from which whatever is added to it takes its sizes.
"""

from __future__ import annotations

import math
import textwrap
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox, ScaledTranslation

from hatdfed.core.energy.energy_model import Cause
from hatdfed.errors import ConfigError, RunFolderError
from hatdfed.report.findings import format_seeds
from hatdfed.report.formatting import keep_units_together
from hatdfed.report.looks import find_looks
from hatdfed.report.run_data import RunData, Vector, column, finite, limits, read_last_validation, total_joules
from hatdfed.runs.round_row import JOULES

INK, MUTED, FAINT, PAPER = "#1f2429", "#646c75", "#dfe3e8", "#ffffff"
# Okabe and Ito's colours, which can be told apart with any kind of colour vision. Their yellow is too pale for lines on
# white and is replaced by wine red, their black by dark grey.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#882255", "#4D4D4D")
CAUSE_COLOURS = {
    JOULES[Cause.UPLOAD]: "#56B4E9",
    JOULES[Cause.TRAINING]: "#0072B2",
    JOULES[Cause.LINK]: "#D55E00",
    JOULES[Cause.PROBE]: "#009E73",
    JOULES[Cause.MERGE]: "#CC79A7",
    JOULES[Cause.IDLE]: "#4D4D4D",
    JOULES[Cause.EXCHANGE]: "#E69F00",
}
VERDICT_COLOURS = (PALETTE[1], "#F3F5F7", PALETTE[0])  # from bad over undecided to good
UNKNOWN, WAITING, ALONE = "#C3C9D0", FAINT, "#8A929B"
TITLE, BODY, SMALL = 13.0, 10.0, 8.5
FONT = "DejaVu Sans"  # comes with matplotlib, so a figure looks the same on every machine
DPI = 150
HALO = (withStroke(linewidth=2.5, foreground=PAPER),)  # around text, so that lines behind it do not cross it
STEPS = (1, 2, 5, 10)  # between ticks, times a power of ten
_MARGIN = 0.18  # inches
_EDGE = 0.04  # inches
_HEADLINE_SHARE = 0.2  # of a figure's height: a longer headline makes the figure higher
_AXES_SHARE = 0.3  # of a figure's usual height: what axes have at least, where the height may follow
_LEAST_AXES = 0.5  # inches: axes that are lower or narrower show nothing
_TRIES = 6  # to find a height, or a layout that stays
_STAYS = 0.02  # inches by which axes may differ between two layouts
_BESIDE = 1 / 3  # of a figure's width for a legend beside its axes
_LETTER = 0.58  # of the font size: the width of a letter
_HANDLE = 7  # letters that are as wide as the line and the margins in front of a legend's words
_NARROW = 6.5  # inches at the usual font size; less than that is too narrow for words beside the axes


class FigureStyle(NamedTuple):
    """How figures look and in which formats they are saved; the default is for screens."""

    formats: tuple[str, ...] = ("png",)
    headline: bool = True  # the finding, and what is shown, above the axes
    width: float | None = None  # inches; None: as wide as the kind of figure usually is
    height: float | None = None  # inches; None: follows from the width
    font_size: float = BODY  # points, of the names of axes; other words follow

    @property
    def scale(self) -> float:
        """Size of words in relation to the usual one."""
        return self.font_size / BODY


SCREEN = FigureStyle()


class StyledFigure(Figure):
    """A figure and its style."""

    style: FigureStyle = SCREEN
    headline: float = 0.0  # inches
    usual_height: float = 0.0  # inches, without what a long headline adds


def style_of(part: Figure | Axes) -> FigureStyle:
    """The style of a figure or of the one that these axes belong to."""
    figure = part.figure if isinstance(part, Axes) else part
    return figure.style if isinstance(figure, StyledFigure) else SCREEN


def is_narrow(part: Figure | Axes) -> bool:
    """Whether a figure has no room for words beside its axes."""
    return _width_of(part) / style_of(part).scale < _NARROW


def _width_of(part: Any) -> float:
    figure: Any = part.figure if isinstance(part, Axes) else part
    return float(figure.get_figwidth())  # inches


def find_size(width: float, height: float, style: FigureStyle) -> tuple[float, float]:
    """Width and height in inches of a figure that is usually this large.

    Words do not become narrower with a figure, so the height shrinks less than the width, except of square figures.
    """
    wide = style.width or width
    ratio = wide / width
    if style.width is not None and height <= 0.75 * width:
        ratio = min((ratio * style.scale) ** 0.5, wide / height)
    return wide, style.height or height * ratio


def chart(
    width: float, height: float, title: str, subtitle: str, style: FigureStyle = SCREEN, *, above: int = 0
) -> tuple[StyledFigure, Axes]:
    """Make a figure of this size in inches, or that of its style, with a heading and one pair of axes.

    A narrow figure has so many lines of a legend `above` its axes, and is higher by them.
    """
    figure = page(width, height, title, subtitle, style)
    if is_narrow(figure) and style.height is None:
        _set_height(figure, figure.get_figheight() + 1.35 * above * style.scale * SMALL / 72)
    axes = figure.add_subplot(facecolor=PAPER)
    frame(axes)
    return figure, axes


def page(width: float, height: float, title: str, subtitle: str, style: FigureStyle = SCREEN) -> StyledFigure:
    """Make a figure of this size in inches, or that of its style, with a heading and no axes.

    Where its style says no height, it is higher by what the headline takes beyond a fifth of it.
    """
    width, height = find_size(width, height, style)
    figure = StyledFigure(figsize=(width, height), dpi=DPI, facecolor=PAPER, layout="constrained")
    figure.style, figure.usual_height = style, height
    FigureCanvasAgg(figure)
    if style.headline:
        figure.headline = _write_headline(figure, title, subtitle)
    grows = 0.0 if style.height is not None else max(0.0, figure.headline - _HEADLINE_SHARE * height)
    _set_height(figure, height + grows)
    return figure


def _set_height(figure: StyledFigure, height: float) -> None:
    """Make a figure so many inches high, all of them but the headline for its axes."""
    width = figure.get_figwidth()
    figure.set_figheight(height)
    rect = (0.0, 0.0, 1.0, 1.0)
    if figure.style.headline:
        rect = (0.1 / width, 0.1 / height, 1 - 0.2 / width, 1 - (figure.headline + 0.2) / height)
    figure.set_layout_engine("constrained", rect=rect)


def _write_headline(figure: StyledFigure, title: str, subtitle: str) -> float:
    """Write the headline; return where it ends, in inches from the top."""
    width, scale, top = figure.get_figwidth(), figure.style.scale, _MARGIN
    whole: Any = figure.transFigure
    from_top_left = figure.dpi_scale_trans + ScaledTranslation(0, 1, whole)  # whatever the height becomes
    for text, usual, weight, colour in ((title, TITLE, "bold", INK), (subtitle, BODY - 0.5, "normal", MUTED)):
        size = scale * usual
        letter = size / 72 * (0.61 if weight == "bold" else 0.53)  # inches, a little more than the average
        room = max(1, int((width - 2 * _MARGIN) / letter))
        for line in textwrap.wrap(keep_units_together(text), room, break_on_hyphens=False):
            place: dict[str, Any] = {"transform": from_top_left, "va": "top", "parse_math": False}
            figure.text(_MARGIN, -top, line, size=size, weight=weight, color=colour, family=FONT, **place)
            top += 1.35 * size / 72
        top += 0.03
    return top


def settle(figure: Figure, name: str = "") -> None:
    """Lay out the axes; a figure whose height nobody has chosen becomes higher until they have room.

    One whose axes have none is refused, by its name if that is given.
    """
    if not isinstance(figure, StyledFigure) or not isinstance(figure.get_layout_engine(), ConstrainedLayoutEngine):
        return  # what is in it has its place
    is_free = figure.style.height is None
    width, height = _lay_out_axes(figure)
    names = [axes.yaxis.label.get_window_extent().height / DPI for axes in figure.axes]  # the layout lets them overlap
    wanted = max(_LEAST_AXES, *names, _AXES_SHARE * figure.usual_height) if is_free else _LEAST_AXES
    for _ in range(_TRIES if is_free else 0):
        if height >= wanted:
            break
        _set_height(figure, figure.get_figheight() + wanted - height + 0.02)
        width, height = _lay_out_axes(figure)
    width, height = _lay_out_until_it_stays(figure, width, height)
    if min(width, height) < _LEAST_AXES:
        raise ConfigError(_describe_lack_of_room(figure, width, height, name))


def _lay_out_until_it_stays(figure: StyledFigure, width: float, height: float) -> tuple[float, float]:
    """Lay out axes of this size again, as every drawing does; return their last size.

    Small axes have other numbers after a layout, and may have no room after the next one.
    """
    for _ in range(_TRIES):
        if min(width, height) < _LEAST_AXES:
            break
        before, (width, height) = (width, height), _lay_out_axes(figure)
        if np.allclose(before, (width, height), rtol=0, atol=_STAYS):
            break
    return width, height


def _lay_out_axes(figure: StyledFigure) -> tuple[float, float]:
    """Lay out the axes; return the width and height in inches of all together, 0 where there is no room for any."""
    engine: Any = figure.get_layout_engine()
    width, height = figure.get_size_inches()
    if height - figure.headline - 0.2 < _LEAST_AXES:  # the layout fails where nothing is left for it
        return 0.0, 0.0
    with warnings.catch_warnings(record=True) as troubles:
        warnings.simplefilter("always")
        engine.execute(figure)
    if any("constrained_layout not applied" in str(trouble.message) for trouble in troubles):
        return 0.0, 0.0
    boxes = [axes.get_position(original=True) for axes in figure.axes if axes.get_label() != "<colorbar>"]
    whole = Bbox.union(boxes)
    return float(whole.width * width), float(whole.height * height)


def _describe_lack_of_room(figure: StyledFigure, width: float, height: float, name: str) -> str:
    style, (wide, high) = figure.style, figure.get_size_inches()
    size = f"{wide:g} inches wide" if style.height is None else f"{wide:g} × {high:g} inches"
    found = f"{_format_inches(width)} × {_format_inches(height)} inches" if min(width, height) > 0 else "nothing"
    whose = f"the axes of '{name}'" if name else "its axes"
    ways = "a larger size, a smaller font, or no headline" if style.headline else "a larger size or a smaller font"
    return (
        f"A figure {size} with a font size of {style.font_size:g} points leaves {found} for {whose}, which need at "
        f"least {_LEAST_AXES:g} × {_LEAST_AXES:g} inches. Choose {ways}."
    )


def _format_inches(length: float) -> str:
    """Format a length; a short one is rounded down, so that what is too short does not look long enough."""
    return f"{length:.1f}" if length >= 1 else f"{math.floor(100 * length) / 100:.2f}"


def frame(axes: Axes) -> None:
    """Draw a light grid and no box, so that the data stand out."""
    scale = style_of(axes).scale
    axes.tick_params(length=0, labelsize=scale * SMALL, labelcolor=MUTED, labelfontfamily=FONT, pad=5 * scale)
    axes.grid(visible=True, color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(MUTED)


def save(figure: Figure, path: Path) -> Path:
    """Write the figure to a PNG file; return its path."""
    canvas: Any = figure.canvas  # Agg, which comes without types
    canvas.print_png(path)  # draws once, `savefig` would do it twice
    return path


def save_figures(figures: Mapping[str, StyledFigure], folder: Path) -> list[Path]:
    """Write figures by their names into `folder`, each in the formats of its style; return the files.

    None is written if one of them has no room for its axes.
    """
    for name, figure in figures.items():
        settle(figure, name)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _save_as(figure, folder / f"{name}.{ending}")
        for name, figure in figures.items()
        for ending in figure.style.formats
    ]


def _save_as(figure: StyledFigure, path: Path) -> Path:
    if path.suffix == ".png":
        return save(figure, path)
    # Publishers refuse the fonts that matplotlib embeds by default (type 3), and only a global setting changes that:
    # SVG and PDF are not to be written in several threads. The salt and no date make equal files of equal figures.
    date = {"Date": None} if path.suffix == ".svg" else {"CreationDate": None}
    with rc_context({"pdf.fonttype": 42, "svg.fonttype": "path", "svg.hashsalt": path.stem}):
        figure.savefig(path, metadata=date)
    return path


def trim_height(figure: StyledFigure) -> None:
    """Make a figure without a headline as high as what is in it, unless its style says how high it is."""
    if figure.style.headline or figure.style.height is not None:
        return
    settle(figure)
    for _ in range(2):  # the bar of colours shrinks with the figure
        figure.draw_without_rendering()
        figure.set_figheight(figure.get_tightbbox().height + 2 * _EDGE)


def name_axes(axes: Axes, x: str, y: str) -> None:
    """Label the axes, with units."""
    style = style_of(axes)
    for name, label in ((x, axes.set_xlabel), (y, axes.set_ylabel)):
        label(name, size=style.font_size, color=INK, family=FONT, labelpad=6 * style.scale)


def colour_bar(figure: Figure, axes: Axes | list[Axes], scale: ScalarMappable, meaning: str) -> None:
    """Add a narrow colour bar to the right of the axes."""
    bar = figure.colorbar(scale, ax=axes, shrink=0.6, aspect=28, pad=0.03)
    bar.outline.set_visible(False)
    style = style_of(figure)
    bar.ax.tick_params(length=0, labelsize=style.scale * SMALL, labelcolor=MUTED, labelfontfamily=FONT)
    bar.set_label(meaning, size=style.font_size, color=INK, family=FONT, labelpad=8)


def legend(axes: Axes, handles: Sequence[Any], words: Sequence[str], *, share: float = 0.85, **place: Any) -> None:
    """Add a legend without a box, above the axes of a narrow figure, its words on as many lines as they need.

    `share` is that of the figure's width above the axes; a legend beside them has at most a third.
    """
    size, is_beside = style_of(axes).scale * SMALL, not is_narrow(axes) and "ncols" not in place
    letters = count_letters((_BESIDE if is_beside else share) * _width_of(axes), size)
    words = [fold(text, letters - _HANDLE) for text in words]
    if not is_beside:
        longest = max((len(line) for text in words for line in text.splitlines()), default=0) + _HANDLE
        room = max(1, min(letters // longest, len(words)))
        place |= {"ncols": min(room, place.get("ncols", room))}
    if is_narrow(axes):
        place |= {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0)}
        place |= {"handlelength": 2.2, "columnspacing": 1.2, "labelspacing": 0.25}
    font = {"family": FONT, "size": size}
    axes.legend(handles, words, frameon=False, prop=font, labelcolor=INK, borderaxespad=0.4, **place)


def count_letters(inches: float, size: float) -> int:
    """Count the letters of this font size that fit beside each other."""
    return int(inches * 72 / (_LETTER * size))


def fold(text: str, letters: int, most: int | None = None) -> str:
    """Fold a text onto lines of so many letters, numbers with their units on one, and cut it after `most` lines.

    >>> fold("hat-dfed (thrift 8)  62.6 ± 7.9 %", 20).split("\\n")
    ['hat-dfed (thrift 8)', '62.6\xa0±\xa07.9\xa0%']
    """
    how: dict[str, Any] = {"max_lines": most, "placeholder": " …", "break_on_hyphens": False}
    lines = [textwrap.fill(line, max(letters, 8), **how) for line in keep_units_together(text).splitlines()]
    return "\n".join(lines)


def notice(axes: Axes, text: str) -> None:
    """Write a message in the middle of the axes."""
    note = axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center")
    note.set(size=style_of(axes).font_size, color=MUTED, family=FONT, bbox={"facecolor": PAPER, "edgecolor": "none"})


def percent_axis(axes: Axes, values: Vector) -> None:
    """Set a y axis for these accuracies that extends beyond 0 and 100 by at most a line's width."""
    low, high = limits(values, least=2.0) if len(finite(values)) else (0.0, 100.0)
    axes.set_ylim(max(low, -1.0), min(high, 101.0))
    axes.yaxis.set_major_locator(MaxNLocator(7, steps=STEPS))


def round_axis(axes: Axes, first: float, last: float) -> None:
    """Set an x axis in whole rounds that ends where the data end."""
    axes.set_xlim(*((first, last) if last > first else (first - 0.5, last + 0.5)))
    axes.xaxis.set_major_locator(MaxNLocator(9, steps=STEPS, integer=True, min_n_ticks=1))


_DASHES = ("-", (0, (5, 1.5)), (0, (1.2, 1.2)), (0, (6, 1.5, 1.2, 1.5)))
_MARKERS = ("o", "s", "^", "D")


class DrawnMethod(NamedTuple):
    """The results of one method's seeds, and how they are drawn."""

    name: str
    runs: Sequence[RunData]
    joules: Vector  # [S] all of a run
    test_accuracy: Vector  # [S] percent, nan where it was not measured
    validation: Vector  # [S] percent in the last round, nan where it is not known
    colour: str
    dashes: Any
    marker: str


def style_methods(runs: Mapping[str, Sequence[RunData]]) -> list[DrawnMethod]:
    """Collect what is drawn of the runs; a method looks the same in every figure (`find_looks`)."""
    empty = [name for name, seeds in runs.items() if not seeds or not all(run.rounds for run in seeds)]
    if not runs or empty:
        found = f"No rounds were completed by {', '.join(empty)}" if empty else "There are no runs"
        raise RunFolderError(f"{found}, so there is nothing to compare. Give runs of at least one round.")
    looks = find_looks([seeds[0].label for seeds in runs.values()])
    methods = []
    for (name, seeds), look in zip(runs.items(), looks, strict=True):
        turn, colour = divmod(look, len(PALETTE))
        joules = np.array([total_joules(run) for run in seeds])
        accuracy = column([run.summary for run in seeds], "avg_accuracy")
        last = [read_last_validation(run) for run in seeds]
        validation = np.array([np.nan if value is None else value for value in last])
        drawn_as = (PALETTE[colour], _DASHES[turn % len(_DASHES)], _MARKERS[turn % len(_MARKERS)])
        methods.append(DrawnMethod(name, seeds, joules, accuracy, validation, *drawn_as))
    return methods


def format_method_seeds(methods: Sequence[DrawnMethod], spread: str) -> str:
    """State the number of seeds of these methods and what shows their standard deviation."""
    return format_seeds([len(method.runs) for method in methods], spread)
