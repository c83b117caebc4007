"""A small net that foretells the yield of a chemical reactor from seven readings, by plain SGD. FAULT at step 0: the rate is 3.0 (3e-2 was meant; the
exponent was lost in a YAML file). The first updates throw the weights far off.
Without Rangewatch: loss 0.21 at step 0, 2.8 at step 5, 0.80 to 1.06 from step 20 to the end; with 0.03 it is 0.15.
Cause: learning_rate. Step: 0 to 4. Right: lower the learning rate. Wrong: GradScaler, mask, data."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 6], "place": None, "rank": 0,
          "wrong": ["GradScaler", "(?i)attention mask", "(?i)skip the batch"],
          "right": "(?i)learning.?rate|\\blr\\b|step size"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1904); torch.set_num_threads(1)
settings = {"hidden": 40, "batch": 48, "lr": 3.0}

readings = torch.randn(2000, 7)
yields = torch.tanh(readings[:, 0] * readings[:, 1]) + 0.5 * readings[:, 2].sin() + 0.3 * readings[:, 3] + 0.1 * torch.randn(2000)
model = nn.Sequential(nn.Linear(7, settings["hidden"]), nn.LeakyReLU(0.1), nn.Linear(settings["hidden"], settings["hidden"]), nn.LeakyReLU(0.1),
                      nn.Linear(settings["hidden"], 1), nn.Flatten(0))
optimizer = torch.optim.SGD(model.parameters(), lr=settings["lr"])
handle = rangewatch.attach(model, optimizer)
step = 0
for epoch in range(4):
    order = torch.randperm(len(readings))
    for rows in order.split(settings["batch"]):
        loss = F.huber_loss(model(readings[rows]), yields[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 or step < 6:
            print(step, loss.item(), flush=True)
        handle.log(loss=loss.item(), epoch=epoch)
        step += 1
print(step, loss.item())
handle.detach()
