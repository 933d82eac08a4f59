"""The paper's experiments: what is run, what is kept of it, and the tables, figures and verdicts that follow.

plans        the experiments as lists of settings
play         runs what `todo` finds missing and packs it
results      the packed files under `paper/results`
claims       what the paper reports, from `paper/claims`
choices      the two choices that validation data make: local work (D4) and the reading of `hat-dfed`
plus_…       what goes beyond the paper: plans, the choice of its parts, tables, summary and figures; beside them
             `equal_footing`, `regimes`, `link_regimes` and `search_table`
tables       rows with our figures beside the published ones; `markdown` for the eye, made of `markdown_cells`
verdicts     claim by claim: reproduced, partly, or not, by the rules in `verdict_rules`; `checks` of the levels
figures      `figure_data`, what figures say about themselves (`figure_words`), how they are drawn on `figure_panels`
"""
