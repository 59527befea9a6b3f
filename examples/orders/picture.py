"""Draw the totals of the Delta table: python picture.py [ROOT] [FILE]; needs matplotlib."""

import sys

from deltalake import DeltaTable


def main(root: str = "/tmp/danube-orders", file: str = "orders.png") -> None:
    """Draw amounts per minute, one line for each country."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = DeltaTable(f"{root}/totals").to_pyarrow_table().sort_by("minute").to_pylist()
    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    for country in sorted({row["country"] for row in rows}):
        mine = [row for row in rows if row["country"] == country]
        axes.plot([row["minute"] for row in mine], [row["amount"] for row in mine], label=country)
    axes.set_title("Orders per minute")
    axes.set_ylabel("amount")
    axes.legend(ncols=5, frameon=False)
    axes.grid(alpha=0.3)
    figure.autofmt_xdate()
    figure.savefig(file)
    pyplot.close(figure)
    print(f"drew {len(rows)} totals into {file}")


if __name__ == "__main__":
    main(*sys.argv[1:])
