"""The paper's experiments: what is run, what is kept of it, and the tables, figures and verdicts that follow.

experiments/     one module an experiment: its plan, tables, figures and verdicts; and the list of all
experiment       what an experiment, a table and a figure consist of
plan             scales, settings of a point, the places that experiments share
todo, play       which runs are missing; runs them, and keeps what `packing` leaves of each
results          the packed files under `paper/results`; `folders` says where they lie
claims           what the paper reports, from `published.toml`
differences      gains and savings, paired over seeds
rows, markdown   tables as plain data and as text; `tables` has all of them, `headline` those of the paper's abstract
verdict_rules    when a claim is reproduced, partly or not
figure_parts     numbers and words of figures; `drawing` what their pictures have in common; `figures` writes all
regret, expected_energy, price_map, plus_comparison   what is made of the runs of more than one experiment
"""
