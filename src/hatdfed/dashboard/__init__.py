"""Runs and deployments in a browser: read-only, on this machine, nothing from the internet.

catalogue       which runs there are, with a card for each
run_views       one run: its curves, one round, its ledger
comparison      chosen runs side by side
deployment      the status of a coordinator
event_streams   server-sent events
safety          who may send requests, and what a browser may do with the answers
site            what all routes share
pages, api      the routes: HTML for people, data for scripts
app             the application, and the port that serves it
"""
