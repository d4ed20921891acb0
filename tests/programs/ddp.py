# SPDX-License-Identifier: Apache-2.0
"""Two ranks that train one network; launched by torchrun."""
# steps: 4
# phases: data 4, zero_grad 4, forward 4, loss 4, backward 4, optimizer 4

import torch
import torch.distributed as dist
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.programs import common

common.seed()
dist.init_process_group("gloo")
network = common.network().to(common.DEVICE)  # waits
model = DistributedDataParallel(network)  # waits, unseen: C++ reads the other ranks' shapes
data = common.dataset(8)
sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(data, shuffle=False)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for inputs, labels in DataLoader(data, batch_size=common.BATCH, sampler=sampler):
    inputs, labels = inputs.to(common.DEVICE), labels.to(common.DEVICE)  # waits
    optimizer.zero_grad()
    output = model(inputs)  # waits in torch/nn/parallel/distributed.py: the ranks agree on buckets
    loss = functional.cross_entropy(output, labels)
    loss.backward()
    optimizer.step()
weight = next(model.parameters()).detach().sum()
dist.all_reduce(weight)
if dist.get_rank() == 0:
    print(f"{weight.item():.5f}")  # waits
dist.barrier()  # waits, unseen: NCCL's does
dist.destroy_process_group()
