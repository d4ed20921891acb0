# SPDX-License-Identifier: Apache-2.0
"""Two ranks that train one network; launched by torchrun."""

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.programs import common

common.seed()
dist.init_process_group("gloo")
model = DistributedDataParallel(common.network())
data = common.dataset(8)
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, shuffle=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in DataLoader(data, batch_size=common.BATCH, sampler=sampler):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), labels)
    loss.backward()
    optimizer.step()
weight = next(model.parameters()).detach().sum()
dist.all_reduce(weight)
if dist.get_rank() == 0:
    print(f"{weight.item():.5f}")
dist.barrier()
dist.destroy_process_group()
