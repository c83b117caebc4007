"""A matrix factorisation with a small net on top predicts the marks of pupils in tests; SGD with momentum. FAULT from the first step on: the rate was
typed as 4e-7 in the configuration (4e-2 was meant). Gradients are well, the updates are a ten millionth of the weights, and nothing is learned.
Without Rangewatch: loss 3.37 to 2.50 (1.9 to 3.4 between) with a gradient of 0.7 to 0.9 all the time; with 4e-2 it is 0.087 at the end.
Cause: learning_rate. Step: from 0 on. Right: learning rate / raise. Wrong: GradScaler, mask, lower the rate, clip."""
EXPECT = {"cause": ["learning_rate"], "step": [0, 120], "place": None, "rank": 0, "least": "info",
          "wrong": ["GradScaler", "attention mask", "(?i)lower the learning rate"],
          "right": "(?i)learning rate|\\blr\\b"}
import torch
import torch.nn.functional as F
from torch import nn
import rangewatch

torch.manual_seed(1825); torch.set_num_threads(1)
PUPILS, TESTS = 60, 20
talent, hardness = torch.randn(PUPILS, 2), torch.randn(TESTS, 2)


class Marks(nn.Module):
    def __init__(self):
        super().__init__()
        self.pupil, self.test = nn.Embedding(PUPILS, 16), nn.Embedding(TESTS, 16)
        self.judge = nn.Sequential(nn.Linear(48, 32), nn.PReLU(), nn.Linear(32, 1))

    def forward(self, pupil, test):
        p, t = self.pupil(pupil), self.test(test)
        return self.judge(torch.cat((p, t, p * t), 1))[:, 0]


model = Marks()
optimizer = torch.optim.SGD(model.parameters(), lr=4e-7, momentum=0.9)
handle = rangewatch.attach(model, optimizer)
for step in range(240):
    pupil, test = torch.randint(0, PUPILS, (256,)), torch.randint(0, TESTS, (256,))
    mark = (talent[pupil] * hardness[test]).sum(1) + talent[pupil, 0] + 0.2 * torch.randn(256)
    loss = F.mse_loss(model(pupil, test), mark)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 40 == 0 or step == 239:
        print(step, loss.item(), "gradient", model.judge[0].weight.grad.norm().item(), flush=True)
    handle.log(loss=loss.item())
handle.detach()
