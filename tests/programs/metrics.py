# SPDX-License-Identifier: Apache-2.0
"""A loop that looks at its tensors in many ways, of which some wait, and beside them others that
look like those and don't."""
# steps: 6
# phases: data 6, zero_grad 6, forward 6, loss 6, backward 6, optimizer 6

import torch
from torch.nn import functional

from tests.programs import common

common.seed()
model = common.network().to(common.DEVICE)  # waits
optimizer = torch.optim.Adam(model.parameters())
weights = torch.tensor([0.4, 0.6], device=common.DEVICE)  # waits
positions = torch.arange(common.BATCH, device=common.DEVICE)
lengths = torch.tensor([3, 4, 5])
correct, seen, total = 0, 0, torch.zeros((), device=common.DEVICE)
for step, (inputs, labels) in enumerate(common.loader()):
    share = labels.float().mean().item()
    seen += int(inputs.shape[0]) + int(lengths[step % 3])
    names = labels.numpy().tolist()
    x = inputs.to(common.DEVICE)  # waits
    y = labels.to(x.device)  # waits
    optimizer.zero_grad()
    output = model(x)
    loss = functional.cross_entropy(output, y, weight=weights)
    loss.backward()
    optimizer.step()
    total += loss.detach()
    if torch.isnan(loss):  # waits
        break
    predicted = output.argmax(1)
    correct += predicted.eq(y.view_as(predicted)).sum().item()  # waits
    worst = output.detach().cpu()  # waits
    best = worst.numpy().max()
    hits = x[predicted == y]  # waits
    kept = x[positions[:4]]
    masked = torch.where(y > 0, x.sum(1), 0.0)
    places = torch.nonzero(y)  # waits
    y[y > 0] = 1
    chosen = output.gather(1, y.unsqueeze(1)).masked_fill(y.unsqueeze(1) > 0, 0.0)
    for row in predicted[:2]:
        names.append(int(row))  # waits
    print(step, f"{share:.3f}", sum(names), f"{best:.4f}", hits.shape[0], len(places))
    print(f"{loss:.5f}", kept.shape, masked.shape, chosen.shape)  # waits
print(f"{correct} {seen} {float(total):.5f}")  # waits
