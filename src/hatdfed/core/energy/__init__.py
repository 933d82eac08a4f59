"""What the work costs: prices, and the ledger of what was spent."""
