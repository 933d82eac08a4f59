"""Names of energies in results: `total_energy_megajoules`, and the older `total_energy_mj`, which is an alias.

The older names can be misread, as mJ are millijoules; files and scripts know them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SHORT = re.compile("_mj(?=_|$)")


def name_megajoules(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results with the long name of every total that has the short one, beside it.

    >>> name_megajoules({"link_energy_mj": 1.5, "rounds": 2})
    {'link_energy_megajoules': 1.5, 'link_energy_mj': 1.5, 'rounds': 2}
    """
    named: dict[str, Any] = {}
    for name, value in results.items():
        if _SHORT.search(name):
            named[_SHORT.sub("_megajoules", name)] = value
        named[name] = value
    return named
