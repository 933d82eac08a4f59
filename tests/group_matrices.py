"""Groups from matrices of verdicts, which are easier to write down than columns of links."""

from hatdfed.core import groups
from hatdfed.core.links import LinkTable


def find_groups(verdict, is_known):
    """The groups that [N, N] verdicts of rows about columns show."""
    links = LinkTable.all_of(len(verdict))
    return groups.find_groups(links, links.from_dense(verdict), links.from_dense(is_known))


def find_support(verdict, is_known, one, other):
    """Sum and weight of what is said about a pair, hearsay included."""
    links = LinkTable.all_of(len(verdict))
    known = groups._gather_pairs(links, links.from_dense(verdict), links.from_dense(is_known))
    pairs = groups._add_hearsay(links, known)
    ((place,),) = ((pairs.low == one) & (pairs.high == other)).nonzero()
    return pairs.support[place], pairs.evidence[place]
