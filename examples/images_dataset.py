"""Ten classes of images from a PyTorch Dataset: python examples/images_dataset.py."""

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from dovetail.runtime import train


class Digits(Dataset):
    """Images of ten bars, one of them bright, under noise."""

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, number: int) -> tuple[Tensor, int]:
        label = number % 10
        image = torch.rand(1, 20, 20, generator=torch.Generator().manual_seed(number))
        image[0, 2 * label : 2 * label + 2] += 1.0
        return image, label


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(800, 10)
        )

    def forward(self, image: Tensor) -> Tensor:
        return self.layers(image)


if __name__ == "__main__":
    result = train(Network(), Digits(), loss="cross-entropy", folder="runs/images", workers=2, batch=100, epochs=2)
    scores = torch.from_numpy(result.predict(torch.utils.data.Subset(Digits(), range(500))).scores)
    print("right", (scores.argmax(1) == torch.arange(500) % 10).float().mean().item())
