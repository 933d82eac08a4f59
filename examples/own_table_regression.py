"""A regression on a table of your own: how far diabetes had advanced after a year, from ten measurements of a patient.

    python examples/own_table_regression.py

The table is scikit-learn's; any two arrays, a pandas frame with target="column" or a file with x and y will do
(docs/data.md). Servers differ in how ill their patients are: label skew is by deciles of the target.
"""

import argparse

from sklearn.datasets import load_diabetes

import hatdfed

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Servers that learn a table together, and alone.")
    parser.add_argument("--rounds", type=int, default=30)
    rounds = parser.parse_args().rounds
    table = load_diabetes(return_X_y=True)  # x: 442 patients of 10 floats, y: 442 floats, so this is a regression
    for method in ("local", "hat-dfed", "full"):
        summary = hatdfed.run(method=method, dataset=table, rounds=rounds, common_init=True).summary
        error, share = summary["metrics"]["rmse"], summary["metrics"]["r2"]
        print(f"{method:10} score {summary['avg_accuracy']:5.1f}   error {error:5.1f} points   R² {share:5.2f}")
