"""Figure of a search: which settings mattered, for each objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

import hatdfed.report.style as st
from hatdfed.report.style import FigureStyle, StyledFigure

NAMES = {
    "accuracy": "validation accuracy",
    "worst_accuracy": "validation accuracy of the worst server",
    "joules": "energy",
    "link_joules": "energy of links",
}
_BAR = 0.8  # of the room of a setting, for all its bars together


def importance_figure(importance: Mapping[str, Any], style: FigureStyle = st.SCREEN) -> StyledFigure:
    """Draw bars of every setting's importance (as `sweeps.importance` measures it), the largest at the top."""
    objectives: Mapping[str, Any] = importance["objectives"]
    shares = {name: found["shares"] for name, found in objectives.items()}
    settings = sorted(next(iter(shares.values())), key=lambda key: sum(each.get(key, 0.0) for each in shares.values()))
    height = 1.9 + 0.28 * len(settings) * (1 + len(shares)) / 2
    figure, axes = st.chart(8.2, height, _title(shares), _note(importance), style)
    st.name_axes(axes, "Importance (% of the explained variance)", "")
    places, thick = np.arange(len(settings)), _BAR / len(shares)
    for number, (name, each) in enumerate(shares.items()):
        percent = [100 * each.get(key, 0.0) for key in settings]
        offset = _BAR / 2 - (number + 0.5) * thick
        axes.barh(places + offset, percent, height=0.92 * thick, color=st.PALETTE[number], label=NAMES.get(name, name))
    axes.set_yticks(places, settings)
    axes.set_xlim(0, None)
    axes.grid(visible=False, axis="y")
    if len(shares) > 1:
        handles, labels = axes.get_legend_handles_labels()
        st.legend(axes, handles, labels, loc="lower right")
    return figure


def _title(shares: Mapping[str, Mapping[str, float]]) -> str:
    most = {name: max(each, key=lambda key: each[key]) for name, each in shares.items() if any(each.values())}
    if not most:
        return "No setting made a difference"
    said = [f"{key} for {NAMES.get(name, name)}" for name, key in most.items()]
    return f"What mattered most: {', '.join(said)}"


def _note(importance: Mapping[str, Any]) -> str:
    when = "the last round" if importance.get("after_round") is None else f"round {importance['after_round']}"
    words = [f"Functional ANOVA over {importance.get('trials')} trials, by their figures after {when}."]
    return " ".join([*words, *map(str, importance["notes"])])
