"""Drawing links with exact probabilities: a budget of links, or equal degrees for everybody."""
