"""One run's servers in several stacked fleets, on one machine or on many."""
