"""The paper's experiments: what is run, what is kept of it, and the tables, figures and verdicts that follow.

plans        the experiments as lists of settings
play         runs what is missing and packs it
results      the packed files under `paper/results`
claims       what the paper reports, from `paper/claims`
choices      the two choices that validation data make: local work (D4) and the reading of `hat-dfed`
tables       rows with our figures beside the published ones; `markdown` for the eye
verdicts     claim by claim: reproduced, partly, or not, by the rules in `verdict_rules`
figures      the paper's figures: `figure_data`, what they say about themselves, how they are drawn
"""
