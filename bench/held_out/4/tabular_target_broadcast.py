"""An MLP on table rows, one number to predict. FAULT from step 0: the output is (256, 1) and the target (256,), mse_loss makes (256, 256) of them, every
row is compared with every target, and the best answer is the mean of all. torch warns of it once on stderr. Without Rangewatch: loss 2.5 to about 2.2, the
variance of the target, and no lower; the spread of the outputs goes from 0.08 to 0.016. With the right shapes it is 0.1 at step 150.
Report: Photon-AI-Research/NeuralSolvers#20, deepset-ai/FARM#229 ("will likely lead to incorrect results due to broadcasting").
Cause: none of the classes fits well; arithmetic of the loss, data, or that none is named. Right: shapes / broadcasting / squeeze. Wrong: learning rate,
GradScaler, mask."""
EXPECT = {"cause": ["forward_arithmetic", "data", "(none)"], "step": [0, 199], "place": None, "rank": 0,
          "wrong": ["[Ll]ower the learning rate", "GradScaler", "bfloat16", "[Mm]ask"],
          "right": "broadcast|shape|squeeze|view|size"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(79); torch.set_num_threads(1)
model = nn.Sequential(nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
weights = torch.randn(10) / 10 ** 0.5
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
watch = rangewatch.attach(model, optimizer)
for step in range(200):
    x = torch.randn(256, 10)
    y = 1.4 * (x @ weights) + 0.5 * x[:, 0] * x[:, 1] + 0.1 * torch.randn(256)
    out = model(x)
    loss = F.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    watch.log(loss=loss.item())
    if step % 20 == 0 or step == 199:
        print(step, round(loss.item(), 4), "variance", round(y.var().item(), 4), "spread of outputs", round(out.std().item(), 4))
