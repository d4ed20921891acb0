# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier of images, which worker processes turn and shift at random."""

import argparse
import math
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import pyinstrument_gpu as pig
from pyinstrument_gpu import gpu_phase, gpu_steps

SIDE = 32
"""Pixels, to which the images of 8x8 are enlarged."""
MOST_DEGREES = 15.0
MOST_SHIFT = 0.15


class AugmentedDigits(Dataset[tuple[Tensor, int]]):
    """The digits that ship with scikit-learn, each turned and shifted anew when it is asked for."""

    def __init__(self) -> None:
        digits = load_digits()
        self._images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16
        self._labels = digits.target.tolist()

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        angle = math.radians(float(torch.empty(()).uniform_(-MOST_DEGREES, MOST_DEGREES)))
        shift = torch.empty(2).uniform_(-MOST_SHIFT, MOST_SHIFT)
        turn = torch.tensor(
            [
                [math.cos(angle), -math.sin(angle), float(shift[0])],
                [math.sin(angle), math.cos(angle), float(shift[1])],
            ]
        )
        grid = functional.affine_grid(turn[None], [1, 1, SIDE, SIDE], align_corners=False)
        image = functional.grid_sample(self._images[index][None], grid, align_corners=False)
        return image[0], self._labels[index]


class Classifier(nn.Sequential):
    """Three convolutions with a pooling each, and a linear layer."""

    def __init__(self) -> None:
        layers: list[nn.Module] = []
        for inputs, outputs in ((1, 16), (16, 32), (32, 64)):
            layers += [
                nn.Conv2d(inputs, outputs, kernel_size=3, padding=1, bias=False),
                nn.BatchNorm2d(outputs),
                nn.ReLU(),
                nn.MaxPool2d(2),
            ]
        super().__init__(*layers, nn.Flatten(), nn.Linear(64 * (SIDE // 8) ** 2, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=Path("image_classifier.gpurun"))
    parser.add_argument("--overwrite", action="store_true", help="replace an existing output file")
    arguments = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(1)
    device = torch.device(arguments.device)
    loader = DataLoader(
        AugmentedDigits(),
        arguments.batch_size,
        shuffle=True,
        num_workers=arguments.workers,
        persistent_workers=arguments.workers > 0,
        pin_memory=device.type == "cuda",
    )
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    metrics = pig.MetricAccumulator(topk=1, num_classes=10)

    with pig.record(arguments.output, overwrite=arguments.overwrite) as recording:
        for epoch in range(1, arguments.epochs + 1):
            # gpu_steps times the wait for a batch as the phase "data".
            for images, labels in gpu_steps(loader, samples=lambda batch: len(batch[0])):
                with gpu_phase("h2d"):
                    images = images.to(device, non_blocking=True)
                    labels = labels.to(device, non_blocking=True)
                with gpu_phase("forward"):
                    logits = model(images)
                    loss = functional.cross_entropy(logits, labels)
                with gpu_phase("backward"):
                    loss.backward()
                with gpu_phase("optimizer"):
                    optimizer.step()
                    optimizer.zero_grad()
                with gpu_phase("metrics"):
                    metrics.update(logits.detach(), labels, loss.detach())
            values = metrics.compute()
            metrics.reset()
            print(f"epoch {epoch}: loss {values['loss']:.3f}, accuracy {values['accuracy@1']:.3f}")
    print(recording.run.report())


if __name__ == "__main__":
    main()
