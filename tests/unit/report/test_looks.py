"""A method has one look, whatever it is compared with."""

from hatdfed.report.looks import NUM_COLOURS, NUM_STYLES, find_looks
from hatdfed.report.style import PALETTE, style_methods
from hatdfed.setup.methods import METHODS


def test_a_method_has_the_same_colour_in_every_company():
    alone, first, last = (
        dict(zip(names, find_looks(names), strict=True))
        for names in (["rnd"], ["rnd", "full", "mine"], ["mine", "local", "hat-dfed", "rnd"])
    )
    assert alone["rnd"] == first["rnd"] == last["rnd"]
    assert first["mine"] == last["mine"]


def test_all_methods_look_different():
    looks = find_looks(list(METHODS.built_in))
    assert len(set(looks)) == len(METHODS.built_in)
    assert max(looks) < NUM_COLOURS * NUM_STYLES


def test_rows_of_one_method_share_its_colour_and_differ_by_style():
    looks = find_looks(["rnd"] * NUM_STYLES)
    assert len(set(looks)) == NUM_STYLES
    assert len({look % NUM_COLOURS for look in looks}) == 1
    assert len(find_looks(["rnd"] * 40)) == 40, "more rows than looks"


def test_figures_have_a_colour_for_every_look(make_run):
    assert len(PALETTE) == NUM_COLOURS
    one, other = (style_methods({name: [make_run()] for name in names}) for names in (["x"], ["y", "z"]))
    assert one[0].colour == other[0].colour == other[1].colour, "rows are drawn by their method, not by their label"
