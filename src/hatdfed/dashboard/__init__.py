"""Runs and deployments in a browser: read-only, on this machine, nothing from the internet.

catalogue    which runs there are, and one card for each
run_views    one run: its rounds, one round, its ledger
comparing    chosen runs beside each other
deployment   what a coordinator says about itself
live         server-sent events
safety       who may ask, and what a browser may do with the answer
app          all of it behind addresses
"""
