"""DeepFM from Parquet, features made of columns: pip install pandas; python examples/deepfm_parquet.py."""

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn

from dovetail.models import SlotEmbedding
from dovetail.runtime import train

MADE = ["price = standardise(log(price))", "age = bucketise(age, 18, 30)", "hour(time)", "cross(user, time_hour)"]
SLOTS = 4  # user, age, time_hour and user_x_time_hour


class DeepFM(nn.Module):
    def __init__(self, num_rows: int = 5000, width: int = 8) -> None:
        super().__init__()
        self.weights = SlotEmbedding(num_rows=num_rows, width=1, num_slots=SLOTS)
        self.vectors = SlotEmbedding(num_rows=num_rows, width=width, num_slots=SLOTS)
        self.deep = nn.Sequential(nn.Linear(SLOTS * width + 1, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, ids: Tensor, offsets: Tensor, dense: Tensor) -> Tensor:
        flat = self.vectors(ids, offsets)
        each = flat.unflatten(1, (SLOTS, -1))
        pairs = (each.sum(1) ** 2 - (each**2).sum(1)).sum(1, keepdim=True) / 2
        return self.weights(ids, offsets).sum(1, keepdim=True) + pairs + self.deep(torch.cat([flat, dense], dim=1))


if __name__ == "__main__":
    draw = np.random.default_rng(0)
    log = pd.DataFrame({"user": draw.integers(0, 8, 20_000), "age": draw.choice([np.nan, 15, 25, 60], 20_000)})
    log["time"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(draw.integers(0, 240, 20_000), unit="h")
    log["price"], clicks = draw.exponential(9.0, 20_000), (log["user"] + log["time"].dt.hour) % 3 == 0
    log.assign(label=clicks).to_parquet("log.parquet"), log[:2000].to_parquet("new.parquet")
    how = {"folder": "runs/deepfm", "batch": 500, "epochs": 6, "learning_rate": 0.01}
    result = train(DeepFM(), "log.parquet", data_options={"transforms": MADE, "hash_into": 5000}, **how)
    result.export("model")  # its read_rows.py makes the same features of raw rows
    print("loss", result.loss, "first scores", result.predict("new.parquet").probabilities[:3])
