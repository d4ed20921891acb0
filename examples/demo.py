# SPDX-License-Identifier: Apache-2.0
"""Trains a small CNN on handwritten digits, twice as slowly as it could: a line of it makes the
loop wait. `make demo` shows how to find the line, and `--fixed` has it mended."""

import argparse
import random
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Digits of 8x8 grey pixels, with other noise whenever one is asked for."""

    def __init__(self) -> None:
        digits = load_digits()
        self.images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        self.labels = torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.add_noise(self.images[index]), self.labels[index]

    def add_noise(self, image: Tensor) -> Tensor:
        noisy = [pixel + random.gauss(0.0, 0.1) for pixel in image.flatten().tolist()]
        return torch.tensor(noisy).view_as(image)


class FastDigits(Digits):
    """The same, with the noise of all pixels from one call."""

    def add_noise(self, image: Tensor) -> Tensor:
        return image + 0.1 * torch.randn(image.shape)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--fixed", action="store_true", help="with the slow line mended")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)  # the model is too small for more
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = FastDigits() if arguments.fixed else Digits()
    loader = DataLoader(dataset, batch_size=64, shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, 10),
    ).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)

    begin = time.perf_counter()
    for epoch in range(arguments.epochs):
        total = torch.zeros((), device=device)
        for images, labels in loader:
            logits = model(images.to(device))
            loss = nn.functional.cross_entropy(logits, labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        print(f"epoch {epoch + 1:2}: loss {float(total) / len(loader):.3f}")
    print(f"trained in {time.perf_counter() - begin:.2f} s")


if __name__ == "__main__":
    main()
