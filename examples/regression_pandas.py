"""Regression on a pandas frame: pip install pandas; python examples/regression_pandas.py."""

import numpy as np
import pandas as pd
from torch import Tensor, nn

from dovetail.runtime import train


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, dense: Tensor) -> Tensor:
        return self.layers(dense)


def houses(num_rows: int, seed: int) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    frame = pd.DataFrame({"area": draw.uniform(0, 2, num_rows), "age": draw.uniform(0, 1, num_rows)})
    frame["price"] = 3 * frame["area"] - frame["age"] + draw.normal(0, 0.1, num_rows)
    return frame


if __name__ == "__main__":
    result = train(
        Network(), houses(5000, 0), data_options={"label": "price"}, validation=houses(500, 1), loss="squared",
        folder="runs/houses", workers=2, batch=100, epochs=10, learning_rate=0.01, early_stopping=3,
    )  # fmt: skip
    print("validation loss", result.best.figures["loss"])
    print("prices", result.predict(pd.DataFrame({"area": [1.0, 2.0], "age": [0.0, 0.5]})).scores)
